//! The plan in the log: one line, and its level.

use bursar_core::Bytes;
use bursar_fit::{MemoryKind, Spec, fit_workers};
use std::fmt;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A subscriber that records what is logged.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<Vec<(Level, String)>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "bursar::fit"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().expect("no panic").push((*event.metadata().level(), message.0));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Returns what is logged by `act` for a stage of VRAM.
fn logged_by(act: impl Fn(&Spec), fixed: Bytes, want: u64, is_allowed: bool) -> Vec<(Level, String)> {
    let recorder = Recorder::default();
    let spec = Spec::new("embed", MemoryKind::Vram).available(Bytes::gib(64)).fixed(fixed).per_worker(Bytes::gib(4));
    tracing::subscriber::with_default(recorder.clone(), || act(&spec.want(want).allow_overflow(is_allowed)));
    std::mem::take(&mut *recorder.0.lock().expect("no panic"))
}

/// Returns what is logged when such a stage is fitted.
fn logged(fixed: Bytes, want: u64, is_allowed: bool) -> Vec<(Level, String)> {
    logged_by(|spec| drop(fit_workers(spec)), fixed, want, is_allowed)
}

#[test]
fn f2_a_plan_is_logged_as_a_fit_is() {
    for (fixed, want) in [(10, 16), (10, 4), (60, 16)] {
        let planned = logged_by(|spec| drop(spec.plan()), Bytes::gib(fixed), want, false);
        assert_eq!((planned.len(), &planned), (1, &logged(Bytes::gib(fixed), want, false)));
    }
}

#[test]
fn f2_each_decision_is_one_line_in_the_log() {
    let [(level, line)] = &logged(Bytes::gib(10), 16, false)[..] else { panic!("one line") };
    assert_eq!(*level, Level::INFO);
    for part in ["embed", "VRAM", "64 GiB free", "budget 44.80 GiB", "fixed 10 GiB", "per worker 4 GiB", "from 16 to 8"]
    {
        assert!(line.contains(part), "{part:?} is missing: {line}");
    }
    for is_allowed in [false, true] {
        let [(level, line)] = &logged(Bytes::gib(60), 16, is_allowed)[..] else { panic!("one line") };
        assert!(*level == Level::ERROR && line.contains("the shared data of 60 GiB exceeds"), "{level} {line}");
    }
}
