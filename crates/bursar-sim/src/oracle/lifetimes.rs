//! The lifetimes of allocations, mapped pages and blocks in one address space.

use super::accesses::OrderedOp;
use super::clock::{Epoch, VectorClock};
use bursar_core::AllocTag;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The number of ended lifetimes kept for reports, besides those whose end may still have to be waited for.
const ENDED_KEPT: usize = 4096;

/// The lifetime of a range, from its allocation to its free.
#[derive(Clone, Debug)]
pub(crate) struct Lifetime {
    pub(crate) end: u64,
    pub(crate) tag: AllocTag,
    pub(crate) began: OrderedOp,
    /// Further points that it comes after, where several ranges that were freed before are one block now.
    pub(crate) after: Option<Arc<[Epoch]>>,
    pub(crate) ended: Option<OrderedOp>,
    /// The point of the block's own stream that the free comes after too, where that is another stream.
    pub(crate) home: Option<Epoch>,
    /// The end of the previous lifetime of all or part of the range.
    pub(crate) before: Option<OrderedOp>,
}

/// A part of a range, with its lifetime if it has or had one.
pub(crate) type Part = (Range<u64>, Option<Lifetime>);

/// The lifetimes in one address space. They do not overlap: a new one replaces the ended ones under it.
#[derive(Debug, Default)]
pub(crate) struct Lifetimes {
    lifetimes: BTreeMap<u64, Lifetime>,
    ended_count: usize,
    /// The number of ended lifetimes that had to be kept when some were last forgotten.
    needed: usize,
}

impl Lifetime {
    /// Returns whether `clock` comes after its beginning.
    pub(crate) fn has_begun(&self, clock: &VectorClock) -> bool {
        clock.covers(self.began.epoch) && self.after.iter().flat_map(|after| &**after).all(|after| clock.covers(*after))
    }

    /// Returns the free, unless `clock` comes after it on every stream that it follows.
    pub(crate) fn free_not_covered(&self, clock: &VectorClock) -> Option<OrderedOp> {
        let is_covered =
            |freed: &OrderedOp| clock.covers(freed.epoch) && self.home.is_none_or(|home| clock.covers(home));
        self.ended.filter(|freed| !is_covered(freed))
    }
}

impl Lifetimes {
    /// Begins a lifetime, and cuts away whatever it overlaps. The caller has inspected [`parts`](Self::parts) before.
    pub(crate) fn begin(&mut self, range: Range<u64>, began: OrderedOp, tag: AllocTag) {
        self.begin_after(range, began, &[], tag);
    }

    /// As [`begin`](Self::begin), where the beginning comes after other points too.
    pub(crate) fn begin_after(&mut self, range: Range<u64>, began: OrderedOp, after: &[Epoch], tag: AllocTag) {
        let after = (!after.is_empty()).then(|| after.into());
        let ends = self.parts(range.clone()).into_iter().filter_map(|(_, lifetime)| lifetime?.ended);
        let before = ends.max_by_key(|freed| freed.op.call);
        self.forget(range.clone());
        let lifetime = Lifetime { end: range.end, tag, began, after, ended: None, home: None, before };
        self.lifetimes.insert(range.start, lifetime);
    }

    /// Returns the live lifetime that an address lies in, with its start.
    pub(crate) fn live_around(&self, at: u64) -> Option<(u64, Lifetime)> {
        let (start, lifetime) = self.lifetimes.range(..=at).next_back()?;
        (at < lifetime.end && lifetime.ended.is_none()).then_some((*start, lifetime.clone()))
    }

    /// Enters a lifetime again that was cut away, in the place of whatever is there.
    pub(crate) fn restore(&mut self, start: u64, lifetime: Lifetime) {
        self.forget(start..lifetime.end);
        self.lifetimes.insert(start, lifetime);
    }

    /// Returns the live lifetime that begins exactly at `start`.
    pub(crate) fn live_at(&self, start: u64) -> Option<Lifetime> {
        self.lifetimes.get(&start).cloned().filter(|lifetime| lifetime.ended.is_none())
    }

    /// Ends the lifetime that begins at `start`. The host knows everything that `host` covers to have run.
    pub(crate) fn end(&mut self, start: u64, ended: OrderedOp, host: &VectorClock) {
        self.end_after(start, ended, None, host);
    }

    /// As [`end`](Self::end), where the end comes after a point of another stream too.
    pub(crate) fn end_after(&mut self, start: u64, ended: OrderedOp, home: Option<Epoch>, host: &VectorClock) {
        if let Some(lifetime) = self.lifetimes.get_mut(&start) {
            (lifetime.ended, lifetime.home) = (Some(ended), home);
            self.ended_count += 1;
            self.bound(host);
        }
    }

    pub(crate) fn set_tag(&mut self, start: u64, tag: AllocTag) {
        if let Some(lifetime) = self.lifetimes.get_mut(&start) {
            lifetime.tag = tag;
        }
    }

    /// Returns the range in parts, with gaps where nothing was ever allocated.
    pub(crate) fn parts(&self, range: Range<u64>) -> Vec<Part> {
        let before = self.lifetimes.range(..range.start).next_back();
        let touching = before
            .into_iter()
            .chain(self.lifetimes.range(range.clone()))
            .filter(|(_, lifetime)| lifetime.end > range.start);
        let mut parts = Vec::new();
        let mut next = range.start;
        for (start, lifetime) in touching {
            let start = (*start).max(range.start);
            if next < start {
                parts.push((next..start, None));
            }
            next = lifetime.end.min(range.end);
            parts.push((start..next, Some(lifetime.clone())));
        }
        if next < range.end {
            parts.push((next..range.end, None));
        }
        parts
    }

    /// Forgets the lifetimes in a range, and only there.
    pub(crate) fn forget(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.cut(range.start);
        self.cut(range.end);
        let inside: Vec<u64> = self.lifetimes.range(range).map(|(start, _)| *start).collect();
        for start in inside {
            self.remove(start);
        }
    }

    /// Has the range from `to` on follow what was in `from`: the same lifetimes, at other addresses.
    pub(crate) fn repeat(&mut self, from: Range<u64>, to: u64) {
        let parts = self.parts(from.clone());
        self.forget(to..to + (from.end - from.start));
        for (part, lifetime) in parts {
            let Some(lifetime) = lifetime else { continue };
            self.ended_count += usize::from(lifetime.ended.is_some());
            let end = to + (part.end - from.start);
            self.lifetimes.insert(to + (part.start - from.start), Lifetime { end, ..lifetime });
        }
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = (u64, &Lifetime)> {
        let live = self.lifetimes.iter().filter(|(_, lifetime)| lifetime.ended.is_none());
        live.map(|(start, lifetime)| (*start, lifetime))
    }

    fn cut(&mut self, at: u64) {
        let Some((_, lifetime)) = self.lifetimes.range_mut(..at).next_back() else {
            return;
        };
        if lifetime.end > at {
            let tail = lifetime.clone();
            lifetime.end = at;
            self.ended_count += usize::from(tail.ended.is_some());
            self.lifetimes.insert(at, tail);
        }
    }

    fn remove(&mut self, start: u64) {
        if self.lifetimes.remove(&start).is_some_and(|lifetime| lifetime.ended.is_some()) {
            self.ended_count -= 1;
        }
    }

    /// Forgets ended lifetimes once there are too many: the older half of those that everything later is ordered after. A
    /// free that the host does not know to have run may still be what a reuse should have waited for.
    fn bound(&mut self, host: &VectorClock) {
        // Searching all of them again pays off once as many have been added as had to be kept.
        if self.ended_count <= ENDED_KEPT + 2 * self.needed {
            return;
        }
        let is_over = |lifetime: &Lifetime| lifetime.free_not_covered(host).is_none();
        let ended = self.lifetimes.values().filter(|lifetime| is_over(lifetime));
        let mut over: Vec<u64> = ended.filter_map(|lifetime| Some(lifetime.ended?.op.call)).collect();
        self.needed = self.ended_count - over.len();
        if over.is_empty() {
            return;
        }
        let middle = over.len() / 2;
        let (_, oldest_kept, _) = over.select_nth_unstable(middle);
        let oldest_kept = *oldest_kept;
        self.lifetimes.retain(|_, lifetime| {
            lifetime.ended.is_none_or(|freed| freed.op.call >= oldest_kept) || !is_over(lifetime)
        });
        self.ended_count = self.lifetimes.values().filter(|lifetime| lifetime.ended.is_some()).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Executor;
    use crate::operation::CallInfo;

    fn moment(call: u64) -> OrderedOp {
        let op = CallInfo { name: "allocate", number: call, device: 0, location: None }.operation(Executor::Host);
        OrderedOp { op, epoch: Epoch::HOST }
    }

    /// A part of a range: the call that its lifetime began with, and whether it is live.
    type Shape = (Range<u64>, Option<(u64, bool)>);

    fn shape(lifetimes: &Lifetimes, range: Range<u64>) -> Vec<Shape> {
        let parts = lifetimes.parts(range).into_iter();
        parts
            .map(|(range, lifetime)| {
                (range, lifetime.map(|lifetime| (lifetime.began.op.call, lifetime.ended.is_none())))
            })
            .collect()
    }

    #[test]
    fn a_new_life_takes_the_place_of_the_dead_and_remembers_them() {
        let mut lifetimes = Lifetimes::default();
        lifetimes.begin(0..100, moment(1), AllocTag::UNTAGGED);
        lifetimes.end(0, moment(2), &VectorClock::default());
        lifetimes.begin(40..60, moment(3), AllocTag::UNTAGGED);
        let expected =
            [(0..40, Some((1, false))), (40..60, Some((3, true))), (60..100, Some((1, false))), (100..110, None)];
        assert_eq!(shape(&lifetimes, 0..110), expected);
        let before = lifetimes.live_at(40).and_then(|lifetime| lifetime.before);
        assert_eq!(before.map(|freed| freed.op.call), Some(2));
        assert!(lifetimes.live_at(0).is_none());
    }

    #[test]
    fn the_dead_are_bounded_and_the_latest_stay() {
        let mut lifetimes = Lifetimes::default();
        for call in 0..3 * ENDED_KEPT as u64 {
            lifetimes.begin(call * 10..call * 10 + 5, moment(call), AllocTag::UNTAGGED);
            lifetimes.end(call * 10, moment(call), &VectorClock::default());
        }
        assert!(lifetimes.lifetimes.len() <= ENDED_KEPT + 1);
        let last = 3 * ENDED_KEPT as u64 - 1;
        assert_eq!(shape(&lifetimes, last * 10..last * 10 + 5), [(last * 10..last * 10 + 5, Some((last, false)))]);
    }
}
