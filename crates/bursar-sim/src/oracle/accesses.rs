//! An interval map of the last accesses to each byte.
//!
//! For every byte it keeps the last write and, for each stream, the last read since. An access that is ordered after another
//! of its own kind replaces it: whatever is ordered after the later one is ordered after both.

use super::clock::{Epoch, VectorClock};
use crate::Operation;
use bursar_core::Access;
use std::collections::BTreeMap;
use std::ops::Range;

/// An operation and the point of its stream at which it was submitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OrderedOp {
    pub(crate) op: Operation,
    pub(crate) epoch: Epoch,
}

impl OrderedOp {
    /// Returns it with `range` as the bytes that its operation reaches.
    pub(crate) fn of(self, range: &Range<u64>) -> Self {
        Self { op: Operation { bytes: Some(range.clone().into()), ..self.op }, ..self }
    }
}

#[derive(Clone, Debug, Default)]
struct Segment {
    end: u64,
    write: Option<OrderedOp>,
    reads: Vec<OrderedOp>,
}

impl Segment {
    /// Returns the accesses, each with whether it is a write.
    fn moments(&self) -> impl Iterator<Item = (&OrderedOp, bool)> {
        self.write.iter().map(|write| (write, true)).chain(self.reads.iter().map(|read| (read, false)))
    }
}

/// The accesses to one address space.
#[derive(Debug, Default)]
pub(crate) struct Accesses {
    segments: BTreeMap<u64, Segment>,
}

impl Accesses {
    /// Records an access by work with `clock`. Returns the earlier accesses that conflict with it and are not ordered before
    /// it.
    pub(crate) fn record(
        &mut self,
        range: Range<u64>,
        access: Access,
        moment: OrderedOp,
        clock: &VectorClock,
    ) -> Vec<(Range<u64>, OrderedOp)> {
        if range.is_empty() {
            return Vec::new();
        }
        self.cut(range.start);
        self.cut(range.end);
        let mut conflicts = Vec::new();
        for (start, segment) in self.segments.range(range.clone()) {
            let against = match access {
                Access::Read => &[],
                Access::Write => &segment.reads[..],
            };
            let unordered = segment.write.iter().chain(against).filter(|past| !clock.covers(past.epoch));
            conflicts.extend(unordered.map(|past| (*start..segment.end, *past)));
        }
        match access {
            Access::Write => self.replace(range, moment),
            Access::Read => self.add_read(range, moment, clock),
        }
        conflicts
    }

    fn replace(&mut self, range: Range<u64>, write: OrderedOp) {
        self.forget(range.clone());
        let segment = Segment { end: range.end, write: Some(write), reads: Vec::new() };
        self.segments.insert(range.start, segment);
    }

    fn add_read(&mut self, range: Range<u64>, read: OrderedOp, clock: &VectorClock) {
        let mut next = range.start;
        let mut gaps = Vec::new();
        for (start, segment) in self.segments.range_mut(range.clone()) {
            if next < *start {
                gaps.push(next..*start);
            }
            next = segment.end;
            segment.reads.retain(|past| !clock.covers(past.epoch));
            segment.reads.push(read);
        }
        if next < range.end {
            gaps.push(next..range.end);
        }
        for gap in gaps {
            let segment = Segment { end: gap.end, write: None, reads: vec![read] };
            self.segments.insert(gap.start, segment);
        }
    }

    /// Returns the accesses to a range that `clock` does not cover.
    pub(crate) fn unordered(&self, range: Range<u64>, clock: &VectorClock) -> Vec<(Range<u64>, OrderedOp)> {
        self.unordered_of(range, clock, |_| true)
    }

    /// Returns the last writes to a range, as far as `clock` does not cover them.
    pub(crate) fn unordered_writes(&self, range: Range<u64>, clock: &VectorClock) -> Vec<(Range<u64>, OrderedOp)> {
        self.unordered_of(range, clock, |is_write| is_write)
    }

    fn unordered_of(
        &self,
        range: Range<u64>,
        clock: &VectorClock,
        is_meant: impl Fn(bool) -> bool,
    ) -> Vec<(Range<u64>, OrderedOp)> {
        let before = self.segments.range(..range.start).next_back();
        let inside = self.segments.range(range.clone());
        let touching = before.into_iter().chain(inside).filter(|(_, segment)| segment.end > range.start);
        touching
            .flat_map(|(start, segment)| {
                let common = (*start).max(range.start)..segment.end.min(range.end);
                let late =
                    segment.moments().filter(|(past, is_write)| is_meant(*is_write) && !clock.covers(past.epoch));
                late.map(move |(past, _)| (common.clone(), *past))
            })
            .collect()
    }

    /// Has the range from `to` on follow what was in `from`: the same accesses, at other addresses.
    pub(crate) fn repeat(&mut self, from: Range<u64>, to: u64) {
        self.forget(to..to + (from.end - from.start));
        self.cut(from.start);
        self.cut(from.end);
        let inside: Vec<_> =
            self.segments.range(from.clone()).map(|(start, segment)| (*start, segment.clone())).collect();
        for (start, segment) in inside {
            let end = to + (segment.end - from.start);
            self.segments.insert(to + (start - from.start), Segment { end, ..segment });
        }
    }

    /// Forgets every access to a range, where a lifetime begins or has ended.
    pub(crate) fn forget(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.cut(range.start);
        self.cut(range.end);
        let inside: Vec<u64> = self.segments.range(range).map(|(start, _)| *start).collect();
        for start in inside {
            self.segments.remove(&start);
        }
    }

    /// Forgets the accesses to a range except those for which `stays` is true.
    pub(crate) fn forget_unless(&mut self, range: Range<u64>, stays: impl Fn(&OrderedOp) -> bool) {
        if range.is_empty() {
            return;
        }
        self.cut(range.start);
        self.cut(range.end);
        let mut empty = Vec::new();
        for (start, segment) in self.segments.range_mut(range) {
            segment.write = segment.write.filter(&stays);
            segment.reads.retain(&stays);
            if segment.moments().next().is_none() {
                empty.push(*start);
            }
        }
        for start in empty {
            self.segments.remove(&start);
        }
    }

    /// Splits the segment that reaches across `at`, if there is one.
    fn cut(&mut self, at: u64) {
        let Some((_, segment)) = self.segments.range_mut(..at).next_back() else {
            return;
        };
        if segment.end > at {
            let tail = segment.clone();
            segment.end = at;
            self.segments.insert(at, tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Executor;
    use crate::operation::CallInfo;

    fn moment(call: u64, epoch: Epoch) -> OrderedOp {
        let op = CallInfo { name: "fill", number: call, device: 0, location: None }.operation(Executor::Host);
        OrderedOp { op, epoch }
    }

    fn calls(found: &[(Range<u64>, OrderedOp)]) -> Vec<(Range<u64>, u64)> {
        found.iter().map(|(range, moment)| (range.clone(), moment.op.call)).collect()
    }

    #[test]
    fn a_write_conflicts_with_what_it_overlaps_and_only_there() {
        let (mut accesses, mut a, mut b) = (Accesses::default(), VectorClock::default(), VectorClock::default());
        let first = moment(1, a.tick(0));
        assert!(accesses.record(100..200, Access::Write, first, &a).is_empty());
        let second = moment(2, b.tick(1));
        let found = accesses.record(150..300, Access::Write, second, &b);
        assert_eq!(calls(&found), [(150..200, 1)]);
        assert!(accesses.record(300..400, Access::Write, second, &b).is_empty());
    }

    #[test]
    fn reads_do_not_conflict_and_each_is_remembered() {
        let mut accesses = Accesses::default();
        let mut clocks = [VectorClock::default(), VectorClock::default(), VectorClock::default()];
        for (stream, clock) in clocks.iter_mut().enumerate().take(2) {
            let read = moment(stream as u64, clock.tick(stream));
            assert!(accesses.record(0..10, Access::Read, read, clock).is_empty());
        }
        let write = moment(9, clocks[2].tick(2));
        let found = accesses.record(5..6, Access::Write, write, &clocks[2]);
        assert_eq!(calls(&found), [(5..6, 0), (5..6, 1)]);
    }

    #[test]
    fn an_ordered_access_conflicts_with_nothing() {
        let (mut accesses, mut a, mut b) = (Accesses::default(), VectorClock::default(), VectorClock::default());
        accesses.record(0..10, Access::Read, moment(1, a.tick(0)), &a);
        b.join(&a);
        let write = moment(2, b.tick(1));
        assert!(accesses.record(0..10, Access::Write, write, &b).is_empty());
        assert_eq!(calls(&accesses.unordered(0..10, &a)), [(0..10, 2)]);
        assert!(accesses.unordered(0..10, &b).is_empty());
    }

    #[test]
    fn forgetting_a_range_leaves_its_neighbours() {
        let (mut accesses, mut a) = (Accesses::default(), VectorClock::default());
        accesses.record(0..30, Access::Write, moment(1, a.tick(0)), &a);
        accesses.forget(10..20);
        let nobody = VectorClock::default();
        assert_eq!(calls(&accesses.unordered(0..30, &nobody)), [(0..10, 1), (20..30, 1)]);
        assert_eq!(calls(&accesses.unordered(5..25, &nobody)), [(5..10, 1), (20..25, 1)]);
    }

    #[test]
    fn a_later_read_of_the_same_stream_replaces_the_earlier() {
        let (mut accesses, mut a) = (Accesses::default(), VectorClock::default());
        for call in 0..100 {
            accesses.record(0..8, Access::Read, moment(call, a.tick(0)), &a);
        }
        assert_eq!(calls(&accesses.unordered(0..8, &VectorClock::default())), [(0..8, 99)]);
    }
}
