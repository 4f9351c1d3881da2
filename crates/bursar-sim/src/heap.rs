//! Where allocations lie. Two heaps for two aims: the plain one of an immediate simulator costs a few dozen instructions
//! a call; the seeded one gives every address out again as early as it may, because that is when bugs show.

use crate::clock::{Clock, Epoch};
use crate::random::Random;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// Every allocation begins at a multiple of this, and takes one.
pub(crate) const UNIT: u64 = 256;

/// How an allocation was made, and so how it must be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Direct,
    StreamOrdered,
}

/// Spreads integers with one multiplication.
#[derive(Debug, Default)]
pub(crate) struct IntegerHasher(u64);

impl Hasher for IntegerHasher {
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0xf135_7aea_2e62_a9c5);
    }
}

type IntegerMap<V> = HashMap<u64, V, BuildHasherDefault<IntegerHasher>>;

/// The memory of one device: how much of it is held, and where the allocations of an immediate simulator lie.
#[derive(Debug)]
pub(crate) struct Heap {
    pub(crate) total: u64,
    pub(crate) held: u64,
    /// Whether bytes were ever written to an allocation, so that a free must forget some.
    pub(crate) is_touched: bool,
    next: u64,
    limit: u64,
    live: IntegerMap<(u64, Kind)>,
    spare: IntegerMap<Vec<u64>>,
    /// The live allocations by address, kept from when somebody first asks about an address inside one.
    ordered: Option<BTreeMap<u64, u64>>,
}

impl Heap {
    pub(crate) fn new(total: u64, base: u64, limit: u64) -> Self {
        Self {
            total,
            held: 0,
            is_touched: false,
            next: base,
            limit,
            live: IntegerMap::default(),
            spare: IntegerMap::default(),
            ordered: None,
        }
    }

    #[inline]
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        bytes <= self.total - self.held
    }

    /// Counts `bytes` as held, if there is room for them.
    #[inline]
    pub(crate) fn charge(&mut self, bytes: u64) -> bool {
        let fits = self.fits(bytes);
        if fits {
            self.held += bytes;
        }
        fits
    }

    #[inline]
    pub(crate) fn release(&mut self, bytes: u64) {
        self.held -= bytes;
    }

    /// Gives out `bytes`, a multiple of [`UNIT`].
    #[inline]
    pub(crate) fn take(&mut self, bytes: u64, kind: Kind) -> Option<u64> {
        if !self.charge(bytes) {
            return None;
        }
        let spare = self.spare.get_mut(&bytes).and_then(Vec::pop);
        let ptr = match spare {
            Some(ptr) => ptr,
            None if bytes <= self.limit - self.next => {
                self.next += bytes;
                self.next - bytes
            }
            None => match self.find(bytes) {
                Some(ptr) => ptr,
                None => {
                    self.release(bytes);
                    return None;
                }
            },
        };
        self.live.insert(ptr, (bytes, kind));
        if self.ordered.is_some() {
            self.order(ptr, Some(bytes));
        }
        Some(ptr)
    }

    /// Keeps the order of addresses where an allocation of so many bytes was made, or one was freed. Most simulators are never
    /// asked for it.
    #[cold]
    fn order(&mut self, ptr: u64, bytes: Option<u64>) {
        if let Some(ordered) = &mut self.ordered {
            match bytes {
                Some(bytes) => drop(ordered.insert(ptr, bytes)),
                None => drop(ordered.remove(&ptr)),
            }
        }
    }

    /// Whether a range lies in one allocation.
    pub(crate) fn contains(&mut self, range: &Range<u64>) -> bool {
        if let Some((bytes, _)) = self.live.get(&range.start) {
            return range.end - range.start <= *bytes;
        }
        let live = &self.live;
        let ordered = self.ordered.get_or_insert_with(|| live.iter().map(|(at, (bytes, _))| (*at, *bytes)).collect());
        ordered.range(..=range.start).next_back().is_some_and(|(start, bytes)| range.end <= start + bytes)
    }

    /// Finds addresses among those that were given back, whatever the size they had, once no new ones are left.
    #[cold]
    fn find(&mut self, bytes: u64) -> Option<u64> {
        self.coalesce();
        if bytes <= self.limit - self.next {
            self.next += bytes;
            return Some(self.next - bytes);
        }
        let enough = self.spare.iter().filter(|(size, starts)| **size >= bytes && !starts.is_empty());
        let size = enough.map(|(size, _)| *size).min()?;
        let start = self.spare.get_mut(&size).and_then(Vec::pop)?;
        if size > bytes {
            self.spare.entry(size - bytes).or_default().push(start + bytes);
        }
        Some(start)
    }

    /// Joins neighbours among the addresses that were given back, and those at the end with the new ones.
    fn coalesce(&mut self) {
        let spare = self.spare.drain().flat_map(|(size, starts)| starts.into_iter().map(move |start| (start, size)));
        let mut ranges: Vec<(u64, u64)> = spare.collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, before| {
            let joins = before.0 + before.1 == next.0;
            before.1 += if joins { next.1 } else { 0 };
            joins
        });
        if let Some((start, _)) = ranges.pop_if(|(start, size)| *start + *size == self.next) {
            self.next = start;
        }
        for (start, size) in ranges {
            self.spare.entry(size).or_default().push(start);
        }
    }

    /// Ends the life of an allocation, whose memory is still held; answers its size.
    #[inline]
    pub(crate) fn retire(&mut self, ptr: u64, kind: Kind) -> Option<u64> {
        let (bytes, held_as) = self.live.remove(&ptr)?;
        if held_as != kind {
            self.live.insert(ptr, (bytes, held_as));
            return None;
        }
        if self.ordered.is_some() {
            self.order(ptr, None);
        }
        Some(bytes)
    }

    /// Takes back the memory of an allocation whose life has ended.
    #[inline]
    pub(crate) fn recycle(&mut self, ptr: u64, bytes: u64) {
        self.release(bytes);
        match self.spare.get_mut(&bytes) {
            Some(spare) => spare.push(ptr),
            None => drop(self.spare.insert(bytes, vec![ptr])),
        }
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = u64> {
        self.live.values().map(|(bytes, _)| *bytes)
    }
}

/// A range whose last allocation was freed.
#[derive(Clone, Copy, Debug)]
struct Dead {
    len: u64,
    /// The call that freed it and its place in stream order; `None` once it has run.
    freed: Option<(u64, Epoch)>,
}

/// An address given out, and whether its memory comes with it: that of a free which has not run is held already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) ptr: u64,
    pub(crate) is_held: bool,
}

/// Addresses that are given out again as early as stream order allows, which of them chosen by the seed.
#[derive(Debug)]
pub(crate) struct EagerSpace {
    next: u64,
    limit: u64,
    live: BTreeMap<u64, (u64, Kind)>,
    dead: BTreeMap<u64, Dead>,
}

impl EagerSpace {
    pub(crate) fn new(base: u64, limit: u64) -> Self {
        Self { next: base, limit, live: BTreeMap::new(), dead: BTreeMap::new() }
    }

    /// Gives out `bytes` to work ordered after what `clock` covers, or usable by everybody at once where there is none.
    /// `fits` says whether memory that nobody holds may be taken.
    pub(crate) fn take(
        &mut self,
        bytes: u64,
        kind: Kind,
        clock: Option<&Clock>,
        fits: bool,
        random: &mut Random,
    ) -> Option<Taken> {
        let is_legal = |dead: &Dead| match dead.freed {
            None => fits,
            Some((_, epoch)) => clock.is_some_and(|clock| clock.covers(epoch)),
        };
        let candidates = self.dead.iter().filter(|(_, dead)| dead.len >= bytes && is_legal(dead));
        let candidates: Vec<u64> = candidates.map(|(start, _)| *start).take(8).collect();
        let taken = if candidates.is_empty() {
            (fits && bytes <= self.limit - self.next).then(|| {
                self.next += bytes;
                Taken { ptr: self.next - bytes, is_held: false }
            })?
        } else {
            self.carve(candidates[random.index(candidates.len())], bytes, random.below(4) == 0)?
        };
        self.live.insert(taken.ptr, (bytes, kind));
        Some(taken)
    }

    /// Takes `bytes` from an end of the dead range at `start`; the rest stays dead.
    fn carve(&mut self, start: u64, bytes: u64, from_end: bool) -> Option<Taken> {
        let dead = self.dead.remove(&start)?;
        let rest = dead.len - bytes;
        let (ptr, rest_at) = if from_end { (start + rest, start) } else { (start, start + bytes) };
        if rest > 0 {
            self.dead.insert(rest_at, Dead { len: rest, ..dead });
        }
        Some(Taken { ptr, is_held: dead.freed.is_some() })
    }

    pub(crate) fn size_of(&self, ptr: u64, kind: Kind) -> Option<u64> {
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
            self.dead.insert(ptr, Dead { len, freed });
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
                self.dead.insert(at, Dead { len: len + previous.len, freed: None });
            }
            _ => {
                self.dead.insert(start, Dead { len, freed: None });
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
    fn the_plain_heap_counts_exactly_and_reuses() {
        let mut heap = Heap::new(1024, 0x1000, 1 << 20);
        let a = heap.take(512, Kind::Direct).expect("room");
        let b = heap.take(512, Kind::Direct).expect("an exact fit");
        assert_eq!(heap.take(256, Kind::Direct), None);
        assert_eq!(heap.retire(a, Kind::StreamOrdered), None, "freed as what it is not");
        assert_eq!(heap.retire(a, Kind::Direct), Some(512));
        assert_eq!(heap.retire(a, Kind::Direct), None, "freed twice");
        assert_eq!(heap.held, 1024);
        heap.recycle(a, 512);
        assert_eq!(heap.take(512, Kind::Direct), Some(a));
        assert_ne!(a, b);
    }

    #[test]
    fn the_plain_heap_joins_and_splits_what_was_given_back() {
        let mut heap = Heap::new(1 << 20, 0x1000, 0x1000 + 4 * 256);
        let take = |heap: &mut Heap, bytes| heap.take(bytes, Kind::Direct);
        let parts: Vec<u64> = (0..4).map(|_| take(&mut heap, 256).expect("room")).collect();
        assert_eq!(take(&mut heap, 256), None, "every address is held");
        for at in [2, 1] {
            heap.retire(parts[at], Kind::Direct);
            heap.recycle(parts[at], 256);
        }
        assert_eq!(take(&mut heap, 768), None, "no three of them lie together");
        assert_eq!(heap.held, 512, "a refusal holds nothing");
        assert_eq!(take(&mut heap, 512), Some(parts[1]));
        heap.retire(parts[1], Kind::Direct);
        heap.recycle(parts[1], 512);
        assert_eq!(take(&mut heap, 256), Some(parts[1]));
        heap.retire(parts[3], Kind::Direct);
        heap.recycle(parts[3], 256);
        assert_eq!(take(&mut heap, 512), Some(parts[2]), "what is left of one and the last");
    }

    #[test]
    fn an_address_is_given_out_again_to_its_own_stream_at_once_and_to_others_when_the_free_has_run() {
        let (mut space, mut random) = (EagerSpace::new(0, 1 << 20), Random::new(1));
        let (mut mine, mut theirs) = (Clock::default(), Clock::default());
        theirs.tick(1);
        let kind = Kind::StreamOrdered;
        let first = space.take(512, kind, Some(&mine), true, &mut random).expect("room");
        space.retire(first.ptr, 7, mine.tick(0));
        let other = space.take(512, kind, Some(&theirs), true, &mut random).expect("room");
        assert_ne!(other.ptr, first.ptr);
        let same = space.take(512, kind, Some(&mine), false, &mut random).expect("its own memory");
        assert_eq!(same, Taken { ptr: first.ptr, is_held: true });
        assert_eq!(space.ran(first.ptr, 512, 7), 0, "the memory went to the next life");
        space.retire(same.ptr, 9, mine.tick(0));
        assert_eq!(space.pending(), 512);
        assert_eq!(space.ran(first.ptr, 512, 9), 512);
        let reused = space.take(512, kind, None, true, &mut random);
        assert_eq!(reused, Some(Taken { ptr: first.ptr, is_held: false }));
    }

    #[test]
    fn neighbours_whose_frees_have_run_become_one() {
        let (mut space, mut random) = (EagerSpace::new(0, 1024), Random::new(1));
        let mut take = |space: &mut EagerSpace, bytes| space.take(bytes, Kind::Direct, None, true, &mut random);
        let parts: Vec<u64> = (0..4).map(|_| take(&mut space, 256).expect("room").ptr).collect();
        for at in [1, 3, 0, 2] {
            space.retire(parts[at], at as u64, Epoch::HOST);
            space.ran(parts[at], 256, at as u64);
        }
        assert_eq!(take(&mut space, 1024).map(|taken| taken.ptr), Some(0));
    }
}
