//! A magazine: blocks that one thread has freed on one stream and may have again at once.
//!
//! It is a small set-associative table, by size. Only its thread puts blocks in, so an empty entry stays empty until
//! that thread fills it, with a plain store. Anyone may take one out, by a swap on that entry alone: the thread itself,
//! or whoever would otherwise have to grow the pool or refuse. So there is no lock, no cache line that threads share
//! unless one drains another, and all that can happen between the two is that one of them gets a block and the other
//! does not.

use super::extent::Extent;
#[cfg(loom)]
use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

#[cfg(not(loom))]
const SET_BITS: u32 = 4;
#[cfg(loom)]
const SET_BITS: u32 = 0;
const SETS: usize = 1 << SET_BITS;
#[cfg(not(loom))]
const WAYS: usize = 8;
#[cfg(loom)]
const WAYS: usize = 2;

const LEN_BITS: u32 = 13;

/// The longest block that fits, in units.
pub(super) const LONGEST: u64 = (1 << LEN_BITS) - 1;

/// The word of an empty entry: every block has a length, so no block looks like this.
const EMPTY: u64 = 0;

impl Extent {
    const fn pack(self) -> u64 {
        self.at << LEN_BITS | self.len
    }

    const fn unpack(word: u64) -> Self {
        Self { at: word >> LEN_BITS, len: word & LONGEST }
    }
}

/// The entries of some sizes: one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set([AtomicU64; WAYS]);

impl Set {
    fn take_all(&self) -> impl Iterator<Item = Extent> + '_ {
        let full = self.0.iter().filter(|entry| entry.load(Ordering::Relaxed) != EMPTY);
        full.map(|entry| entry.swap(EMPTY, Ordering::AcqRel)).filter(|&word| word != EMPTY).map(Extent::unpack)
    }
}

/// An empty entry of a magazine.
#[derive(Debug)]
pub(super) struct VacantEntry<'a> {
    magazine: &'a Magazine,
    entry: &'a AtomicU64,
    len: u64,
    /// The room that is left once it is filled.
    room: i64,
}

impl VacantEntry<'_> {
    /// Puts the block in that the entry was found for. A plain store is enough: other threads only swap entries with
    /// [`EMPTY`], so a swap before the store finds the entry empty and changes nothing, and a swap after it takes the
    /// block. A swap is atomic, so the store is never lost in the middle of one.
    #[inline]
    pub(super) fn fill(self, at: u64) {
        let word = Extent { at, len: self.len }.pack();
        if cfg!(loom) {
            // Loom lets a plain store fall into the middle of a swap; see `tests/loom.rs`.
            assert_eq!(self.entry.swap(word, Ordering::Release), EMPTY, "an empty entry stays empty");
        } else {
            self.entry.store(word, Ordering::Release);
        }
        self.magazine.room.store(self.room, Ordering::Relaxed);
    }
}

/// The blocks of one thread and one stream, on cache lines that are no neighbours of another's: processors fetch lines in
/// pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Magazine {
    sets: [Set; SETS],
    /// The units that the thread may still put in. Blocks that other threads took count as present until the thread
    /// counts again.
    room: AtomicI64,
    /// The number of times that other threads have taken blocks out since the thread last counted.
    drained: AtomicU64,
    /// The most that may lie here, in units.
    capacity: i64,
    /// The bytes that the thread was granted and gave back while this was its recent magazine; only the thread writes
    /// them.
    granted: AtomicU64,
    released: AtomicU64,
}

impl Magazine {
    /// Makes an empty magazine for at most `capacity` units.
    pub(super) fn new(capacity: u64) -> Self {
        let capacity = capacity.cast_signed();
        Self {
            sets: std::array::from_fn(|_| Set::default()),
            room: AtomicI64::new(capacity),
            drained: AtomicU64::new(0),
            capacity,
            granted: AtomicU64::new(0),
            released: AtomicU64::new(0),
        }
    }

    /// Returns the set of a size. Sizes are often all multiples of some power of two, so the upper bits of a product
    /// tell them apart and not the lower.
    #[inline]
    fn set_of(&self, len: u64) -> &Set {
        const GOLDEN: u32 = 0x9E37_79B9;
        &self.sets[(u64::from((len as u32).wrapping_mul(GOLDEN)) >> (u32::BITS - SET_BITS)) as usize]
    }

    /// Takes a block of exactly `len` units; for the magazine's own thread.
    #[inline(always)]
    pub(super) fn take(&self, len: u64) -> Option<u64> {
        for entry in &self.set_of(len).0 {
            let word = entry.load(Ordering::Relaxed);
            // Whoever else takes it leaves nothing here, so a swap gets this block or none.
            if word & LONGEST == len && entry.swap(EMPTY, Ordering::Acquire) != EMPTY {
                self.make_room(len.cast_signed());
                return Some(Extent::unpack(word).at);
            }
        }
        None
    }

    /// Returns an entry for a block of `len` units, unless those of its size are full or there is no room for as much;
    /// for the magazine's own thread, and good until it next puts something in.
    #[inline(always)]
    pub(super) fn vacant_entry(&self, len: u64) -> Option<VacantEntry<'_>> {
        let room = self.room.load(Ordering::Relaxed) - len.cast_signed();
        if room < 0 {
            return None;
        }
        let entry = self.set_of(len).0.iter().find(|entry| entry.load(Ordering::Relaxed) == EMPTY)?;
        Some(VacantEntry { magazine: self, entry, len, room })
    }

    /// Puts a block in and returns whether there was an entry for it; for the magazine's own thread.
    pub(super) fn put(&self, extent: Extent) -> bool {
        self.vacant_entry(extent.len).map(|entry| entry.fill(extent.at)).is_some()
    }

    #[inline]
    fn make_room(&self, len: i64) {
        self.room.store(self.room.load(Ordering::Relaxed) + len, Ordering::Relaxed);
    }

    /// Puts a block in, in the entry of another where it can, and returns the one that has to go; for the magazine's
    /// own thread.
    #[cold]
    pub(super) fn exchange(&self, extent: Extent) -> Option<Extent> {
        if self.drained.swap(0, Ordering::Relaxed) > 0 {
            self.room.store(self.capacity - self.units().cast_signed(), Ordering::Relaxed);
            if self.put(extent) {
                return None;
            }
        }
        let entry = &self.set_of(extent.len).0[extent.at as usize % WAYS];
        let gained = |other: Extent| other.len.cast_signed() - extent.len.cast_signed();
        let other = Extent::unpack(entry.load(Ordering::Relaxed));
        if other.len == 0 || self.room.load(Ordering::Relaxed) + gained(other) < 0 {
            return Some(extent);
        }
        // If another thread took the block meanwhile, nothing leaves, and `room` may be negative until the next count.
        let other = Extent::unpack(entry.swap(extent.pack(), Ordering::AcqRel));
        self.make_room(gained(other));
        (other.len > 0).then_some(other)
    }

    /// Counts a grant; for the magazine's own thread.
    #[inline]
    pub(super) fn count_granted(&self, bytes: u64) {
        self.granted.store(self.granted.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Release);
    }

    /// Counts a return; for the magazine's own thread.
    #[inline]
    pub(super) fn count_released(&self, bytes: u64) {
        self.released.store(self.released.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Release);
    }

    /// Returns what was ever granted, in bytes, modulo 2⁶⁴.
    pub(super) fn granted_total(&self) -> u64 {
        self.granted.load(Ordering::Acquire)
    }

    /// Returns what was ever given back, in bytes, modulo 2⁶⁴.
    pub(super) fn released_total(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    /// Returns what lies here now, in units.
    pub(super) fn units(&self) -> u64 {
        self.sets.iter().flat_map(|set| &set.0).map(|entry| entry.load(Ordering::Relaxed) & LONGEST).sum()
    }

    /// Takes everything out; for any thread.
    pub(super) fn drain(&self, out: &mut Vec<Extent>) {
        if self.room.load(Ordering::Relaxed) < self.capacity {
            out.extend(self.sets.iter().flat_map(Set::take_all));
            self.drained.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_in_comes_out_once_and_by_its_size() {
        let magazine = Magazine::new(10_000);
        for n in 1..=40 {
            assert!(magazine.put(Extent { at: 1000 + n, len: n }));
        }
        assert_eq!(magazine.take(7), Some(1007));
        assert_eq!(magazine.take(7), None);
        let mut rest = Vec::new();
        magazine.drain(&mut rest);
        rest.sort_by_key(|extent| extent.at);
        let expected: Vec<_> = (1..=40).filter(|&n| n != 7).map(|n| Extent { at: 1000 + n, len: n }).collect();
        assert_eq!(rest, expected);
        magazine.drain(&mut rest);
        assert_eq!(rest.len(), expected.len());
    }

    #[test]
    fn it_is_bounded_in_bytes_and_in_blocks_and_exchanges() {
        let magazine = Magazine::new(100);
        // The first block of its size lies in the first entry of its set; `exchange` chooses the entry by address.
        let (kept, ways) = (Extent { at: 8, len: 60 }, WAYS as u64);
        let [same, other] = [0, 1].map(|place| Extent { at: 100 * ways + place, len: 60 });
        assert!(magazine.put(kept));
        assert!(!magazine.put(same), "more than may lie here");
        assert_eq!(magazine.exchange(other), Some(other), "no other there");
        assert_eq!(magazine.exchange(same), Some(kept));
        magazine.drain(&mut Vec::new());
        assert!(!magazine.put(Extent { at: 1, len: 60 }), "what others took counts until the next count");
        assert_eq!(magazine.exchange(Extent { at: 1, len: 60 }), None);
        magazine.drain(&mut Vec::new());
        for n in 0..ways {
            assert!(magazine.put(Extent { at: 1 + n, len: 1 }));
        }
        assert!(!magazine.put(Extent { at: 50, len: 1 }), "no entry left for its size");
        assert!(magazine.exchange(Extent { at: 50, len: 1 }).is_some_and(|other| other.at <= ways));
        assert_eq!(magazine.units(), ways);
    }
}
