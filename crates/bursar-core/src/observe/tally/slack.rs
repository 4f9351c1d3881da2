//! The slack of a thread: what it may allocate without claiming it, and free without giving the claim up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The amount that one thread has claimed of a level beyond what it holds: bytes and blocks in one word, so that one
/// addition moves both, and one test finds out whether either left its bounds.
///
/// ```text
///  63 …… 29   28 …… 9    8     7 …… 0
///   guard      bytes   guard   blocks
/// ```
///
/// A number that goes below zero or above its bits changes the guard above it, as does a block of more bytes than the
/// bits hold. No device has 2^53 of them, which would be too many. The topmost bit is a guard that can be set to halt
/// all steps.
#[derive(Debug, Default)]
pub(super) struct Slack(AtomicU64);

/// The change that a block makes to a slack.
#[derive(Clone, Copy)]
pub(super) struct Step(u64);

const BYTES_AT: u32 = 9;
/// The bounds that a slack always stays below, in bytes and in blocks.
pub(super) const BOUND_BYTES: u64 = 1 << 20;
pub(super) const BOUND_COUNT: u64 = 1 << 8;
const HALT: u64 = 1 << 63;
const GUARD: u64 = (!0 << (BYTES_AT + 20)) | BOUND_COUNT;

impl Step {
    /// The step of a block that was freed: its thread may allocate as much again.
    #[inline]
    pub(super) const fn up(bytes: u64) -> Self {
        Self((bytes << BYTES_AT) | 1)
    }

    /// The step of a block that was granted.
    #[inline]
    pub(super) const fn down(bytes: u64) -> Self {
        Self(Self::up(bytes).0.wrapping_neg())
    }
}

impl Slack {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Moves two slacks by a step, unless one of them would leave its bounds: then both are moved back, which only
    /// their thread sees, and `false` is returned.
    #[inline]
    pub(super) fn shift(one: &Self, other: &Self, step: Step) -> bool {
        one.add(step.0);
        other.add(step.0);
        let within = (one.0.load(Relaxed) | other.0.load(Relaxed)) & GUARD == 0;
        if !within {
            one.add(step.0.wrapping_neg());
            other.add(step.0.wrapping_neg());
        }
        within
    }

    #[inline]
    fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Resets it.
    pub(super) fn clear(&self) {
        self.0.store(0, Relaxed);
    }

    /// Returns bytes and blocks, while steps are not halted.
    #[inline]
    pub(super) fn get(&self) -> (u64, u64) {
        debug_assert!(!self.is_halted());
        let word = self.0.load(Relaxed);
        (word >> BYTES_AT, word % BOUND_COUNT)
    }

    #[inline]
    pub(super) fn set(&self, bytes: u64, count: u64) {
        debug_assert!(bytes < BOUND_BYTES && count < BOUND_COUNT);
        self.0.store((bytes << BYTES_AT) | count, Relaxed);
    }

    /// Returns whether every step fails.
    #[inline]
    pub(super) fn is_halted(&self) -> bool {
        self.0.load(Relaxed) & HALT != 0
    }

    /// Makes every step from here on fail, or lets steps succeed again.
    pub(super) fn halt(&self, on: bool) {
        let word = self.0.load(Relaxed) & !HALT;
        self.0.store(if on { word | HALT } else { word }, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slack((bytes, count): (u64, u64)) -> Slack {
        let slack = Slack::default();
        slack.set(bytes, count);
        slack
    }

    /// Returns the slack after a step, if the step is possible.
    fn shifted(from: (u64, u64), step: Step) -> Option<(u64, u64)> {
        let (one, other) = (slack(from), slack(from));
        let moved = Slack::shift(&one, &other, step);
        assert_eq!(one.get(), other.get());
        assert!(moved || one.get() == from, "what cannot be moved stays");
        for halted in [true, false] {
            let (one, other) = (slack(from), slack(from));
            one.halt(true);
            one.halt(halted);
            assert_eq!(Slack::shift(&one, &other, step), moved && !halted);
        }
        moved.then(|| one.get())
    }

    #[test]
    fn g2_bytes_and_blocks_stay_within_their_bounds_and_apart() {
        let edges = [0, 1, 2, 255, 256, 4096, BOUND_BYTES / 2, BOUND_BYTES - 2, BOUND_BYTES - 1];
        let sizes = (0..53).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for block in sizes.chain(edges) {
            for bytes in edges {
                for count in [0, 1, 2, 128, 254, 255] {
                    let down = (block <= bytes && count > 0).then(|| (bytes - block, count - 1));
                    assert_eq!(shifted((bytes, count), Step::down(block)), down, "{bytes} in {count} less {block}");
                    let fits = block + bytes < BOUND_BYTES && count + 1 < BOUND_COUNT;
                    let up = fits.then(|| (bytes + block, count + 1));
                    assert_eq!(shifted((bytes, count), Step::up(block)), up, "{bytes} in {count} and {block}");
                }
            }
        }
    }

    #[test]
    fn g2_two_slacks_move_together_or_not_at_all() {
        let (one, other) = (slack((1000, 10)), slack((10, 10)));
        for (first, second) in [(&one, &other), (&other, &one)] {
            assert!(!Slack::shift(first, second, Step::down(11)));
            assert_eq!((one.get(), other.get()), ((1000, 10), (10, 10)));
        }
        assert!(Slack::shift(&one, &other, Step::down(10)));
        assert_eq!((one.get(), other.get()), ((990, 9), (0, 9)));
    }
}
