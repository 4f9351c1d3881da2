//! Forks. A process that is forked off has the memory of the other one and none of its threads, so a lock that one of them held
//! is never given back in it; and a driver is of no use there. Every call asks here first, before it takes a lock.
#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Returns whether this process was forked off one that [`watch`] was called in.
#[inline(always)]
pub(crate) fn is_forked() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}

/// Has processes that are forked off from now on told so.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the function only stores a flag, which may be done in a process that was forked off.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        assert_eq!(refused, 0, "pthread_atfork fails for want of memory alone");
    });
}

extern "C" fn in_child() {
    IS_FORKED.store(true, Ordering::Relaxed);
}
