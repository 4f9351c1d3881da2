//! Freed blocks that are kept for a while.

use super::live::Once;
use bursar_core::{DeviceBlock, DevicePtr, Generation, Stream};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A block that its user has freed and the memory below has not got back.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) whole: DeviceBlock,
    /// Where everything that was done with it is ordered.
    pub(super) stream: Stream,
    /// The part of it that was filled; none where that failed.
    pub(super) filled: Option<Range<u64>>,
    /// What its user knew it as.
    pub(super) ptr: DevicePtr,
    pub(super) generation: Generation,
    pub(super) reported: Once,
}

/// Freed blocks, oldest first, and those that should have left and could not.
#[derive(Debug)]
pub(super) struct Quarantine {
    capacity: u64,
    kept: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    blocks: VecDeque<Kept>,
    bytes: u64,
    stuck: Vec<Kept>,
}

impl Held {
    fn pop(&mut self) -> Option<Kept> {
        let oldest = self.blocks.pop_front()?;
        self.bytes -= oldest.whole.granted().get();
        Some(oldest)
    }
}

impl Quarantine {
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity, kept: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much is kept.
    pub(super) fn bytes(&self) -> u64 {
        self.held().bytes
    }

    /// Keeps a block; one that is larger than all that may be kept comes back.
    pub(super) fn keep(&self, kept: Kept) -> Option<Kept> {
        let bytes = kept.whole.granted().get();
        if bytes > self.capacity {
            return Some(kept);
        }
        let mut held = self.held();
        held.bytes += bytes;
        held.blocks.push_back(kept);
        None
    }

    /// Keeps a block that was to leave and was not taken, until the next time everything is to.
    pub(super) fn keep_stuck(&self, kept: Kept) {
        self.held().stuck.push(kept);
    }

    /// What has to leave now: the oldest, while more is kept than may be.
    pub(super) fn leaving(&self) -> Option<Kept> {
        let mut held = self.held();
        if held.bytes > self.capacity { held.pop() } else { None }
    }

    /// Empties it.
    pub(super) fn take_all(&self) -> VecDeque<Kept> {
        let mut held = self.held();
        held.bytes = 0;
        let mut all = std::mem::take(&mut held.blocks);
        all.extend(held.stuck.drain(..));
        all
    }

    /// Puts blocks back that were taken out to be looked at; they are older than those that came since.
    pub(super) fn put_back(&self, mut blocks: VecDeque<Kept>) {
        let mut held = self.held();
        held.bytes += blocks.iter().map(|kept| kept.whole.granted().get()).sum::<u64>();
        blocks.append(&mut held.blocks);
        held.blocks = blocks;
    }
}
