//! A notification that wakes a thread, from any thread or future.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Wake;

/// A notification. One that comes while no thread waits is kept for the next that does.
#[derive(Debug, Default)]
pub(super) struct Notify {
    is_notified: Mutex<bool>,
    changed: Condvar,
}

impl Notify {
    /// Wakes the waiting thread, or the next one to wait.
    pub(super) fn notify(&self) {
        *self.is_notified.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits for a notification, or takes one that was kept.
    pub(super) fn wait(&self) {
        let mut is_notified = self.is_notified.lock().unwrap_or_else(PoisonError::into_inner);
        while !std::mem::take(&mut *is_notified) {
            is_notified = self.changed.wait(is_notified).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        self.notify();
    }
}
