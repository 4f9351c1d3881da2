//! Patience between requests of one budget.

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

/// How often a request looks again while others are undecided. One of them might wait for this very request.
pub(crate) const ROUNDS: u32 = 1 << 16;

/// How often a new request lets others run while somebody waits.
const STEPS: u32 = 64;

/// How many wait for others to be decided. New requests hold back for a moment meanwhile, so that requests that fail over
/// and over cannot take turns at being undecided in front of one that fits.
#[derive(Debug)]
pub(crate) struct Courtesy(AtomicU32);

impl Courtesy {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Lets those who wait go first, for a moment.
    pub(crate) fn hold_back(&self) {
        for _ in 0..STEPS {
            if self.0.load(Ordering::Relaxed) == 0 {
                break;
            }
            yield_now();
        }
    }

    /// Waits from now on, until dropped.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Waiting(&self.0)
    }
}

/// Somebody who waits for others to be decided.
pub(crate) struct Waiting<'a>(&'a AtomicU32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
