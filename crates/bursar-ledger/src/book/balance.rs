//! Charging and releasing without the lock: one compare-and-swap on the balance of a node.
//!
//! ```text
//!  63       62              61 … 56                    55 … 0
//!  FROZEN   RETURN_CREDIT   generation / 227 mod 64    bytes * 227 + generation mod 227 + FROZEN + 2 * RETURN_CREDIT
//! ```
//!
//! The word holds the bytes that can be charged at once, [sealed], the node's generation, and two flags. The generation
//! and the flags are also added to the product, so that a key of another generation and a flag that changed by itself
//! are as visible as any other bit.
//!
//! Whoever has the lock *freezes* the word before deciding about the node: the owner's compare-and-swap then fails, and
//! the owner has to take the lock itself. A frozen word is an ordinary one that only the holder of the lock changes.

use super::Book;
use crate::format::{Words, node, product, quotient, residue, sealed};

/// The flag that is set while the holder of the lock decides about this node.
pub(super) const FROZEN: u64 = 1 << 63;
/// The flag that is set while somebody waits, or more is charged than may be: what is released here is returned at
/// once.
pub(super) const RETURN_CREDIT: u64 = 1 << 62;
const GENERATION_SHIFT: u32 = 56;
const GENERATIONS: u64 = 64;
/// The largest number of bytes in a ledger: 256 TiB less one.
pub const BYTES_MAX: u64 = (1 << 48) - 1;

const _: () = assert!(sealed(BYTES_MAX) + 227 + 3 < 1 << GENERATION_SHIFT, "bytes, generation and flags lie apart");

/// A node and its generation, which tells it from earlier and later nodes in the same row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeKey {
    /// The row of the node.
    pub node: usize,
    /// The generation of the node in that row.
    pub generation: u64,
    /// The index of the balance's word.
    at: usize,
    stamp: u64,
}

impl NodeKey {
    pub(super) const fn new(node: usize, generation: u64, at: usize) -> Self {
        Self { node, generation, at, stamp: stamp(generation) }
    }
}

const fn stamp(generation: u64) -> u64 {
    let (times, rest) = residue(generation);
    ((times % GENERATIONS) << GENERATION_SHIFT) + rest
}

/// Returns what the flags contribute to a word.
const fn flags_in(word: u64) -> u64 {
    let frozen = if word & FROZEN == 0 { 0 } else { FROZEN + 1 };
    let wanted = if word & RETURN_CREDIT == 0 { 0 } else { RETURN_CREDIT + 2 };
    frozen + wanted
}

/// Returns the word of a node with a balance of `bytes`, with the flags whose bits are in `flags`.
pub(super) const fn balance_word(generation: u64, bytes: u64, flags: u64) -> u64 {
    let bytes = if bytes < BYTES_MAX { bytes } else { BYTES_MAX };
    stamp(generation) + sealed(bytes) + flags_in(flags)
}

/// Returns the balance of a node of that generation, or `None` if the word is damaged.
pub(super) const fn balance_in(word: u64, generation: u64) -> Option<u64> {
    let bytes = quotient(word.wrapping_sub(flags_in(word)).wrapping_sub(stamp(generation)));
    if bytes <= BYTES_MAX { Some(bytes) } else { None }
}

/// Returns the word with other flags. A damaged word stays damaged.
pub(super) const fn with_flags(word: u64, flags: u64) -> u64 {
    word.wrapping_sub(flags_in(word)).wrapping_add(flags_in(flags))
}

/// The most that a release may leave as balance, ready to be compared with stored words.
#[derive(Clone, Copy, Debug)]
pub struct CreditLimit {
    bytes: u64,
    sealed: u64,
}

impl CreditLimit {
    /// Makes a limit of so many bytes.
    pub const fn new(bytes: u64) -> Self {
        let bytes = if bytes < BYTES_MAX { bytes } else { BYTES_MAX };
        Self { bytes, sealed: sealed(bytes) }
    }

    /// Returns the limit in bytes.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }
}

/// Returns the word after a charge, or `None` where the balance is too small, the word is damaged, or a flag is set.
#[inline(always)]
const fn word_after_charge(word: u64, key: NodeKey, bytes: u64) -> Option<u64> {
    // The quotient is a number of bytes exactly if flags, generation and seal agree.
    let balance = quotient(word.wrapping_sub(key.stamp));
    if balance <= BYTES_MAX && bytes <= balance { Some(word.wrapping_sub(product(bytes))) } else { None }
}

/// Returns the word after a release, or `None` where more than `most` would be left or a flag is set. A damaged word
/// stays damaged and is found by the next charge.
#[inline(always)]
const fn word_after_release(word: u64, key: NodeKey, bytes: u64, most: u64) -> Option<u64> {
    let balance = word.wrapping_sub(key.stamp);
    if balance <= most && product(bytes) <= most - balance { Some(word.wrapping_add(product(bytes))) } else { None }
}

impl<W: Words> Book<W> {
    /// Charges the balance of a node. Returns false where it is too small, the word is damaged, or the charge has to be
    /// decided behind the lock.
    pub fn charge_balance(&self, key: NodeKey, bytes: u64) -> bool {
        self.words.update(key.at, |word| word_after_charge(word, key, bytes))
    }

    /// Charges the balance of a node as [`Self::charge_balance`] does, but also fails if another thread changes the
    /// word meanwhile.
    #[inline(always)]
    pub fn charge_once(&self, key: NodeKey, bytes: u64) -> bool {
        self.words.attempt(key.at, |word| word_after_charge(word, key, bytes))
    }

    /// Releases to the balance of a node. Returns false where more than `most` or than the node's total would be left,
    /// or the release has to be decided behind the lock.
    pub fn release_to_balance(&self, key: NodeKey, bytes: u64, most: CreditLimit) -> bool {
        let limit = self.max_balance(key, most);
        bytes <= most.bytes && self.words.update(key.at, |word| word_after_release(word, key, bytes, limit))
    }

    /// Releases to the balance of a node as [`Self::release_to_balance`] does, but also fails if another thread changes
    /// the word meanwhile.
    #[inline(always)]
    pub fn release_once(&self, key: NodeKey, bytes: u64, most: CreditLimit) -> bool {
        if bytes > most.bytes {
            return false;
        }
        let limit = self.max_balance(key, most);
        self.words.attempt(key.at, |word| word_after_release(word, key, bytes, limit))
    }

    /// Returns the largest sealed balance that a release may leave. A release of more than was charged has to take the
    /// lock, where the excess is cut off.
    #[inline(always)]
    fn max_balance(&self, key: NodeKey, most: CreditLimit) -> u64 {
        most.sealed.min(self.words.load(key.at.wrapping_add(node::TOTAL - node::BALANCE)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l7_a_bit_that_changes_and_a_key_of_another_generation_are_noticed() {
        for (generation, bytes) in [(0, 0), (1, 4096), (226, BYTES_MAX), (1 << 40, 1 << 30)] {
            for flags in [0, FROZEN, RETURN_CREDIT, FROZEN | RETURN_CREDIT] {
                let word = balance_word(generation, bytes, flags);
                assert_eq!(balance_in(word, generation), Some(bytes));
                assert_eq!(with_flags(word, 0), balance_word(generation, bytes, 0));
                for bit in 0..64 {
                    assert_eq!(balance_in(word ^ 1 << bit, generation), None, "{bytes} with {flags:x}, bit {bit}");
                }
                for later in (1..10_000).chain([1 << 20]) {
                    let other = generation + later;
                    assert!(
                        balance_in(word, other).is_none() || other % (227 * 64) == generation % (227 * 64),
                        "{generation}, {other}"
                    );
                }
            }
        }
    }
}
