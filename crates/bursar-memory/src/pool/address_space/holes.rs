//! The addresses of a pool with nothing mapped there.

use std::collections::BTreeMap;
use std::ops::Range;

/// Stretches of reserved addresses with nothing mapped there, none of which touch.
#[derive(Debug)]
pub(super) struct Holes {
    /// First address to length.
    lens: BTreeMap<u64, u64>,
}

impl Holes {
    /// Makes one hole of a range, or none of an empty one.
    pub(super) fn new(range: &Range<u64>) -> Self {
        let lens = if range.is_empty() { BTreeMap::new() } else { [(range.start, range.end - range.start)].into() };
        Self { lens }
    }

    /// Returns every hole: its first address and its length, lowest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.lens.iter().map(|(&at, &len)| (at, len))
    }

    /// Returns the length of the hole that begins at `at`, 0 where none does.
    pub(super) fn len_at(&self, at: u64) -> u64 {
        self.lens.get(&at).copied().unwrap_or(0)
    }

    /// Takes all addresses out, if all of them are one hole; returns whether they were.
    pub(super) fn take_all(&mut self, all: &Range<u64>) -> bool {
        let is_whole = self.lens.len() == 1 && self.len_at(all.start) == all.end - all.start;
        if is_whole {
            self.lens.clear();
        }
        is_whole
    }

    /// Claims addresses: takes them out of the hole they are in.
    pub(super) fn claim(&mut self, at: u64, len: u64) {
        let Some((&start, &hole)) = self.lens.range(..=at).next_back() else { return };
        debug_assert!(at + len <= start + hole, "addresses that are free");
        self.lens.remove(&start);
        if start < at {
            self.lens.insert(start, at - start);
        }
        if at + len < start + hole {
            self.lens.insert(at + len, start + hole - at - len);
        }
    }

    /// Releases addresses that nothing is mapped at any more, which become a hole, or part of one.
    pub(super) fn release(&mut self, mut at: u64, mut len: u64) {
        if len == 0 {
            return;
        }
        if let Some((&start, &hole)) = self.lens.range(..at).next_back()
            && start + hole == at
        {
            self.lens.remove(&start);
            (at, len) = (start, hole + len);
        }
        if let Some(next) = self.lens.remove(&(at + len)) {
            len += next;
        }
        self.lens.insert(at, len);
    }
}
