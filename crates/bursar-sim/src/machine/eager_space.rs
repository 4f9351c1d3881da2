//! The addresses of a seeded simulator, which are reused as early as stream order allows.

use super::heap::AllocationKind;
use crate::oracle::{Epoch, VectorClock};
use crate::random::Random;
use std::collections::BTreeMap;
use std::ops::Range;

/// A range whose last allocation was freed.
#[derive(Clone, Copy, Debug)]
struct FreedRange {
    len: u64,
    /// The call that freed it and the epoch of the free; `None` once the free has run.
    freed: Option<(u64, Epoch)>,
    /// The pool whose memory it is until the free has run.
    pool: Option<u64>,
}

/// An address for an allocation, and whether its memory is held already, by a free that has not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundAddress {
    pub(crate) ptr: u64,
    pub(crate) is_held: bool,
}

/// An address space whose addresses are reused as early as stream order allows. The seed chooses among them.
#[derive(Debug)]
pub(crate) struct EagerAddressSpace {
    next: u64,
    limit: u64,
    live: BTreeMap<u64, (u64, AllocationKind)>,
    freed: BTreeMap<u64, FreedRange>,
}

impl EagerAddressSpace {
    pub(crate) fn new(base: u64, limit: u64) -> Self {
        Self { next: base, limit, live: BTreeMap::new(), freed: BTreeMap::new() }
    }

    /// Finds `bytes` for work ordered after what `clock` covers, or for everybody at once where there is no clock. `fits`
    /// says whether memory that nobody holds may be taken; memory whose free has not run stays in its pool.
    #[allow(clippy::too_many_arguments, reason = "each is a condition of its own")]
    pub(crate) fn take(
        &mut self,
        bytes: u64,
        kind: AllocationKind,
        clock: Option<&VectorClock>,
        fits: bool,
        pool: Option<u64>,
        random: &mut Random,
    ) -> Option<FoundAddress> {
        let is_legal = |range: &FreedRange| match range.freed {
            None => fits,
            Some((_, epoch)) => range.pool == pool && clock.is_some_and(|clock| clock.covers(epoch)),
        };
        let candidates = self.freed.iter().filter(|(_, range)| range.len >= bytes && is_legal(range));
        let candidates: Vec<u64> = candidates.map(|(start, _)| *start).take(8).collect();
        let taken = if candidates.is_empty() {
            (fits && bytes <= self.limit - self.next).then(|| {
                self.next += bytes;
                FoundAddress { ptr: self.next - bytes, is_held: false }
            })?
        } else {
            self.carve(candidates[random.index(candidates.len())], bytes, random.below(4) == 0)?
        };
        self.live.insert(taken.ptr, (bytes, kind));
        Some(taken)
    }

    /// Takes `bytes` from one end of the freed range at `start`; the rest stays free.
    fn carve(&mut self, start: u64, bytes: u64, from_end: bool) -> Option<FoundAddress> {
        let range = self.freed.remove(&start)?;
        let rest = range.len - bytes;
        let (ptr, rest_at) = if from_end { (start + rest, start) } else { (start, start + bytes) };
        if rest > 0 {
            self.freed.insert(rest_at, FreedRange { len: rest, ..range });
        }
        Some(FoundAddress { ptr, is_held: range.freed.is_some() })
    }

    pub(crate) fn size_of(&self, ptr: u64, kind: AllocationKind) -> Option<u64> {
        self.live.get(&ptr).filter(|(_, held_as)| *held_as == kind).map(|(bytes, _)| *bytes)
    }

    /// Returns whether a range lies in one allocation.
    pub(crate) fn contains(&self, range: &Range<u64>) -> bool {
        let around = self.live.range(..=range.start).next_back();
        around.is_some_and(|(start, (bytes, _))| range.end <= start + bytes)
    }

    /// Ends an allocation at a point of stream order. Its memory is held until [`finish_free`](Self::finish_free).
    pub(crate) fn retire(&mut self, ptr: u64, call: u64, epoch: Epoch, pool: Option<u64>) {
        if let Some((len, _)) = self.live.remove(&ptr) {
            let freed = Some((call, epoch));
            self.freed.insert(ptr, FreedRange { len, freed, pool });
        }
    }

    /// Records that the free made by `call` has run. Returns the bytes of `ptr .. ptr + bytes` that are no longer held.
    pub(crate) fn finish_free(&mut self, ptr: u64, bytes: u64, call: u64) -> u64 {
        let parts: Vec<u64> = self.freed.range(ptr..ptr + bytes).map(|(start, _)| *start).collect();
        let mut released = 0;
        for start in parts {
            if let Some(range) = self.freed.get_mut(&start)
                && range.freed.is_some_and(|(by, _)| by == call)
            {
                range.freed = None;
                released += range.len;
                self.merge(start);
            }
        }
        released
    }

    /// Joins a range whose free has run with such neighbours.
    fn merge(&mut self, start: u64) {
        let Some(range) = self.freed.get(&start).copied() else {
            return;
        };
        let after = start + range.len;
        let mut len = range.len;
        if let Some(next) = self.freed.get(&after).filter(|next| next.freed.is_none()) {
            len += next.len;
            self.freed.remove(&after);
        }
        let before = self.freed.range(..start).next_back().map(|(at, range)| (*at, *range));
        match before {
            Some((at, previous)) if previous.freed.is_none() && at + previous.len == start => {
                self.freed.remove(&start);
                self.freed.insert(at, FreedRange { len: len + previous.len, freed: None, pool: None });
            }
            _ => {
                self.freed.insert(start, FreedRange { len, freed: None, pool: None });
            }
        }
    }

    /// Returns the bytes that will be free once the pending frees have run.
    pub(crate) fn pending(&self) -> u64 {
        self.freed.values().filter(|range| range.freed.is_some()).map(|range| range.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_given_out_again_to_its_own_stream_at_once_and_to_others_when_the_free_has_run() {
        let (mut space, mut random) = (EagerAddressSpace::new(0, 1 << 20), Random::new(1));
        let (mut mine, mut theirs) = (VectorClock::default(), VectorClock::default());
        theirs.tick(1);
        let kind = AllocationKind::StreamOrdered;
        let first = space.take(512, kind, Some(&mine), true, None, &mut random).expect("room");
        space.retire(first.ptr, 7, mine.tick(0), None);
        let other = space.take(512, kind, Some(&theirs), true, None, &mut random).expect("room");
        assert_ne!(other.ptr, first.ptr);
        let same = space.take(512, kind, Some(&mine), false, None, &mut random).expect("its own memory");
        assert_eq!(same, FoundAddress { ptr: first.ptr, is_held: true });
        assert_eq!(space.finish_free(first.ptr, 512, 7), 0, "the memory went to the next life");
        space.retire(same.ptr, 9, mine.tick(0), None);
        assert_eq!(space.pending(), 512);
        assert_eq!(space.finish_free(first.ptr, 512, 9), 512);
        let reused = space.take(512, kind, None, true, None, &mut random);
        assert_eq!(reused, Some(FoundAddress { ptr: first.ptr, is_held: false }));
    }

    #[test]
    fn neighbours_whose_frees_have_run_become_one() {
        let (mut space, mut random) = (EagerAddressSpace::new(0, 1024), Random::new(1));
        let mut take = |space: &mut EagerAddressSpace, bytes| {
            space.take(bytes, AllocationKind::Direct, None, true, None, &mut random)
        };
        let parts: Vec<u64> = (0..4).map(|_| take(&mut space, 256).expect("room").ptr).collect();
        for at in [1, 3, 0, 2] {
            space.retire(parts[at], at as u64, Epoch::HOST, None);
            space.finish_free(parts[at], 256, at as u64);
        }
        assert_eq!(take(&mut space, 1024).map(|taken| taken.ptr), Some(0));
    }
}
