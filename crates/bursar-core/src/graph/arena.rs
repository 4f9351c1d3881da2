//! The free memory of graphs: runs, each with the points of the capture that come before whoever may have it.

use std::collections::BTreeMap;
use std::ops::Range;

/// A point of the order that frees follow.
pub(super) trait FreePoint: Copy + Ord {
    /// Returns whether two points are of one stream, so that the later one stands for both.
    fn is_same_stream(self, other: Self) -> bool;
}

/// A free run. Whoever has it comes after every point; without any, it is everybody's.
#[derive(Clone, Debug)]
struct FreeRun<P> {
    len: u64,
    after: Vec<P>,
}

/// Segments of memory, and the free runs in them. A run lies in one segment.
#[derive(Debug)]
pub(super) struct Arena<P> {
    segments: BTreeMap<u64, u64>,
    free: BTreeMap<u64, FreeRun<P>>,
}

impl<P> Default for Arena<P> {
    fn default() -> Self {
        Self { segments: BTreeMap::new(), free: BTreeMap::new() }
    }
}

impl<P: FreePoint> Arena<P> {
    /// Adds a segment, all of which is everybody's.
    pub(super) fn add(&mut self, segment: Range<u64>) {
        let len = segment.end - segment.start;
        self.segments.insert(segment.start, len);
        self.free.insert(segment.start, FreeRun { len, after: Vec::new() });
    }

    /// Removes a segment, all of which is free.
    pub(super) fn remove(&mut self, segment: Range<u64>) {
        self.segments.remove(&segment.start);
        self.free.retain(|start, _| !segment.contains(start));
    }

    /// Returns the bytes of all segments.
    pub(super) fn held(&self) -> u64 {
        self.segments.values().sum()
    }

    /// Returns whether all of a segment is free.
    #[cfg(test)]
    pub(super) fn is_free(&self, segment: Range<u64>) -> bool {
        let runs = self.free.range(segment.clone()).map(|(_, run)| run.len);
        runs.sum::<u64>() == segment.end - segment.start
    }

    /// Takes `len` bytes out of runs that `may_have` says yes to: the smallest stretch of them that is long enough, and at
    /// most `longest`.
    pub(super) fn take(&mut self, len: u64, align: u64, longest: u64, may_have: impl Fn(&[P]) -> bool) -> Option<u64> {
        let mut best: Option<(u64, u64)> = None;
        let mut stretch = 0..0;
        let mut consider = |stretch: &Range<u64>| {
            let at = stretch.start.next_multiple_of(align);
            let whole = stretch.end - stretch.start;
            let fits = at.checked_add(len).is_some_and(|end| end <= stretch.end) && whole <= longest;
            if fits && best.is_none_or(|(least, _)| whole < least) {
                best = Some((whole, at));
            }
        };
        for (start, run) in self.free.iter().filter(|(_, run)| may_have(&run.after)) {
            if stretch.end != *start || self.segments.contains_key(start) {
                consider(&stretch);
                stretch = *start..*start;
            }
            stretch.end = start + run.len;
        }
        consider(&stretch);
        let (_, at) = best?;
        self.carve(at..at + len);
        Some(at)
    }

    /// Takes a range out of the runs that it lies in.
    fn carve(&mut self, range: Range<u64>) {
        let first = self.free.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let touched: Vec<u64> = self.free.range(first..range.end).map(|(start, _)| *start).collect();
        for start in touched {
            let Some(run) = self.free.remove(&start) else { continue };
            let end = start + run.len;
            if start < range.start {
                self.free.insert(start, FreeRun { len: range.start - start, after: run.after.clone() });
            }
            if end > range.end {
                self.free.insert(range.end, FreeRun { len: end - range.end, after: run.after });
            }
        }
    }

    /// Frees a range that was taken, for whoever comes after the points.
    pub(super) fn put(&mut self, range: Range<u64>, mut after: Vec<P>) {
        after.sort_unstable();
        let mut run = FreeRun { len: range.end - range.start, after };
        let mut start = range.start;
        if let Some((&before, other)) = self.free.range(..start).next_back()
            && before + other.len == start
            && !self.segments.contains_key(&start)
            && let Some(after) = merged(&other.after, &run.after)
        {
            run = FreeRun { len: other.len + run.len, after };
            self.free.remove(&before);
            start = before;
        }
        let end = start + run.len;
        if !self.segments.contains_key(&end)
            && let Some(other) = self.free.get(&end)
            && let Some(after) = merged(&run.after, &other.after)
        {
            run = FreeRun { len: run.len + other.len, after };
            self.free.remove(&end);
        }
        self.free.insert(start, run);
    }

    /// Makes all free runs everybody's, as they are once a capture has ended.
    pub(super) fn settle(&mut self) {
        for (start, run) in std::mem::take(&mut self.free) {
            self.put(start..start + run.len, Vec::new());
        }
    }
}

/// Returns the points that two neighbours have as one run, if they are of the same streams.
fn merged<P: FreePoint>(one: &[P], other: &[P]) -> Option<Vec<P>> {
    let is_same = one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.is_same_stream(*other));
    is_same.then(|| one.iter().zip(other).map(|(one, other)| *one.max(other)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    impl FreePoint for (u32, u64) {
        fn is_same_stream(self, other: Self) -> bool {
            self.0 == other.0
        }
    }

    const ANYBODY: fn(&[(u32, u64)]) -> bool = |_| true;
    const BEFORE: fn(&[(u32, u64)]) -> bool = |after| after.is_empty();

    fn arena() -> Arena<(u32, u64)> {
        let mut arena = Arena::default();
        arena.add(0x10000..0x11000);
        arena
    }

    #[test]
    fn z2_the_smallest_stretch_that_fits_is_taken_and_the_rest_stays_free() {
        let mut arena = arena();
        arena.add(0x20000..0x20400);
        assert_eq!(arena.take(0x300, 256, u64::MAX, BEFORE), Some(0x20000));
        assert_eq!(arena.take(0x100, 256, u64::MAX, BEFORE), Some(0x20300));
        assert_eq!(arena.take(0x800, 0x800, u64::MAX, BEFORE), Some(0x10000));
        assert_eq!(arena.take(0x900, 256, u64::MAX, BEFORE), None);
        assert_eq!((arena.take(0x800, 256, u64::MAX, BEFORE), arena.held()), (Some(0x10800), 0x1400));
    }

    #[test]
    fn z1_a_block_that_is_much_shorter_leaves_a_long_run_whole() {
        let mut arena = arena();
        assert_eq!(arena.take(0x100, 256, 0xfff, BEFORE), None);
        assert_eq!(arena.take(0x100, 256, 0x1000, BEFORE), Some(0x10000));
        assert_eq!(arena.take(0x100, 256, 0xf00, BEFORE), Some(0x10100));
    }

    #[test]
    fn z2_runs_of_different_streams_are_one_stretch_for_whoever_may_have_both() {
        let mut arena = arena();
        assert_eq!(arena.take(0x1000, 256, u64::MAX, BEFORE), Some(0x10000));
        arena.put(0x10000..0x10800, vec![(1, 1)]);
        arena.put(0x10800..0x11000, vec![(2, 1)]);
        let only_first = |after: &[(u32, u64)]| after == [(1, 1)];
        assert_eq!(arena.take(0x900, 256, u64::MAX, only_first), None);
        assert_eq!(arena.take(0x900, 256, u64::MAX, ANYBODY), Some(0x10000));
        assert_eq!(arena.take(0x700, 256, u64::MAX, only_first), None, "the rest is of the second");
        assert_eq!(arena.take(0x700, 256, u64::MAX, ANYBODY), Some(0x10900));
    }

    #[test]
    fn z2_neighbours_of_one_stream_are_one_run_with_the_later_point() {
        let mut arena = arena();
        assert_eq!(arena.take(0x1000, 256, u64::MAX, BEFORE), Some(0x10000));
        arena.put(0x10000..0x10800, vec![(1, 1)]);
        arena.put(0x10800..0x11000, vec![(1, 5)]);
        assert_eq!(arena.take(0x1000, 256, u64::MAX, |after| after == [(1, 5)]), Some(0x10000));
    }

    #[test]
    fn z1_segments_stay_apart_and_are_whole_again_when_a_capture_has_ended() {
        let mut arena = arena();
        arena.add(0x11000..0x12000);
        assert_eq!(arena.take(0x1800, 256, u64::MAX, BEFORE), None, "two segments are two allocations");
        let taken = [
            arena.take(0x800, 256, u64::MAX, BEFORE),
            arena.take(0x800, 256, u64::MAX, BEFORE),
            arena.take(0x1000, 256, u64::MAX, BEFORE),
        ];
        for (nth, at) in taken.into_iter().enumerate() {
            let at = at.expect("free");
            let len = if nth < 2 { 0x800 } else { 0x1000 };
            arena.put(at..at + len, vec![(nth as u32, 1)]);
        }
        assert_eq!(arena.take(0x1000, 256, u64::MAX, BEFORE), None);
        arena.settle();
        assert!(arena.is_free(0x10000..0x11000) && arena.is_free(0x11000..0x12000));
        assert!(arena.take(0x1000, 256, u64::MAX, BEFORE).is_some());
    }
}
