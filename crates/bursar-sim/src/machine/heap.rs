//! The heap of an immediate simulator, on which a call costs a few dozen instructions.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// The alignment of allocations, and the multiple that their sizes are rounded up to.
pub(crate) const UNIT: u64 = 256;

/// The allocator of an allocation, which must also free it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocationKind {
    Direct,
    StreamOrdered,
}

/// A hasher for integers that takes one multiplication.
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

/// The memory of one device: the bytes held, and the allocations of an immediate simulator.
#[derive(Debug)]
pub(crate) struct Heap {
    pub(crate) total: u64,
    pub(crate) held: u64,
    /// True once bytes were written to an allocation, so that a free must discard contents.
    pub(crate) is_touched: bool,
    next: u64,
    limit: u64,
    live: IntegerMap<(u64, AllocationKind)>,
    spare: IntegerMap<Vec<u64>>,
    /// The live allocations by address, kept from the first question about an address inside one.
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

    /// Counts `bytes` as held, if they fit. Returns whether they did.
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

    /// Allocates `bytes`, a multiple of [`UNIT`].
    #[inline]
    pub(crate) fn take(&mut self, bytes: u64, kind: AllocationKind) -> Option<u64> {
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

    /// Adds an allocation of `bytes` to the order of addresses, or removes it where there are none. Most simulators never
    /// need that order.
    #[cold]
    fn order(&mut self, ptr: u64, bytes: Option<u64>) {
        if let Some(ordered) = &mut self.ordered {
            match bytes {
                Some(bytes) => drop(ordered.insert(ptr, bytes)),
                None => drop(ordered.remove(&ptr)),
            }
        }
    }

    /// Returns whether a range lies in one allocation.
    pub(crate) fn contains(&mut self, range: &Range<u64>) -> bool {
        if let Some((bytes, _)) = self.live.get(&range.start) {
            return range.end - range.start <= *bytes;
        }
        let live = &self.live;
        let ordered = self.ordered.get_or_insert_with(|| live.iter().map(|(at, (bytes, _))| (*at, *bytes)).collect());
        ordered.range(..=range.start).next_back().is_some_and(|(start, bytes)| range.end <= start + bytes)
    }

    /// Finds addresses among those that were freed, of whatever size, once no new ones are left.
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

    /// Joins neighbours among the freed addresses, and those at the end with the new ones.
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

    /// Ends an allocation, whose memory stays held. Returns its size.
    #[inline]
    pub(crate) fn retire(&mut self, ptr: u64, kind: AllocationKind) -> Option<u64> {
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

    /// Takes back the memory of an allocation that has ended.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_heap_counts_exactly_and_reuses() {
        let mut heap = Heap::new(1024, 0x1000, 1 << 20);
        let a = heap.take(512, AllocationKind::Direct).expect("room");
        let b = heap.take(512, AllocationKind::Direct).expect("an exact fit");
        assert_eq!(heap.take(256, AllocationKind::Direct), None);
        assert_eq!(heap.retire(a, AllocationKind::StreamOrdered), None, "freed as what it is not");
        assert_eq!(heap.retire(a, AllocationKind::Direct), Some(512));
        assert_eq!(heap.retire(a, AllocationKind::Direct), None, "freed twice");
        assert_eq!(heap.held, 1024);
        heap.recycle(a, 512);
        assert_eq!(heap.take(512, AllocationKind::Direct), Some(a));
        assert_ne!(a, b);
    }

    #[test]
    fn the_plain_heap_joins_and_splits_what_was_given_back() {
        let mut heap = Heap::new(1 << 20, 0x1000, 0x1000 + 4 * 256);
        let take = |heap: &mut Heap, bytes| heap.take(bytes, AllocationKind::Direct);
        let parts: Vec<u64> = (0..4).map(|_| take(&mut heap, 256).expect("room")).collect();
        assert_eq!(take(&mut heap, 256), None, "every address is held");
        for at in [2, 1] {
            heap.retire(parts[at], AllocationKind::Direct);
            heap.recycle(parts[at], 256);
        }
        assert_eq!(take(&mut heap, 768), None, "no three of them lie together");
        assert_eq!(heap.held, 512, "a refusal holds nothing");
        assert_eq!(take(&mut heap, 512), Some(parts[1]));
        heap.retire(parts[1], AllocationKind::Direct);
        heap.recycle(parts[1], 512);
        assert_eq!(take(&mut heap, 256), Some(parts[1]));
        heap.retire(parts[3], AllocationKind::Direct);
        heap.recycle(parts[3], 256);
        assert_eq!(take(&mut heap, 512), Some(parts[2]), "what is left of one and the last");
    }
}
