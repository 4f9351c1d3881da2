//! Frames that follow their stream.
//!
//! What lies free on the stream of a request, whose work may still touch it, is mapped a second time, where it is needed. The
//! addresses that it left are *vacated*: they are unmapped once the stream has passed what was freed there. So a program
//! that runs ahead of its device holds little more than one that waits for it.

use super::super::growth_plan::{FollowingFrame, FrameMove, GrowthPlan};
use super::super::runs::Runs;
use super::choice::take_largest;
use super::{AddressSpace, WholeFrame};

/// The most frames that follow a stream in one growth: each takes as long as one that is moved, and what follows cannot be
/// gathered into larger frames.
const MOST_FOLLOWING: usize = 256;

/// The most addresses that frames which followed may have left and not been unmapped from, in times of what is held: there
/// are [more](super::super::layer::ADDRESSES) of them.
const MOST_VACATED: u64 = 4;

/// Addresses that a frame left to follow its stream. It is unmapped there once the stream at `slot` has passed what was
/// stamped `stamp`.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct VacatedRange {
    pub(in super::super) at: u64,
    pub(in super::super) len: u64,
    pub(in super::super) slot: usize,
    pub(in super::super) stamp: u64,
}

impl VacatedRange {
    /// Joins ranges that their streams have passed where they lie side by side, so that one call unmaps them: a frame takes a
    /// quarter less then.
    pub(in super::super) fn joined(mut passed: Vec<Self>) -> Vec<Self> {
        passed.sort_unstable_by_key(|range| range.at);
        passed.dedup_by(|next, last| {
            let is_beside = last.at + last.len == next.at;
            if is_beside {
                // Both were passed, whatever the stamp of either.
                (last.len, last.stamp) = (last.len + next.len, 0);
            }
            is_beside
        });
        passed
    }
}

impl AddressSpace {
    /// Chooses frames that lie whole in the stream's `own` runs for a growth, the largest first, and one that is longer than
    /// what is missing if there are addresses for it; returns the units that are missing then.
    pub(super) fn take_following(&mut self, growth: &mut GrowthPlan, missing: u64, own: &mut Runs) -> u64 {
        let vacated = self.vacated.iter().map(|vacated| vacated.len).sum::<u64>();
        if missing == 0 || vacated + missing > self.held * MOST_VACATED {
            return missing;
        }
        let whole = self.whole_frames(own);
        let missing = take_largest(whole, missing, MOST_FOLLOWING, |whole| self.follow(growth, whole, own));
        let larger = if missing > 0 { self.extend_to_larger(growth, missing, own) } else { None };
        match larger {
            Some(larger) => {
                self.follow(growth, larger, own);
                0
            }
            None => missing,
        }
    }

    fn follow(&mut self, growth: &mut GrowthPlan, whole: WholeFrame, own: &mut Runs) {
        let removed = self.remove_frame(whole.at, own).into_iter();
        growth.follow.extend(removed.map(|FrameMove { from, placed }| FollowingFrame {
            from,
            placed,
            stamp: whole.stamp,
        }));
    }

    /// Keeps addresses that a frame has left, and is mapped at until a stream has passed a time.
    pub(in super::super) fn vacate(&mut self, vacated: VacatedRange) {
        self.vacated.push(vacated);
    }

    /// Takes out the vacated addresses for which `is_passed` is true.
    pub(in super::super) fn take_vacated(&mut self, is_passed: impl Fn(&VacatedRange) -> bool) -> Vec<VacatedRange> {
        self.vacated.extract_if(.., |vacated| is_passed(vacated)).collect()
    }

    /// Returns the addresses that are vacated and not unmapped.
    pub(in super::super) fn vacated(&self) -> &[VacatedRange] {
        &self.vacated
    }
}
