//! Blocks one thread has freed on one stream and may have again at once.
//!
//! A magazine is a small table by size. Only its thread puts blocks in, so a free place stays free until that thread fills
//! it, with a plain store. Anyone may take one out, by a swap on that place alone: the thread itself, or whoever would
//! otherwise have to grow the pool or refuse. So there is no lock, no line that threads share unless one drains another,
//! and nothing to go wrong between the two but a block that one of them gets and the other does not.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(loom))]
const SETS: usize = 16;
#[cfg(loom)]
const SETS: usize = 1;
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

/// The blocks of one thread and one stream.
#[derive(Debug)]
pub(super) struct Magazine {
    sets: Box<[Set; SETS]>,
    /// What the thread put in and did not take out, in units: what others took is still in it until the next count.
    held: AtomicU64,
    /// How often others have taken something out since the last count.
    drained: AtomicU64,
}

impl Default for Magazine {
    fn default() -> Self {
        Self {
            sets: Box::new(std::array::from_fn(|_| Set::default())),
            held: AtomicU64::new(0),
            drained: AtomicU64::new(0),
        }
    }
}

impl Magazine {
    #[inline]
    fn set_of(&self, len: u64) -> &Set {
        // Sizes are rarely odd, and often all multiples of some power of two.
        &self.sets[(len ^ len >> 3 ^ len >> 6) as usize % SETS]
    }

    /// A block of exactly `len` units; for the magazine's own thread.
    #[inline]
    pub(super) fn take(&self, len: u64) -> Option<u64> {
        for place in &self.set_of(len).0 {
            let word = place.load(Ordering::Relaxed);
            // Whoever else takes it leaves nothing here, so a swap gets this block or none.
            if word & LONGEST == len && place.swap(EMPTY, Ordering::Acquire) != EMPTY {
                self.held.store(self.held.load(Ordering::Relaxed).saturating_sub(len), Ordering::Relaxed);
                return Some(Kept::unpack(word).at);
            }
        }
        None
    }

    /// Keeps a block, unless its sizes' places are full or more than `most` units would lie here; for the magazine's own
    /// thread.
    #[inline]
    pub(super) fn put(&self, kept: Kept, most: u64) -> bool {
        let held = self.held.load(Ordering::Relaxed) + kept.len;
        if held > most {
            return false;
        }
        let Some(place) = self.set_of(kept.len).0.iter().find(|place| place.load(Ordering::Relaxed) == EMPTY) else {
            return false;
        };
        place.store(kept.pack(), Ordering::Release);
        self.held.store(held, Ordering::Relaxed);
        true
    }

    /// Keeps a block in the place of another where it can; answers the one that has to go. For the magazine's own thread.
    #[cold]
    pub(super) fn exchange(&self, kept: Kept, most: u64) -> Option<Kept> {
        if self.drained.swap(0, Ordering::Relaxed) > 0 {
            self.held.store(self.kept(), Ordering::Relaxed);
            if self.put(kept, most) {
                return None;
            }
        }
        let held = self.held.load(Ordering::Relaxed);
        let place = &self.set_of(kept.len).0[kept.at as usize % WAYS];
        let other = Kept::unpack(place.load(Ordering::Relaxed));
        if other.len == 0 || held + kept.len > most + other.len {
            return Some(kept);
        }
        let other = Kept::unpack(place.swap(kept.pack(), Ordering::AcqRel));
        self.held.store((held + kept.len).saturating_sub(other.len), Ordering::Relaxed);
        (other.len > 0).then_some(other)
    }

    /// What lies here now, in units.
    pub(super) fn kept(&self) -> u64 {
        self.sets.iter().flat_map(|set| &set.0).map(|place| place.load(Ordering::Relaxed) & LONGEST).sum()
    }

    /// Takes everything out; for any thread.
    pub(super) fn drain(&self, out: &mut Vec<Kept>) {
        if self.held.load(Ordering::Relaxed) > 0 {
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
        let magazine = Magazine::default();
        for n in 1..=40 {
            assert!(magazine.put(Kept { at: 1000 + n, len: n }, 10_000));
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
        let magazine = Magazine::default();
        // The first block of its sizes lies in the first of their places, where those go too whose address leaves nothing.
        let (kept, ways) = (Kept { at: 8, len: 60 }, WAYS as u64);
        let [same, other] = [0, 1].map(|place| Kept { at: 100 * ways + place, len: 60 });
        assert!(magazine.put(kept, 100));
        assert!(!magazine.put(same, 100), "more than may lie here");
        assert_eq!(magazine.exchange(other, 100), Some(other), "no other there");
        assert_eq!(magazine.exchange(same, 100), Some(kept));
        magazine.drain(&mut Vec::new());
        assert!(!magazine.put(Kept { at: 1, len: 60 }, 100), "what others took counts until the next count");
        assert_eq!(magazine.exchange(Kept { at: 1, len: 60 }, 100), None);
        magazine.drain(&mut Vec::new());
        for n in 0..ways {
            assert!(magazine.put(Kept { at: 1 + n, len: 1 }, 100));
        }
        assert!(!magazine.put(Kept { at: 50, len: 1 }, 100), "no place left for its size");
        assert!(magazine.exchange(Kept { at: 50, len: 1 }, 100).is_some_and(|other| other.at <= ways));
        assert_eq!(magazine.kept(), ways);
    }
}
