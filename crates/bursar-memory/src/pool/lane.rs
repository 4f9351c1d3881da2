//! A lane: the memory that was freed on one stream, in that stream's own time.

use super::runs::{Run, Runs};
use bursar_core::StreamProgress;

/// The free runs of one stream.
///
/// A free is stamped with the lane's time, which moves on with each question that is put to the driver about the
/// stream: a run stamped `t` is common once an event that ended `t`, or a later one, has been passed; until then it is
/// free for its own stream only, and for streams that wait for such an event. So a free costs no event, and one event
/// tells about everything freed before it. A stream that is idle is asked directly, and one that is not is given an
/// event to be asked about later.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) runs: Runs,
    /// The time that frees are stamped with now.
    pub(super) now: u64,
    /// The stream is known to have passed everything stamped before this time.
    pub(super) passed: u64,
    /// The latest stamp of a run here.
    latest: u64,
    /// Set while there may be runs here that the stream claimed when everyone could have had them.
    pub(super) has_claimed: bool,
    /// The units that were freed since the stream was last asked how far it is.
    pub(super) unasked: u64,
    /// The last event recorded, while it is not known to have been passed, at the time it ended: the stream has passed
    /// every run stamped before.
    pub(super) progress: StreamProgress,
    /// For other lanes, by their slot: this stream comes after everything they stamped before this time.
    ordered: Vec<u64>,
    /// The number of streams that had this slot before.
    pub(super) epoch: u64,
}

impl Default for Lane {
    /// Makes the lane of a new stream. Its time begins at 1, so that what is stamped 0, because every stream may have it,
    /// was passed before anything.
    fn default() -> Self {
        let (runs, progress, ordered) = (Runs::default(), StreamProgress::default(), Vec::new());
        Self { runs, now: 1, passed: 1, latest: 0, has_claimed: false, unasked: 0, progress, ordered, epoch: 0 }
    }
}

impl Lane {
    /// Makes the empty lane of the next stream at the same slot.
    pub(super) fn following(ended: &Self) -> Self {
        Self { epoch: ended.epoch + 1, ..Self::default() }
    }

    /// Frees a run on this stream, now. Returns `false`, and nothing changes, where a part of it is free already.
    #[inline(always)]
    pub(super) fn free(&mut self, at: u64, len: u64) -> bool {
        let freed = self.runs.insert(Run { at, len, stamp: self.now });
        if freed {
            self.latest = self.now;
            self.unasked += len;
        }
        freed
    }

    /// Returns whether the stream is known to have passed everything that was ever freed on it, whether or not that was
    /// taken again since.
    pub(super) const fn has_passed_all(&self) -> bool {
        self.latest < self.passed
    }

    /// Adds runs that every stream may have.
    pub(super) fn gather(&mut self, runs: Runs) {
        self.has_claimed = true;
        if self.runs.is_empty() {
            self.runs = runs;
        } else {
            for run in runs.iter() {
                self.runs.insert(run);
            }
        }
    }

    /// Adds a run as it was, or as it was freed before.
    pub(super) fn add(&mut self, run: Run) -> bool {
        self.latest = self.latest.max(run.stamp);
        self.runs.insert(run)
    }

    /// Ends the current time, for an event that is recorded next; returns the time before which it covers everything.
    pub(super) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Returns the time of another lane before which this stream comes after everything stamped there.
    pub(super) fn ordered_before(&self, slot: usize) -> u64 {
        self.ordered.get(slot).copied().unwrap_or(0)
    }

    /// Enters that this stream comes after everything stamped before a time of another lane.
    pub(super) fn set_ordered(&mut self, slot: usize, before: u64) {
        if self.ordered.len() <= slot {
            self.ordered.resize(slot + 1, 0);
        }
        self.ordered[slot] = self.ordered[slot].max(before);
    }

    /// Forgets the order with a slot whose stream has ended.
    pub(super) fn forget(&mut self, slot: usize) {
        if let Some(before) = self.ordered.get_mut(slot) {
            *before = 0;
        }
    }

    /// Moves what was stamped before the time that has been passed into `to`; returns how much that was, in units.
    pub(super) fn hand_over_passed(&mut self, to: &mut Runs) -> u64 {
        let (before, passed) = (self.runs.total(), self.passed);
        self.has_claimed = false;
        let mut hand_over = |run: Run| {
            let added = to.insert(Run { stamp: 0, ..run });
            debug_assert!(added, "{run:?} was in no other list");
        };
        if self.latest < passed {
            self.runs.iter().for_each(hand_over);
            self.runs.clear();
        } else {
            let done: Vec<_> = self.runs.iter().filter(|run| run.stamp < passed).collect();
            for run in done {
                self.runs.cut(run.range());
                hand_over(run);
            }
        }
        before - self.runs.total()
    }
}
