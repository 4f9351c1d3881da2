//! Finds the blocks that were live at the peak.

use bursar_core::AllocTag;
use std::collections::HashMap;

/// A live block with its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlacedBlock {
    /// The address of its first granted byte.
    pub(super) address: u64,
    /// The bytes that were granted.
    pub(super) granted: u64,
    /// The bytes that were requested.
    pub(super) requested: u64,
    pub(super) tag: AllocTag,
    /// The index of its stream in the trace.
    pub(super) stream: u16,
    /// The number of the operation that allocated it.
    pub(super) allocated_at: u64,
}

/// The live blocks, and those of the peak so far.
///
/// Copying the live blocks at every new peak would be slow while memory grows, and keeping every change since the peak
/// would take as much memory as the trace. So changes are kept until there are as many as live blocks, and only then is
/// the peak computed: a step costs the same on average, and memory is bounded by the number of live blocks.
#[derive(Debug, Default)]
pub(super) struct PeakTracker {
    live: HashMap<u32, PlacedBlock>,
    bytes: u64,
    operation: u64,
    /// The changes since the peak; empty once its blocks are computed.
    since: Vec<Change>,
    at_peak: Option<Vec<PlacedBlock>>,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Allocated(u32),
    Freed(u32, PlacedBlock),
}

/// The number of changes that are kept however few blocks are live.
const SLACK: usize = 1024;

impl PeakTracker {
    /// Adds a block that was allocated.
    pub(super) fn allocate(&mut self, number: u32, block: PlacedBlock) {
        self.live.insert(number, block);
        self.add_change(Change::Allocated(number));
    }

    /// Removes a block that was freed, and returns it; `None` if it was never allocated.
    pub(super) fn free(&mut self, number: u32) -> Option<PlacedBlock> {
        let block = self.live.remove(&number)?;
        self.add_change(Change::Freed(number, block));
        Some(block)
    }

    fn add_change(&mut self, change: Change) {
        if self.at_peak.is_none() {
            self.since.push(change);
            if self.since.len() > self.live.len() + SLACK {
                self.at_peak = Some(self.compute());
                self.since = Vec::new();
            }
        }
    }

    /// Sets the bytes that are live after `operation`, and returns whether they are more than ever before.
    pub(super) fn set_live(&mut self, operation: u64, bytes: u64) -> bool {
        let is_peak = bytes > self.bytes;
        if is_peak {
            (self.bytes, self.operation) = (bytes, operation);
            self.since.clear();
            self.at_peak = None;
        }
        is_peak
    }

    fn compute(&self) -> Vec<PlacedBlock> {
        let mut live = self.live.clone();
        for change in self.since.iter().rev() {
            match *change {
                Change::Allocated(number) => live.remove(&number),
                Change::Freed(number, block) => live.insert(number, block),
            };
        }
        let mut blocks: Vec<PlacedBlock> = live.into_values().collect();
        blocks.sort_unstable_by_key(|block| (block.address, block.allocated_at));
        blocks
    }

    /// Returns the number of live blocks.
    pub(super) fn live_blocks(&self) -> u64 {
        self.live.len() as u64
    }

    /// Returns the operation of the peak and its blocks, by address.
    pub(super) fn finish(mut self) -> (u64, Vec<PlacedBlock>) {
        let blocks = self.at_peak.take().unwrap_or_else(|| self.compute());
        (self.operation, blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64, requested: u64) -> PlacedBlock {
        PlacedBlock {
            address: number * 4096,
            granted: requested,
            requested,
            tag: AllocTag::UNTAGGED,
            stream: 0,
            allocated_at: number,
        }
    }

    #[test]
    fn the_blocks_of_the_first_highest_peak_are_found_however_long_ago_it_was() {
        for seed in 0..40u64 {
            let mut state = seed + 1;
            let mut draw = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let (mut peak, mut live, mut bytes) = (PeakTracker::default(), Vec::<(u32, PlacedBlock)>::new(), 0);
            let mut expected = (0, 0, Vec::new());
            for operation in 0..6000u64 {
                let grows = draw(10) < if operation / 1500 % 2 == 0 { 6 } else { 4 };
                if grows || live.is_empty() {
                    let (number, block) = (operation as u32, block(operation, draw(500) + 1));
                    peak.allocate(number, block);
                    live.push((number, block));
                    bytes += block.requested;
                } else {
                    let (number, block) = live.swap_remove(draw(live.len() as u64) as usize);
                    assert_eq!(peak.free(number), Some(block));
                    bytes -= block.requested;
                }
                let is_peak = peak.set_live(operation, bytes);
                assert_eq!(is_peak, bytes > expected.0, "seed {seed}");
                if is_peak {
                    expected = (bytes, operation, live.iter().map(|(_, block)| *block).collect());
                }
                assert!(peak.since.len() <= live.len() + SLACK + 1, "memory is bounded");
            }
            expected.2.sort_by_key(|block: &PlacedBlock| block.address);
            assert_eq!(peak.live_blocks(), live.len() as u64);
            assert_eq!(peak.finish(), (expected.1, expected.2), "seed {seed}");
        }
    }

    #[test]
    fn a_block_that_never_came_does_not_go() {
        assert_eq!(PeakTracker::default().free(7), None);
    }
}
