//! Limbo: memory that was freed on another stream than its own, before either stream is known to have passed the free.
//!
//! Such a free calls no driver and orders nothing. It is entered with the time of both streams' lanes, and once one of
//! the two is known to have passed its time, or a stream is made to wait for it, the memory is the other's: it moves into
//! that one's lane, or, where both have passed, to the common runs. For each pair of streams the frees are kept in their
//! order, so both times only grow, and what one question or one wait settles is what comes first.

use bursar_core::Stream;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// A free in limbo: `len` units at `at`, with the times of the lanes of the block's own stream and of the one it was
/// freed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimboFree {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) home_time: u64,
    pub(super) time: u64,
}

/// The frees on one stream of blocks of another, in their order.
#[derive(Debug)]
pub(super) struct StreamPair {
    /// The blocks' own stream.
    pub(super) home: Stream,
    /// The stream that they were freed on.
    pub(super) stream: Stream,
    frees: VecDeque<LimboFree>,
}

impl StreamPair {
    fn key(&self) -> (usize, usize) {
        (self.home.slot(), self.stream.slot())
    }

    fn has(&self, slot: usize) -> bool {
        self.home.slot() == slot || self.stream.slot() == slot
    }
}

/// All memory in limbo.
#[derive(Debug, Default)]
pub(super) struct Limbo {
    /// In the order of the slots of both streams.
    pairs: Vec<StreamPair>,
    /// The addresses that the frees begin at, so that the same block is not entered twice.
    starts: HashSet<u64, BuildHasherDefault<StartHasher>>,
    units: u64,
}

impl Limbo {
    /// Returns what is in limbo, in units.
    pub(super) const fn units(&self) -> u64 {
        self.units
    }

    /// Enters a free of a block of `home` on `stream`, at times that are not before those of earlier frees of the two.
    /// Returns `false`, and nothing changes, where the block is here already.
    pub(super) fn enter(&mut self, home: Stream, stream: Stream, free: LimboFree) -> bool {
        if !self.starts.insert(free.at) {
            return false;
        }
        let key = (home.slot(), stream.slot());
        let found = self.pairs.binary_search_by_key(&key, StreamPair::key);
        let index = found.unwrap_or_else(|index| {
            self.pairs.insert(index, StreamPair { home, stream, frees: VecDeque::new() });
            index
        });
        let frees = &mut self.pairs[index].frees;
        debug_assert!(frees.back().is_none_or(|last| last.home_time <= free.home_time && last.time <= free.time));
        frees.push_back(free);
        self.units += free.len;
        true
    }

    /// Takes out the first frees of each pair with the stream at `slot`, as long as `is_settled` says so of one, which
    /// is given the slots of the pair, and passes them to `then`.
    pub(super) fn settle(
        &mut self,
        slot: usize,
        is_settled: impl Fn((usize, usize), &LimboFree) -> bool,
        then: impl FnMut((usize, usize), LimboFree),
    ) {
        self.settle_where(|pair| pair.has(slot), is_settled, then);
    }

    /// As [`settle`](Self::settle), of all pairs.
    pub(super) fn settle_all(
        &mut self,
        is_settled: impl Fn((usize, usize), &LimboFree) -> bool,
        then: impl FnMut((usize, usize), LimboFree),
    ) {
        self.settle_where(|_| true, is_settled, then);
    }

    fn settle_where(
        &mut self,
        of: impl Fn(&StreamPair) -> bool,
        is_settled: impl Fn((usize, usize), &LimboFree) -> bool,
        mut then: impl FnMut((usize, usize), LimboFree),
    ) {
        for pair in self.pairs.iter_mut().filter(|pair| of(pair)) {
            let key = pair.key();
            while let Some(&free) = pair.frees.front().filter(|free| is_settled(key, free)) {
                pair.frees.pop_front();
                self.starts.remove(&free.at);
                self.units -= free.len;
                then(key, free);
            }
        }
    }

    /// Takes out all pairs with a stream that ends.
    pub(super) fn take_pairs_of(&mut self, slot: usize) -> Vec<(Stream, Stream, Vec<LimboFree>)> {
        let mut taken = Vec::new();
        for StreamPair { home, stream, frees } in self.pairs.extract_if(.., |pair| pair.has(slot)) {
            for free in &frees {
                self.starts.remove(&free.at);
                self.units -= free.len;
            }
            taken.push((home, stream, frees.into()));
        }
        taken
    }

    /// Returns the slots of the streams with something in limbo; those that share it with the stream at `slot` come
    /// first.
    pub(super) fn streams(&self, slot: Option<usize>) -> Vec<usize> {
        let of = |pair: &StreamPair| [pair.home.slot(), pair.stream.slot()];
        let full = || self.pairs.iter().filter(|pair| !pair.frees.is_empty());
        let beside = full().filter(|pair| slot.is_some_and(|slot| pair.has(slot)));
        let mut slots = Vec::new();
        for slot in beside.chain(full()).flat_map(of).filter(|&other| Some(other) != slot) {
            if !slots.contains(&slot) {
                slots.push(slot);
            }
        }
        slots
    }

    /// Returns the slots of the streams that share something in limbo with the stream at `slot`.
    pub(super) fn partners(&self, slot: usize) -> Vec<usize> {
        let shared = self.pairs.iter().filter(|pair| pair.has(slot) && !pair.frees.is_empty());
        let mut partners: Vec<_> = shared.flat_map(|pair| [pair.home.slot(), pair.stream.slot()]).collect();
        partners.retain(|&other| other != slot);
        partners.sort_unstable();
        partners.dedup();
        partners
    }

    /// Returns everything in limbo.
    pub(super) fn iter(&self) -> impl Iterator<Item = &LimboFree> {
        self.pairs.iter().flat_map(|pair| &pair.frees)
    }
}

/// Spreads addresses, which differ in few bits, over a table.
#[derive(Debug, Default)]
pub(super) struct StartHasher(u64);

impl Hasher for StartHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.0 ^ u64::from(byte)));
    }

    fn write_u64(&mut self, start: u64) {
        // An odd number without a pattern; the upper half, which depends on all bits, is the table's lower.
        self.0 = start.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}
