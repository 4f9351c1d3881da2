//! Something that whoever waits can be woken by, from any thread and by any future.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Wake;

/// A bell: a ring that nobody waits for is not lost.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.heard.notify_all();
    }

    /// Waits for the next ring, or takes one that nobody has waited for.
    pub(crate) fn wait(&self) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        while !std::mem::take(&mut *rung) {
            rung = self.heard.wait(rung).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}
