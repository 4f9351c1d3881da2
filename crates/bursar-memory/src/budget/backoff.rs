//! Backing off between requests of one budget.

#[cfg(loom)]
use loom::{
    sync::atomic::{AtomicU32, Ordering},
    thread::yield_now,
};
#[cfg(not(loom))]
use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread::yield_now,
};

/// The number of times a request tries again while others are undecided: bounded, since one of them might wait for this
/// one.
pub(crate) const MAX_ROUNDS: u32 = 1 << 16;

/// The number of times a new request yields while somebody waits.
const YIELDS: u32 = 64;

/// The number of requests that wait for others to be decided. New requests yield for a moment meanwhile, so that
/// requests that fail over and over cannot take turns at being undecided in front of one that fits.
#[derive(Debug)]
pub(crate) struct Backoff(AtomicU32);

impl Backoff {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Lets those who wait go first, for a moment.
    pub(crate) fn yield_to_waiters(&self) {
        for _ in 0..YIELDS {
            if self.0.load(Ordering::Relaxed) == 0 {
                break;
            }
            yield_now();
        }
    }

    /// Counts as a waiter from now on, until the guard is dropped.
    pub(crate) fn wait(&self) -> WaitGuard<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        WaitGuard(&self.0)
    }
}

/// A request that waits for others to be decided.
pub(crate) struct WaitGuard<'a>(&'a AtomicU32);

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
