//! The addresses of a seeded simulator, which are given out again as early as stream order allows.

use super::heap::AllocationKind;
use crate::oracle::{Epoch, VectorClock};
use crate::random::Random;
use std::collections::BTreeMap;
use std::ops::Range;

/// A range whose last allocation was freed.
#[derive(Clone, Copy, Debug)]
struct FreedRange {
    len: u64,
    /// The call that freed it and its place in stream order; `None` once it has run.
    freed: Option<(u64, Epoch)>,
}

/// An address given out, and whether its memory comes with it: that of a free which has not run is held already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundAddress {
    pub(crate) ptr: u64,
    pub(crate) is_held: bool,
}

/// Addresses that are given out again as early as stream order allows, which of them chosen by the seed.
#[derive(Debug)]
pub(crate) struct EagerAddressSpace {
    next: u64,
    limit: u64,
    live: BTreeMap<u64, (u64, AllocationKind)>,
    dead: BTreeMap<u64, FreedRange>,
}

impl EagerAddressSpace {
    pub(crate) fn new(base: u64, limit: u64) -> Self {
        Self { next: base, limit, live: BTreeMap::new(), dead: BTreeMap::new() }
    }

    /// Gives out `bytes` to work ordered after what `clock` covers, or usable by everybody at once where there is none.
    /// `fits` says whether memory that nobody holds may be taken.
    pub(crate) fn take(
        &mut self,
        bytes: u64,
        kind: AllocationKind,
        clock: Option<&VectorClock>,
        fits: bool,
        random: &mut Random,
    ) -> Option<FoundAddress> {
        let is_legal = |dead: &FreedRange| match dead.freed {
            None => fits,
            Some((_, epoch)) => clock.is_some_and(|clock| clock.covers(epoch)),
        };
        let candidates = self.dead.iter().filter(|(_, dead)| dead.len >= bytes && is_legal(dead));
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

    /// Takes `bytes` from an end of the dead range at `start`; the rest stays dead.
    fn carve(&mut self, start: u64, bytes: u64, from_end: bool) -> Option<FoundAddress> {
        let dead = self.dead.remove(&start)?;
        let rest = dead.len - bytes;
        let (ptr, rest_at) = if from_end { (start + rest, start) } else { (start, start + bytes) };
        if rest > 0 {
            self.dead.insert(rest_at, FreedRange { len: rest, ..dead });
        }
        Some(FoundAddress { ptr, is_held: dead.freed.is_some() })
    }

    pub(crate) fn size_of(&self, ptr: u64, kind: AllocationKind) -> Option<u64> {
        self.live.get(&ptr).filter(|(_, held_as)| *held_as == kind).map(|(bytes, _)| *bytes)
    }

    /// Whether a range lies in one allocation.
    pub(crate) fn contains(&self, range: &Range<u64>) -> bool {
        let around = self.live.range(..=range.start).next_back();
        around.is_some_and(|(start, (bytes, _))| range.end <= start + bytes)
    }

    /// Ends the life of an allocation at a point of stream order; its memory is held until [`ran`](Self::ran).
    pub(crate) fn retire(&mut self, ptr: u64, call: u64, epoch: Epoch) {
        if let Some((len, _)) = self.live.remove(&ptr) {
            let freed = Some((call, epoch));
            self.dead.insert(ptr, FreedRange { len, freed });
        }
    }

    /// The free that was `call` has run; answers how many bytes of `ptr .. ptr + bytes` nobody holds any more.
    pub(crate) fn ran(&mut self, ptr: u64, bytes: u64, call: u64) -> u64 {
        let parts: Vec<u64> = self.dead.range(ptr..ptr + bytes).map(|(start, _)| *start).collect();
        let mut released = 0;
        for start in parts {
            if let Some(dead) = self.dead.get_mut(&start)
                && dead.freed.is_some_and(|(by, _)| by == call)
            {
                dead.freed = None;
                released += dead.len;
                self.merge(start);
            }
        }
        released
    }

    /// Joins a range whose free has run with its neighbours of the same kind.
    fn merge(&mut self, start: u64) {
        let Some(dead) = self.dead.get(&start).copied() else {
            return;
        };
        let after = start + dead.len;
        let mut len = dead.len;
        if let Some(next) = self.dead.get(&after).filter(|next| next.freed.is_none()) {
            len += next.len;
            self.dead.remove(&after);
        }
        let before = self.dead.range(..start).next_back().map(|(at, dead)| (*at, *dead));
        match before {
            Some((at, previous)) if previous.freed.is_none() && at + previous.len == start => {
                self.dead.remove(&start);
                self.dead.insert(at, FreedRange { len: len + previous.len, freed: None });
            }
            _ => {
                self.dead.insert(start, FreedRange { len, freed: None });
            }
        }
    }

    /// How many bytes will be free once the frees that were submitted have run.
    pub(crate) fn pending(&self) -> u64 {
        self.dead.values().filter(|dead| dead.freed.is_some()).map(|dead| dead.len).sum()
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
        let first = space.take(512, kind, Some(&mine), true, &mut random).expect("room");
        space.retire(first.ptr, 7, mine.tick(0));
        let other = space.take(512, kind, Some(&theirs), true, &mut random).expect("room");
        assert_ne!(other.ptr, first.ptr);
        let same = space.take(512, kind, Some(&mine), false, &mut random).expect("its own memory");
        assert_eq!(same, FoundAddress { ptr: first.ptr, is_held: true });
        assert_eq!(space.ran(first.ptr, 512, 7), 0, "the memory went to the next life");
        space.retire(same.ptr, 9, mine.tick(0));
        assert_eq!(space.pending(), 512);
        assert_eq!(space.ran(first.ptr, 512, 9), 512);
        let reused = space.take(512, kind, None, true, &mut random);
        assert_eq!(reused, Some(FoundAddress { ptr: first.ptr, is_held: false }));
    }

    #[test]
    fn neighbours_whose_frees_have_run_become_one() {
        let (mut space, mut random) = (EagerAddressSpace::new(0, 1024), Random::new(1));
        let mut take =
            |space: &mut EagerAddressSpace, bytes| space.take(bytes, AllocationKind::Direct, None, true, &mut random);
        let parts: Vec<u64> = (0..4).map(|_| take(&mut space, 256).expect("room").ptr).collect();
        for at in [1, 3, 0, 2] {
            space.retire(parts[at], at as u64, Epoch::HOST);
            space.ran(parts[at], 256, at as u64);
        }
        assert_eq!(take(&mut space, 1024).map(|taken| taken.ptr), Some(0));
    }
}
