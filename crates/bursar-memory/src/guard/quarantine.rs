//! Freed blocks that are kept for a while.

use super::live_blocks::ReportOnce;
use bursar_core::{DeviceBlock, DevicePtr, Generation, Stream};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A block that its user has freed and the memory below has not got back.
#[derive(Debug)]
pub(super) struct FreedBlock {
    pub(super) whole: DeviceBlock,
    /// The stream on which everything that was done with it is ordered.
    pub(super) stream: Stream,
    /// The part of it that was filled; none where that failed.
    pub(super) filled: Option<Range<u64>>,
    /// The address that its user had.
    pub(super) ptr: DevicePtr,
    pub(super) generation: Generation,
    pub(super) reported: ReportOnce,
}

/// A block that its user has freed while it slept: it is looked at and filled when it is awake.
#[derive(Debug)]
pub(super) struct SleepingBlock {
    /// The block, of which nothing is filled.
    pub(super) freed: FreedBlock,
    /// The bytes that its user had.
    pub(super) bytes: u64,
    /// The flag of its margins.
    pub(super) reported: ReportOnce,
}

/// Freed blocks, oldest first, and those that should have left and could not.
#[derive(Debug)]
pub(super) struct Quarantine {
    capacity: u64,
    contents: Mutex<Contents>,
}

#[derive(Debug, Default)]
struct Contents {
    blocks: VecDeque<FreedBlock>,
    bytes: u64,
    stuck: Vec<FreedBlock>,
    asleep: Vec<SleepingBlock>,
}

impl Contents {
    fn pop(&mut self) -> Option<FreedBlock> {
        let oldest = self.blocks.pop_front()?;
        self.bytes -= oldest.whole.granted().get();
        Some(oldest)
    }
}

impl Quarantine {
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity, contents: Mutex::default() }
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many bytes are kept.
    pub(super) fn bytes(&self) -> u64 {
        self.contents().bytes
    }

    /// Keeps a block; one that is larger than all that may be kept comes back.
    pub(super) fn keep(&self, freed: FreedBlock) -> Option<FreedBlock> {
        let bytes = freed.whole.granted().get();
        if bytes > self.capacity {
            return Some(freed);
        }
        let mut contents = self.contents();
        contents.bytes += bytes;
        contents.blocks.push_back(freed);
        None
    }

    /// Keeps a block that was to leave and was not taken, until everything is taken out the next time.
    pub(super) fn keep_stuck(&self, freed: FreedBlock) {
        self.contents().stuck.push(freed);
    }

    /// Keeps a block that was freed while it slept.
    pub(super) fn keep_asleep(&self, freed: SleepingBlock) {
        self.contents().asleep.push(freed);
    }

    /// Takes the blocks out that were freed while they slept, as far as `is_awake` says yes to them.
    pub(super) fn take_awake(&self, is_awake: impl Fn(&SleepingBlock) -> bool) -> Vec<SleepingBlock> {
        self.contents().asleep.extract_if(.., |freed| is_awake(freed)).collect()
    }

    /// Takes the oldest block out while more is kept than may be.
    pub(super) fn pop_excess(&self) -> Option<FreedBlock> {
        let mut contents = self.contents();
        if contents.bytes > self.capacity { contents.pop() } else { None }
    }

    /// Takes every block out.
    pub(super) fn take_all(&self) -> VecDeque<FreedBlock> {
        let mut contents = self.contents();
        contents.bytes = 0;
        let mut all = std::mem::take(&mut contents.blocks);
        all.extend(contents.stuck.drain(..));
        all
    }

    /// Puts blocks back that were taken out to be inspected; they are older than those that came since.
    pub(super) fn put_back(&self, mut blocks: VecDeque<FreedBlock>) {
        let mut contents = self.contents();
        contents.bytes += blocks.iter().map(|freed| freed.whole.granted().get()).sum::<u64>();
        blocks.append(&mut contents.blocks);
        contents.blocks = blocks;
    }
}
