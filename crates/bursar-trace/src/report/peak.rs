//! The blocks that were live when most was.

use bursar_core::AllocTag;
use std::collections::HashMap;

/// A live block, where the stack put it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// Where its grant begins.
    pub(super) address: u64,
    /// What it costs.
    pub(super) granted: u64,
    /// What was asked for.
    pub(super) asked: u64,
    pub(super) tag: AllocTag,
    /// An index into the streams of the trace.
    pub(super) stream: u16,
    /// The operation that allocated it.
    pub(super) born: u64,
}

/// The live blocks, and those of the peak.
///
/// Copying the live blocks at every new peak would be slow while memory grows, and keeping every change since the peak
/// would take as much memory as the trace. So changes are kept until there are as many as live blocks, and only then is
/// the peak worked out: a step costs the same on average, and memory is bounded by what is live.
#[derive(Debug, Default)]
pub(super) struct Peak {
    live: HashMap<u32, Held>,
    bytes: u64,
    operation: u64,
    /// The changes since the peak; none once it has been worked out.
    since: Vec<Change>,
    known: Option<Vec<Held>>,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Came(u32),
    Went(u32, Held),
}

/// Changes that are kept however few blocks are live.
const SLACK: usize = 1024;

impl Peak {
    /// A block was allocated.
    pub(super) fn came(&mut self, number: u32, held: Held) {
        self.live.insert(number, held);
        self.changed(Change::Came(number));
    }

    /// A block was freed; `None` if it never came.
    pub(super) fn went(&mut self, number: u32) -> Option<Held> {
        let held = self.live.remove(&number)?;
        self.changed(Change::Went(number, held));
        Some(held)
    }

    fn changed(&mut self, change: Change) {
        if self.known.is_none() {
            self.since.push(change);
            if self.since.len() > self.live.len() + SLACK {
                self.known = Some(self.work_out());
                self.since = Vec::new();
            }
        }
    }

    /// So much is live after `operation`; answers whether it is more than ever before.
    pub(super) fn look(&mut self, operation: u64, bytes: u64) -> bool {
        let is_peak = bytes > self.bytes;
        if is_peak {
            (self.bytes, self.operation) = (bytes, operation);
            self.since.clear();
            self.known = None;
        }
        is_peak
    }

    fn work_out(&self) -> Vec<Held> {
        let mut live = self.live.clone();
        for change in self.since.iter().rev() {
            match *change {
                Change::Came(number) => live.remove(&number),
                Change::Went(number, held) => live.insert(number, held),
            };
        }
        let mut blocks: Vec<Held> = live.into_values().collect();
        blocks.sort_unstable_by_key(|held| (held.address, held.born));
        blocks
    }

    /// What is live and was never freed.
    pub(super) fn left(&self) -> u64 {
        self.live.len() as u64
    }

    /// The operation of the peak and its blocks, by address.
    pub(super) fn finish(mut self) -> (u64, Vec<Held>) {
        let blocks = self.known.take().unwrap_or_else(|| self.work_out());
        (self.operation, blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(number: u64, asked: u64) -> Held {
        Held { address: number * 4096, granted: asked, asked, tag: AllocTag::UNTAGGED, stream: 0, born: number }
    }

    #[test]
    fn the_blocks_of_the_first_highest_peak_are_found_however_long_ago_it_was() {
        for seed in 0..40u64 {
            let mut state = seed + 1;
            let mut draw = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let (mut peak, mut live, mut bytes) = (Peak::default(), Vec::<(u32, Held)>::new(), 0);
            let mut expected = (0, 0, Vec::new());
            for operation in 0..6000u64 {
                let grows = draw(10) < if operation / 1500 % 2 == 0 { 6 } else { 4 };
                if grows || live.is_empty() {
                    let (number, block) = (operation as u32, held(operation, draw(500) + 1));
                    peak.came(number, block);
                    live.push((number, block));
                    bytes += block.asked;
                } else {
                    let (number, block) = live.swap_remove(draw(live.len() as u64) as usize);
                    assert_eq!(peak.went(number), Some(block));
                    bytes -= block.asked;
                }
                let is_peak = peak.look(operation, bytes);
                assert_eq!(is_peak, bytes > expected.0, "seed {seed}");
                if is_peak {
                    expected = (bytes, operation, live.iter().map(|(_, block)| *block).collect());
                }
                assert!(peak.since.len() <= live.len() + SLACK + 1, "memory is bounded");
            }
            expected.2.sort_by_key(|block: &Held| block.address);
            assert_eq!(peak.left(), live.len() as u64);
            assert_eq!(peak.finish(), (expected.1, expected.2), "seed {seed}");
        }
    }

    #[test]
    fn a_block_that_never_came_does_not_go() {
        assert_eq!(Peak::default().went(7), None);
    }
}
