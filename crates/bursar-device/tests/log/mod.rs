//! The log of a test process, kept for inspection.

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Everything this process logs.
struct Log;

static LINES: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());

/// Keeps what is logged from now on.
pub(crate) fn listen() {
    static LISTENING: OnceLock<()> = OnceLock::new();
    LISTENING.get_or_init(|| tracing::subscriber::set_global_default(Log).expect("nobody else listens"));
}

/// The lines that contain `about`.
pub(crate) fn logged(about: &str) -> Vec<(Level, String)> {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().filter(|(_, line)| line.contains(about)).cloned().collect()
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push((*event.metadata().level(), message.0));
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
