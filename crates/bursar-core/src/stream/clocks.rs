//! Clocks of submissions, and what each stream is known to come after.
//!
//! Submissions to a stream are numbered when they begin, before anything is launched, and counted when they end, after
//! everything was launched. While as many have ended as have begun, an event recorded on the stream comes after all of
//! them. While one is open, the event comes after those that had begun when the two counts were last seen to be equal.
//! Each stream has a row with one number for each other slot of the table: the last submission there that it has waited
//! for. Another row has the submissions that the host knows to have run, which come before everything that is submitted
//! next on any stream.
//!
//! Numbers never go back, not even when a slot is taken by another stream, so the meaning of each never changes. A row
//! is wiped with its stream, since the next one there has waited for nothing.

use super::{STREAM_SLOTS, Stream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number of slots whose numbers are passed on when one stream waits for another that has waited itself. Those of
/// slots beyond are not passed on, which costs a wait that was not needed.
const HANDED_ON: usize = 64;

type Row = Box<[AtomicU64]>;

fn row() -> Row {
    (0..STREAM_SLOTS).map(|_| AtomicU64::new(0)).collect()
}

/// The submissions to one slot.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Clock {
    begun: AtomicU64,
    ended: AtomicU64,
    /// The number up to which all are known to have ended.
    over: AtomicU64,
}

/// The clocks of one context's streams, and how much of each the others have seen.
#[derive(Debug)]
pub(crate) struct Clocks {
    clocks: Box<[Clock]>,
    seen: Box<[OnceLock<Row>]>,
    known: Row,
    used: AtomicUsize,
}

/// A snapshot of a stream: the number up to which its submissions were over, and what it had seen.
#[derive(Debug)]
pub(crate) struct View {
    over: u64,
    seen: [u64; HANDED_ON],
    len: usize,
}

impl Default for Clocks {
    fn default() -> Self {
        let clocks = (0..STREAM_SLOTS).map(|_| Clock::default()).collect();
        let seen = (0..STREAM_SLOTS).map(|_| OnceLock::new()).collect();
        Self { clocks, seen, known: row(), used: AtomicUsize::new(0) }
    }
}

impl Clocks {
    /// Begins a submission to `stream` and returns its number; [`end`](Self::end) is called once for it.
    #[inline]
    pub(crate) fn begin(&self, stream: Stream) -> u64 {
        let slot = stream.slot();
        if self.used.load(Ordering::Relaxed) <= slot {
            self.used.fetch_max(slot + 1, Ordering::Relaxed);
        }
        let clock = &self.clocks[slot];
        let ended = clock.ended.load(Ordering::Acquire);
        // Before whoever began looks whether the block is asleep: see `DeviceContext::wait_for_all_streams`.
        let before = clock.begun.fetch_add(1, Ordering::SeqCst);
        // `ended` was read first: if it equals the number that had begun, those are all over.
        if ended == before {
            clock.over.fetch_max(before, Ordering::AcqRel);
        }
        before + 1
    }

    /// Ends a submission: everything of it was launched.
    #[inline]
    pub(crate) fn end(&self, stream: Stream) {
        self.clocks[stream.slot()].ended.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns how many submissions to the stream at a slot have begun.
    pub(crate) fn begun(&self, slot: usize) -> u64 {
        self.clocks[slot].begun.load(Ordering::SeqCst)
    }

    /// Returns whether the first `number` submissions to the stream at a slot have ended.
    pub(crate) fn is_over(&self, slot: usize, number: u64) -> bool {
        let clock = &self.clocks[slot];
        let ended = clock.ended.load(Ordering::Acquire);
        ended == clock.begun.load(Ordering::Acquire) || clock.over.load(Ordering::Acquire) >= number
    }

    /// Counts work that was submitted already and returns its number.
    pub(crate) fn pass(&self, stream: Stream) -> u64 {
        let number = self.begin(stream);
        self.end(stream);
        number
    }

    /// Returns whether everything submitted to `waiter` from now on comes after `number` of `target`.
    pub(crate) fn has_seen(&self, waiter: Stream, target: Stream, number: u64) -> bool {
        self.is_known(target, number)
            || self.seen[waiter.slot()].get().is_some_and(|row| row[target.slot()].load(Ordering::Acquire) >= number)
    }

    /// Returns whether `number` of `target` has run, as far as the host knows.
    pub(crate) fn is_known(&self, target: Stream, number: u64) -> bool {
        self.known[target.slot()].load(Ordering::Acquire) >= number
    }

    /// Takes a snapshot of `stream`. An event recorded on it after this, or a wait for it, covers all that the snapshot
    /// shows.
    pub(crate) fn look(&self, stream: Stream) -> View {
        let clock = &self.clocks[stream.slot()];
        let ended = clock.ended.load(Ordering::Acquire);
        let begun = clock.begun.load(Ordering::Acquire);
        let over = if ended == begun { begun } else { clock.over.load(Ordering::Acquire) };
        let len = self.used.load(Ordering::Relaxed).min(HANDED_ON);
        let mut view = View { over, seen: [0; HANDED_ON], len };
        if let Some(row) = self.seen[stream.slot()].get() {
            for (copy, number) in view.seen[..len].iter_mut().zip(row) {
                *copy = number.load(Ordering::Acquire);
            }
        }
        view
    }

    /// Records that `waiter` was made to wait for what `view` shows of `target`.
    pub(crate) fn waited(&self, waiter: Stream, target: Stream, view: &View) {
        view.enter(self.seen[waiter.slot()].get_or_init(row), target);
    }

    /// Records that what `view` shows of `stream` has run.
    pub(crate) fn completed(&self, stream: Stream, view: &View) {
        view.enter(&self.known, stream);
    }

    /// Wipes the row of a stream that has ended: the next one in its slot has waited for nothing.
    pub(crate) fn forget(&self, stream: Stream) {
        if let Some(row) = self.seen[stream.slot()].get() {
            row.iter().for_each(|number| number.store(0, Ordering::Release));
        }
    }
}

impl View {
    fn enter(&self, row: &Row, of: Stream) {
        let raise = |slot: usize, number| {
            if row[slot].load(Ordering::Relaxed) < number {
                row[slot].fetch_max(number, Ordering::AcqRel);
            }
        };
        raise(of.slot(), self.over);
        self.seen[..self.len].iter().enumerate().for_each(|(slot, &number)| raise(slot, number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::StreamTable;
    use crate::{DeviceId, RawStream};

    fn streams() -> [Stream; 3] {
        let table = StreamTable::new(1, DeviceId(0));
        [10, 11, 12].map(|raw| table.own(RawStream(raw), None).expect("room"))
    }

    #[test]
    fn t5_a_stream_has_seen_what_it_waited_for_and_what_that_had_seen() {
        let (clocks, [a, b, c]) = (Clocks::default(), streams());
        let (first, second) = (clocks.pass(a), clocks.pass(b));
        assert!(!clocks.has_seen(b, a, first));
        clocks.waited(b, a, &clocks.look(a));
        assert!(clocks.has_seen(b, a, first) && !clocks.has_seen(c, a, first));
        clocks.waited(c, b, &clocks.look(b));
        assert!(clocks.has_seen(c, b, second) && clocks.has_seen(c, a, first));
        let later = clocks.pass(a);
        assert!(!clocks.has_seen(b, a, later) && !clocks.has_seen(c, a, later));
    }

    #[test]
    fn t4_a_look_covers_what_has_ended_and_nothing_that_is_open_or_later() {
        let (clocks, [a, b, _]) = (Clocks::default(), streams());
        let before = clocks.pass(a);
        let [first, second] = [clocks.begin(a), clocks.begin(a)];
        clocks.end(a);
        clocks.waited(b, a, &clocks.look(a));
        assert!(clocks.has_seen(b, a, before), "it was over before the others began");
        assert!(!clocks.has_seen(b, a, first) && !clocks.has_seen(b, a, second), "one of them is open");
        clocks.end(a);
        let view = clocks.look(a);
        let after = clocks.pass(a);
        clocks.waited(b, a, &view);
        assert!(clocks.has_seen(b, a, second) && !clocks.has_seen(b, a, after));
    }

    #[test]
    fn t1_what_the_host_knows_is_before_everything_and_a_wiped_row_knows_no_more() {
        let (clocks, [a, b, c]) = (Clocks::default(), streams());
        let (of_a, of_b) = (clocks.pass(a), clocks.pass(b));
        clocks.waited(c, a, &clocks.look(a));
        clocks.completed(b, &clocks.look(b));
        assert!(clocks.has_seen(a, b, of_b) && clocks.has_seen(c, b, of_b) && clocks.is_known(b, of_b));
        clocks.forget(c);
        assert!(!clocks.has_seen(c, a, of_a) && clocks.has_seen(c, b, of_b));
    }

    #[test]
    fn t4_what_threads_have_launched_is_covered_whoever_else_is_at_work() {
        let (clocks, [a, b, _]) = (Clocks::default(), streams());
        let launched: Vec<_> = (0..4001).map(|_| std::sync::atomic::AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let number = clocks.begin(a);
                        launched[number as usize].store(true, Ordering::Relaxed);
                        clocks.end(a);
                    }
                });
            }
            for _ in 0..1000 {
                let view = clocks.look(a);
                let all = launched[1..=view.over as usize].iter();
                assert!(all.into_iter().all(|launched| launched.load(Ordering::Relaxed)));
                clocks.waited(b, a, &view);
            }
        });
        assert!(clocks.look(a).over == 4000);
    }
}
