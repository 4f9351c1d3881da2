//! What a pool shares with the threads that use it.
//!
//! A thread that ends gives back what it kept. It must not own the pool for that, even for a moment: the last owner of a pool
//! returns its memory to the driver, which is nothing for a thread to do that is past its end.

use super::ground::Ground;
use super::magazine::Kept;
use super::middle::Middle;
use super::shards::{Here, Shards};
use bursar_core::{Latch, LatchGuard};
use std::sync::Arc;

/// The free memory of a pool: the threads' magazines, and what is behind them.
#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) shards: Shards,
    middle: Latch<Middle>,
}

impl Shelf {
    /// An empty one; a magazine holds at most so many units.
    pub(super) fn new(ground: Ground, magazine: u64) -> Arc<Self> {
        Arc::new(Self { shards: Shards::new(magazine), middle: Latch::new(Middle::new(ground)) })
    }

    #[inline(always)]
    pub(super) fn middle(&self) -> LatchGuard<'_, Middle> {
        self.middle.lock()
    }

    /// The current thread's place, from which it will give everything back when it ends.
    pub(super) fn here(self: &Arc<Self>) -> Here<'_> {
        self.shards.here(|index| super::shards::at_thread_end(index, Arc::downgrade(self)))
    }

    /// Empties magazines into the lanes of their streams; `true` if there was anything. With the middle in hand from the
    /// first on: a stream that ended between the two would leave its place, and what was freed on it, to another.
    pub(super) fn drain(&self, thread: Option<usize>, place: Option<usize>) -> bool {
        let mut middle = self.middle();
        let kept = self.shards.drain(thread, place);
        kept.iter().for_each(|&(place, Kept { at, len })| middle.give(place, at, len));
        !kept.is_empty()
    }

    /// Gives back what the thread with this number keeps, and lets the next thread of that number enter.
    pub(super) fn thread_ended(&self, index: usize) {
        self.shards.leave(index);
        self.drain(Some(index), None);
    }
}
