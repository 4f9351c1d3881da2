//! What was freed on one stream, in that stream's own time.

use super::runs::{Run, Runs};
use bursar_core::RawEvent;

/// The free runs of one stream.
///
/// Time moves on with each event that is recorded on the stream: a run freed at time `t` is free for everyone once the
/// event that ended `t`, or a later one, has been passed; until then it is free for its own stream only, and for streams
/// that wait for such an event. So a free costs no event, and one event tells about everything freed before it.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) runs: Runs,
    /// The time that frees are stamped with now.
    pub(super) now: u64,
    /// The latest stamp of a run here.
    latest: u64,
    /// How much was freed since the stream was last asked how far it is.
    pub(super) news: u64,
    /// The last event recorded, and the time it ended, while it is not known to have been passed.
    pub(super) event: Option<Mark>,
    /// For other lanes, by their place: everything they stamped before this, this stream waits for or came after.
    seen: Vec<u64>,
    /// Which stream of this place it is, counted.
    pub(super) life: u64,
}

/// An event, and the time it ended: it covers every run stamped before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) event: RawEvent,
    pub(super) before: u64,
}

impl Lane {
    /// The empty lane of the next stream at the same place.
    pub(super) fn following(ended: &Self) -> Self {
        Self { life: ended.life + 1, ..Self::default() }
    }

    /// Frees a run on this stream, now. `false`, and nothing changes, where a part of it is free already.
    #[inline(always)]
    pub(super) fn free(&mut self, at: u64, len: u64) -> bool {
        let freed = self.runs.insert(Run { at, len, stamp: self.now });
        if freed {
            self.latest = self.now;
            self.news += len;
        }
        freed
    }

    /// Takes over runs that everyone may have.
    pub(super) fn gather(&mut self, runs: Runs) {
        if self.runs.is_empty() {
            self.runs = runs;
        } else {
            for run in runs.iter() {
                self.runs.insert(run);
            }
        }
    }

    /// Puts a run back as it was.
    pub(super) fn add(&mut self, run: Run) -> bool {
        self.latest = self.latest.max(run.stamp);
        self.runs.insert(run)
    }

    /// Ends the current time, for an event that is recorded next; answers what it covers.
    pub(super) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Before which time this stream is ordered after that of another place.
    pub(super) fn has_seen(&self, place: usize) -> u64 {
        self.seen.get(place).copied().unwrap_or(0)
    }

    pub(super) fn see(&mut self, place: usize, before: u64) {
        if self.seen.len() <= place {
            self.seen.resize(place + 1, 0);
        }
        self.seen[place] = self.seen[place].max(before);
    }

    /// Forgets what was seen of a place whose stream has ended.
    pub(super) fn forget(&mut self, place: usize) {
        if let Some(seen) = self.seen.get_mut(place) {
            *seen = 0;
        }
    }

    /// Takes out what was stamped before a time that has been passed, into `to`; answers how much that was.
    pub(super) fn pass(&mut self, passed: u64, to: &mut Runs) -> u64 {
        let before = self.runs.total();
        let mut hand_over = |run: Run| {
            let added = to.insert(Run { stamp: 0, ..run });
            debug_assert!(added, "{run:?} was nobody's");
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
