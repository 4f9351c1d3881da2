//! The exit of the process.
//!
//! The driver shuts itself down in an exit handler that it registers while it is loaded or initialised, and a call after
//! that is undefined. Handlers run in the reverse order of their registration, so one registered after `cuInit` runs before
//! the driver's: from then on, [`raw`](crate::raw) begins no call. A call that another thread has begun by then is not
//! waited for, and may still be running while the driver shuts down: a program that exits while its threads use a device has
//! that race with or without this handler.
#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Set when the process begins to exit, and never cleared.
pub(crate) static EXITING: AtomicBool = AtomicBool::new(false);

extern "C" fn begin() {
    EXITING.store(true, Relaxed);
}

/// Registers the handler that sets [`EXITING`] when the process exits. Must come after `cuInit`.
pub(crate) fn register_handler() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: `begin` only stores a flag that lives as long as the process. Registration fails only where there is no
        // memory for its entry, and then calls during exit are not refused.
        unsafe { libc::atexit(begin) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watching_alone_changes_nothing() {
        register_handler();
        register_handler();
        assert!(!EXITING.load(Relaxed));
    }
}
