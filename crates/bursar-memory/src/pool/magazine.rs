//! Blocks one thread has freed on one stream and may have again at once.
//!
//! A magazine is a small table by size. Only its thread puts blocks in, so a free place stays free until that thread fills
//! it, with a plain store. Anyone may take one out, by a swap on that place alone: the thread itself, or whoever would
//! otherwise have to grow the pool or refuse. So there is no lock, no line that threads share unless one drains another,
//! and nothing to go wrong between the two but a block that one of them gets and the other does not.

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

/// The longest block that can be kept, in units.
pub(super) const LONGEST: u64 = (1 << LEN_BITS) - 1;

/// A block that lies in a magazine, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) at: u64,
    pub(super) len: u64,
}

/// Nothing has no length, so no block looks like this.
const EMPTY: u64 = 0;

impl Kept {
    const fn pack(self) -> u64 {
        self.at << LEN_BITS | self.len
    }

    const fn unpack(word: u64) -> Self {
        Self { at: word >> LEN_BITS, len: word & LONGEST }
    }
}

/// The places of some sizes: one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set([AtomicU64; WAYS]);

impl Set {
    fn take_all(&self) -> impl Iterator<Item = Kept> + '_ {
        let full = self.0.iter().filter(|place| place.load(Ordering::Relaxed) != EMPTY);
        full.map(|place| place.swap(EMPTY, Ordering::AcqRel)).filter(|&word| word != EMPTY).map(Kept::unpack)
    }
}

/// A free place of a magazine.
#[derive(Debug)]
pub(super) struct Place<'a> {
    magazine: &'a Magazine,
    place: &'a AtomicU64,
    len: u64,
    /// What room is left once it is filled.
    room: i64,
}

impl Place<'_> {
    /// Puts the block in that the place was found for. All that others can have done there meanwhile is swap nothing for
    /// nothing, and a swap that comes later takes the block: a store never falls between the two halves of a swap.
    #[inline]
    pub(super) fn fill(self, at: u64) {
        let word = Kept { at, len: self.len }.pack();
        if cfg!(loom) {
            // Loom lets a store fall there; see `tests/loom.rs`.
            assert_eq!(self.place.swap(word, Ordering::Release), EMPTY, "a free place stays free");
        } else {
            self.place.store(word, Ordering::Release);
        }
        self.magazine.room.store(self.room, Ordering::Relaxed);
    }
}

/// The blocks of one thread and one stream.
#[derive(Debug)]
pub(super) struct Magazine {
    sets: [Set; SETS],
    /// How much more the thread may put in, in units: what others took makes no room until the next count.
    room: AtomicI64,
    /// How often others have taken something out since the last count.
    drained: AtomicU64,
    /// How much may lie here, in units.
    most: i64,
    /// What the thread was granted and gave back while it had this at hand, in bytes; only the thread writes it.
    granted: AtomicU64,
    released: AtomicU64,
}

impl Magazine {
    /// An empty one for at most so many units.
    pub(super) fn new(most: u64) -> Self {
        let most = most.cast_signed();
        Self {
            sets: std::array::from_fn(|_| Set::default()),
            room: AtomicI64::new(most),
            drained: AtomicU64::new(0),
            most,
            granted: AtomicU64::new(0),
            released: AtomicU64::new(0),
        }
    }

    /// Sizes are often all multiples of some power of two, so the upper bits of a product tell them apart and not the lower.
    #[inline]
    fn set_of(&self, len: u64) -> &Set {
        const GOLDEN: u32 = 0x9E37_79B9;
        &self.sets[(u64::from((len as u32).wrapping_mul(GOLDEN)) >> (u32::BITS - SET_BITS)) as usize]
    }

    /// A block of exactly `len` units; for the magazine's own thread.
    #[inline(always)]
    pub(super) fn take(&self, len: u64) -> Option<u64> {
        for place in &self.set_of(len).0 {
            let word = place.load(Ordering::Relaxed);
            // Whoever else takes it leaves nothing here, so a swap gets this block or none.
            if word & LONGEST == len && place.swap(EMPTY, Ordering::Acquire) != EMPTY {
                self.make_room(len.cast_signed());
                return Some(Kept::unpack(word).at);
            }
        }
        None
    }

    /// A place for a block of `len` units, unless its sizes' places are full or there is no room for as much; for the
    /// magazine's own thread, and good until it next puts something in.
    #[inline(always)]
    pub(super) fn place_for(&self, len: u64) -> Option<Place<'_>> {
        let room = self.room.load(Ordering::Relaxed) - len.cast_signed();
        if room < 0 {
            return None;
        }
        let place = self.set_of(len).0.iter().find(|place| place.load(Ordering::Relaxed) == EMPTY)?;
        Some(Place { magazine: self, place, len, room })
    }

    /// Keeps a block, if there is a place for it; for the magazine's own thread.
    pub(super) fn put(&self, kept: Kept) -> bool {
        self.place_for(kept.len).map(|place| place.fill(kept.at)).is_some()
    }

    #[inline]
    fn make_room(&self, len: i64) {
        self.room.store(self.room.load(Ordering::Relaxed) + len, Ordering::Relaxed);
    }

    /// Keeps a block in the place of another where it can; answers the one that has to go. For the magazine's own thread.
    #[cold]
    pub(super) fn exchange(&self, kept: Kept) -> Option<Kept> {
        if self.drained.swap(0, Ordering::Relaxed) > 0 {
            self.room.store(self.most - self.kept().cast_signed(), Ordering::Relaxed);
            if self.put(kept) {
                return None;
            }
        }
        let place = &self.set_of(kept.len).0[kept.at as usize % WAYS];
        let gained = |other: Kept| other.len.cast_signed() - kept.len.cast_signed();
        let other = Kept::unpack(place.load(Ordering::Relaxed));
        if other.len == 0 || self.room.load(Ordering::Relaxed) + gained(other) < 0 {
            return Some(kept);
        }
        // If another took it meanwhile there is less than no room, until the next count.
        let other = Kept::unpack(place.swap(kept.pack(), Ordering::AcqRel));
        self.make_room(gained(other));
        (other.len > 0).then_some(other)
    }

    /// Counts a grant; for the magazine's own thread.
    #[inline]
    pub(super) fn granted(&self, bytes: u64) {
        self.granted.store(self.granted.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Release);
    }

    /// Counts a return; for the magazine's own thread.
    #[inline]
    pub(super) fn released(&self, bytes: u64) {
        self.released.store(self.released.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Release);
    }

    /// What was granted, in bytes, modulo 2⁶⁴.
    pub(super) fn granted_total(&self) -> u64 {
        self.granted.load(Ordering::Acquire)
    }

    /// What was given back, in bytes, modulo 2⁶⁴.
    pub(super) fn released_total(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    /// What lies here now, in units.
    pub(super) fn kept(&self) -> u64 {
        self.sets.iter().flat_map(|set| &set.0).map(|place| place.load(Ordering::Relaxed) & LONGEST).sum()
    }

    /// Takes everything out; for any thread.
    pub(super) fn drain(&self, out: &mut Vec<Kept>) {
        if self.room.load(Ordering::Relaxed) < self.most {
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
            assert!(magazine.put(Kept { at: 1000 + n, len: n }));
        }
        assert_eq!(magazine.take(7), Some(1007));
        assert_eq!(magazine.take(7), None);
        let mut rest = Vec::new();
        magazine.drain(&mut rest);
        rest.sort_by_key(|kept| kept.at);
        let expected: Vec<_> = (1..=40).filter(|&n| n != 7).map(|n| Kept { at: 1000 + n, len: n }).collect();
        assert_eq!(rest, expected);
        magazine.drain(&mut rest);
        assert_eq!(rest.len(), expected.len());
    }

    #[test]
    fn it_is_bounded_in_bytes_and_in_blocks_and_exchanges() {
        let magazine = Magazine::new(100);
        // The first block of its sizes lies in the first of their places, where those go too whose address leaves nothing.
        let (kept, ways) = (Kept { at: 8, len: 60 }, WAYS as u64);
        let [same, other] = [0, 1].map(|place| Kept { at: 100 * ways + place, len: 60 });
        assert!(magazine.put(kept));
        assert!(!magazine.put(same), "more than may lie here");
        assert_eq!(magazine.exchange(other), Some(other), "no other there");
        assert_eq!(magazine.exchange(same), Some(kept));
        magazine.drain(&mut Vec::new());
        assert!(!magazine.put(Kept { at: 1, len: 60 }), "what others took counts until the next count");
        assert_eq!(magazine.exchange(Kept { at: 1, len: 60 }), None);
        magazine.drain(&mut Vec::new());
        for n in 0..ways {
            assert!(magazine.put(Kept { at: 1 + n, len: 1 }));
        }
        assert!(!magazine.put(Kept { at: 50, len: 1 }), "no place left for its size");
        assert!(magazine.exchange(Kept { at: 50, len: 1 }).is_some_and(|other| other.at <= ways));
        assert_eq!(magazine.kept(), ways);
    }
}
