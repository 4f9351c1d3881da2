//! What a node's owner does without the lock: one compare-and-swap on one word.
//!
//! The word has the bytes that can be charged at once in its lower 48 bits, the node's life above them, and two flags.
//! Whoever has the lock *freezes* the word before looking at it: the owner's compare-and-swap then fails, and it comes to
//! the lock itself. A frozen word is an ordinary one, changed by whoever has the lock and by nobody else.

use super::Book;
use crate::layout::node;
use crate::words::Words;

/// Whoever has the lock is deciding about this node.
pub(super) const FROZEN: u64 = 1 << 63;
/// Somebody waits, or more is charged than may be: what is released here goes back at once.
pub(super) const WANTED: u64 = 1 << 62;
const LIFE_SHIFT: u32 = 48;
const LIFE: u64 = (1 << 14) - 1;
/// The most a ledger can speak of: 256 TiB.
pub const BYTES_MAX: u64 = (1 << LIFE_SHIFT) - 1;

/// Which node, and which life of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its number.
    pub node: usize,
    /// Which life of that number.
    pub life: u64,
    /// Where the word is, and what its upper bits are while nothing is to be decided.
    at: usize,
    stamp: u64,
}

impl Key {
    pub(super) const fn new(node: usize, life: u64, at: usize) -> Self {
        Self { node, life, at, stamp: stamp(life) }
    }
}

pub(super) const fn stamp(life: u64) -> u64 {
    (life & LIFE) << LIFE_SHIFT
}

impl<W: Words> Book<W> {
    /// Charges what is left at once. Fails where less is left, or something has to be decided behind the lock.
    #[inline(always)]
    pub fn charge_left(&self, key: Key, bytes: u64) -> bool {
        self.words.update(key.at, |word| {
            // Flags and life agree exactly if nothing remains of the upper bits.
            let left = word ^ key.stamp;
            (left <= BYTES_MAX && bytes <= left).then_some(word.wrapping_sub(bytes))
        })
    }

    /// Puts back what was charged, unless more than `most` or than the node has would be left, or something has to be
    /// decided behind the lock.
    #[inline(always)]
    pub fn release_left(&self, key: Key, bytes: u64, most: u64) -> bool {
        // Who gives back more than was charged comes to the lock, where that is cut off.
        let most = most.min(self.words.load(key.at + (node::TOTAL - node::LEFT)));
        self.words.update(key.at, |word| {
            let left = word ^ key.stamp;
            (left <= most && bytes <= most - left).then_some(word.wrapping_add(bytes))
        })
    }
}
