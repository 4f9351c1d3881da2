//! What a node's owner does without the lock: one compare-and-swap on one word.
//!
//! ```text
//!  63       62       61 … 56               55 … 0
//!  FROZEN   WANTED   life / 227 mod 64     bytes * 227 + life mod 227 + FROZEN + 2 * WANTED
//! ```
//!
//! The word has the bytes that can be charged at once, [sealed](super::seal), the node's life, and two flags. What the life
//! and the flags add to the product makes a key of another life, and a flag that changed by itself, as visible as any other
//! bit. Whoever has the lock *freezes* the word before looking at it: the owner's compare-and-swap then fails, and it comes
//! to the lock itself. A frozen word is an ordinary one, changed by whoever has the lock and by nobody else.

use super::Book;
use crate::format::{Words, node, product, quotient, residue, sealed};

/// The bit that says that whoever has the lock is deciding about this node.
pub(super) const FROZEN: u64 = 1 << 63;
/// The bit that says that somebody waits, or more is charged than may be: what is released here goes back at once.
pub(super) const WANTED: u64 = 1 << 62;
const LIFE_SHIFT: u32 = 56;
const LIVES: u64 = 64;
/// The most a ledger can speak of: 256 TiB.
pub const BYTES_MAX: u64 = (1 << 48) - 1;

const _: () = assert!(sealed(BYTES_MAX) + 227 + 3 < 1 << LIFE_SHIFT, "bytes, life and flags lie apart");

/// Which node, and which life of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its number.
    pub node: usize,
    /// Which life of that number.
    pub life: u64,
    /// Where the word is, and what is in it beside the bytes while nothing is to be decided.
    at: usize,
    stamp: u64,
}

impl Key {
    pub(super) const fn new(node: usize, life: u64, at: usize) -> Self {
        Self { node, life, at, stamp: stamp(life) }
    }
}

const fn stamp(life: u64) -> u64 {
    let (times, rest) = residue(life);
    ((times % LIVES) << LIFE_SHIFT) + rest
}

/// Returns the share of the flags in a word.
const fn flags_in(word: u64) -> u64 {
    let frozen = if word & FROZEN == 0 { 0 } else { FROZEN + 1 };
    let wanted = if word & WANTED == 0 { 0 } else { WANTED + 2 };
    frozen + wanted
}

/// The word of a node that has so many bytes left, with the flags whose bits are in `flags`.
pub(super) const fn left_word(life: u64, bytes: u64, flags: u64) -> u64 {
    let bytes = if bytes < BYTES_MAX { bytes } else { BYTES_MAX };
    stamp(life) + sealed(bytes) + flags_in(flags)
}

/// The bytes that a node of that life has left, unless the word is damaged.
pub(super) const fn left_in(word: u64, life: u64) -> Option<u64> {
    let bytes = quotient(word.wrapping_sub(flags_in(word)).wrapping_sub(stamp(life)));
    if bytes <= BYTES_MAX { Some(bytes) } else { None }
}

/// The word with other flags. What is damaged in it stays so.
pub(super) const fn with_flags(word: u64, flags: u64) -> u64 {
    word.wrapping_sub(flags_in(word)).wrapping_add(flags_in(flags))
}

/// How much a release leaves at most, ready to be compared with.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    bytes: u64,
    sealed: u64,
}

impl Most {
    /// So many bytes.
    pub const fn new(bytes: u64) -> Self {
        let bytes = if bytes < BYTES_MAX { bytes } else { BYTES_MAX };
        Self { bytes, sealed: sealed(bytes) }
    }

    /// So many bytes.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }
}

/// The word after a charge. Nothing where less is left, the word is damaged, or something has to be decided behind the lock.
#[inline(always)]
const fn charged(word: u64, key: Key, bytes: u64) -> Option<u64> {
    // Flags, life and seal agree exactly if the quotient is one of bytes.
    let left = quotient(word.wrapping_sub(key.stamp));
    if left <= BYTES_MAX && bytes <= left { Some(word.wrapping_sub(product(bytes))) } else { None }
}

/// The word after a release, unless more than `most` would be left or something has to be decided behind the lock. What is
/// damaged stays so, and is found by the next charge.
#[inline(always)]
const fn released(word: u64, key: Key, bytes: u64, most: u64) -> Option<u64> {
    let left = word.wrapping_sub(key.stamp);
    if left <= most && product(bytes) <= most - left { Some(word.wrapping_add(product(bytes))) } else { None }
}

impl<W: Words> Book<W> {
    /// Charges what is left at once. Fails where less is left, the word is damaged, or something has to be decided behind
    /// the lock.
    pub fn charge_left(&self, key: Key, bytes: u64) -> bool {
        self.words.update(key.at, |word| charged(word, key, bytes))
    }

    /// Charges what is left at once, if nobody else changes the word meanwhile.
    #[inline(always)]
    pub fn charge_once(&self, key: Key, bytes: u64) -> bool {
        self.words.attempt(key.at, |word| charged(word, key, bytes))
    }

    /// Puts back what was charged, unless more than `most` or than the node has would be left, or something has to be
    /// decided behind the lock.
    pub fn release_left(&self, key: Key, bytes: u64, most: Most) -> bool {
        let limit = self.sealed_most(key, most);
        bytes <= most.bytes && self.words.update(key.at, |word| released(word, key, bytes, limit))
    }

    /// Puts back what was charged, if nobody else changes the word meanwhile.
    #[inline(always)]
    pub fn release_once(&self, key: Key, bytes: u64, most: Most) -> bool {
        if bytes > most.bytes {
            return false;
        }
        let limit = self.sealed_most(key, most);
        self.words.attempt(key.at, |word| released(word, key, bytes, limit))
    }

    /// Who gives back more than was charged comes to the lock, where that is cut off.
    #[inline(always)]
    fn sealed_most(&self, key: Key, most: Most) -> u64 {
        most.sealed.min(self.words.load(key.at.wrapping_add(node::TOTAL - node::LEFT)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l7_a_bit_that_changes_and_a_key_of_another_life_are_noticed() {
        for (life, bytes) in [(0, 0), (1, 4096), (226, BYTES_MAX), (1 << 40, 1 << 30)] {
            for flags in [0, FROZEN, WANTED, FROZEN | WANTED] {
                let word = left_word(life, bytes, flags);
                assert_eq!(left_in(word, life), Some(bytes));
                assert_eq!(with_flags(word, 0), left_word(life, bytes, 0));
                for bit in 0..64 {
                    assert_eq!(left_in(word ^ 1 << bit, life), None, "{bytes} with {flags:x}, bit {bit}");
                }
                for later in (1..10_000).chain([1 << 20]) {
                    let other = life + later;
                    assert!(
                        left_in(word, other).is_none() || other % (227 * 64) == life % (227 * 64),
                        "{life}, {other}"
                    );
                }
            }
        }
    }
}
