//! Free runs in the order of their addresses: first fit, and neighbours that coalesce.
//!
//! A run is an address, a length and a stamp. Eight lie in a chunk of two cache lines and 64 chunks in a group, ordered
//! by address; a change touches one of each, and a chunk of few runs is joined with its neighbour, and so is a group of
//! few chunks. A run's neighbours are the entries beside it: there is no record of what is in use, and none in the memory
//! itself.
//!
//! Where groups begin, and chunks within a group, lies side by side, and so do bounds on the lengths in them: sizes of 15
//! bits that never put a longer run below a shorter one, of which sixteen are compared at a time. So the first fit, or the
//! place of a run, is found by three short scans with hardly a branch that depends on the data. They touch a few cache
//! lines, of which only those of one chunk are ever cold: the cost hardly grows with the number of runs. A run that gets
//! shorter leaves the bounds as they are: a search that meets one which promises too much corrects it, and most are met
//! again by a request that still fits.
//!
//! First fit, and not best fit, because it packs what is in use and so leaves whole frames free: on the `llama_serve`
//! trace best fit in 2 MiB frames needs 1.021 of the live peak and first fit 1.009. Only where several streams share a
//! small pool, of which little is to spare, a large block takes the tightest fit among a few.

mod chunk;
mod tree;

use chunk::{Chunk, LONGEST, Size, Wanted};
use std::ops::Range;
use tree::Group;

/// The unit of addresses and lengths here, in bytes: what every block is aligned to.
pub(super) const UNIT: u64 = bursar_core::MIN_ALIGN;

/// A stretch of free memory, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) at: u64,
    pub(super) len: u64,
    /// The time of its lane at which the last of it was freed.
    pub(super) stamp: u64,
}

impl Run {
    pub(super) const fn end(&self) -> u64 {
        self.at + self.len
    }

    pub(super) const fn range(&self) -> Range<u64> {
        self.at..self.end()
    }

    /// Returns its length from the first multiple of `align` on.
    pub(super) const fn len_from(&self, align: u64) -> u64 {
        self.end().saturating_sub(self.at.next_multiple_of(align))
    }

    /// Grows over a run just after it.
    #[inline]
    fn take_over(&mut self, next: Self) {
        self.len += next.len;
        self.stamp = self.stamp.max(next.stamp);
    }
}

/// The number of chunks with a run that is long enough among which the tightest is looked for.
const TIGHTEST_OF: usize = 4;

/// The position of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ChunkPosition {
    group: usize,
    chunk: usize,
}

/// The position of a run; good until the runs change.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunPosition {
    chunk: ChunkPosition,
    entry: usize,
    pub(super) at: u64,
}

/// Free runs that touch no other run here, unless they were longer than [`LONGEST`] together.
#[derive(Debug, Default)]
pub(super) struct Runs<const GROUP: usize = 64> {
    /// Once there has been a run there is a group, and a chunk in it.
    #[allow(clippy::vec_box, reason = "a group that is put in moves a pointer, not a group")]
    groups: Vec<Box<Group<GROUP>>>,
    /// The start of each group.
    starts: Vec<u64>,
    /// A bound on the sizes in each group.
    bounds: Vec<Size>,
    total: u64,
    /// No stamp is later.
    latest: u64,
    /// Groups that are not in use, so that runs which come and go allocate nothing.
    #[allow(clippy::vec_box, reason = "as they lie above")]
    spare: Vec<Box<Group<GROUP>>>,
}

impl<const GROUP: usize> Runs<GROUP> {
    /// Returns the sum of all lengths, in units.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Returns the length of the longest run, in units.
    pub(super) fn longest(&self) -> u64 {
        self.chunks().map(|chunk| chunk.longest()).max().unwrap_or(0)
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.groups.iter().flat_map(|group| group.chunks())
    }

    /// Finds the run of at least `len` units with the lowest address; `len` is at least one.
    pub(super) fn find(&mut self, len: u64) -> Option<RunPosition> {
        let (position, entry) = self.search(Wanted::new(len))?;
        Some(RunPosition { chunk: position, entry, at: self.chunk(position).at(entry) })
    }

    /// Finds the first run that is long enough.
    #[inline(always)]
    fn search(&mut self, wanted: Wanted) -> Option<(ChunkPosition, usize)> {
        let mut from = 0;
        while let Some(nth) = wanted.first(&self.bounds[from..]) {
            let (group, inside) = (from + nth, &mut self.groups[from + nth]);
            if let Some((chunk, entry)) = inside.search(wanted) {
                return Some((ChunkPosition { group, chunk }, entry));
            }
            self.bounds[group] = inside.most();
            from = group + 1;
        }
        None
    }

    /// Takes `len` units out of the first run that has as many.
    #[inline(always)]
    pub(super) fn take(&mut self, len: u64) -> Option<u64> {
        let (position, entry) = self.search(Wanted::new(len))?;
        let chunk = self.chunk(position);
        let (at, is_longer) = (chunk.at(entry), chunk.len(entry) > len);
        self.total -= len;
        if is_longer {
            self.shorten(position, entry, len);
        } else {
            self.remove_entry(position, entry);
        }
        Some(at)
    }

    /// Finds the shortest run of at least `len` units in the first few chunks that have one.
    pub(super) fn find_tightest(&mut self, len: u64) -> Option<(RunPosition, u64)> {
        let (wanted, mut from, mut left) = (Wanted::new(len), 0, TIGHTEST_OF);
        let mut tightest: Option<(ChunkPosition, u64)> = None;
        while left > 0
            && let Some(nth) = wanted.first(&self.bounds[from..])
        {
            let (group, inside) = (from + nth, &mut self.groups[from + nth]);
            let (found, remaining) = inside.tightest(wanted, left);
            match found {
                Some((chunk, len)) if tightest.is_none_or(|(_, least)| len < least) => {
                    tightest = Some((ChunkPosition { group, chunk }, len));
                }
                Some(_) => {}
                None => self.bounds[group] = inside.most(),
            }
            (from, left) = (group + 1, remaining);
        }
        let (position, len) = tightest?;
        let chunk = self.chunk(position);
        let entry = chunk.of_len(len)?;
        Some((RunPosition { chunk: position, entry, at: chunk.at(entry) }, len))
    }

    /// Finds the run with the lowest address that has room for `len` units from a multiple of `align` on, a power of
    /// two.
    pub(super) fn find_aligned(&mut self, len: u64, align: u64) -> Option<RunPosition> {
        if align == 1 { self.find(len) } else { self.search_aligned(len, align) }
    }

    fn search_aligned(&self, len: u64, align: u64) -> Option<RunPosition> {
        let fits = |run: Run| ((run.at + align - 1) & !(align - 1)) + len <= run.end();
        let groups = self.groups_with(len).flat_map(|(group, inside)| {
            inside.chunks().enumerate().map(move |(chunk, inside)| (ChunkPosition { group, chunk }, inside))
        });
        let mut chunks =
            groups.filter_map(|(position, inside)| Some((position, inside, inside.iter(self.latest).position(fits)?)));
        let (position, inside, entry) = chunks.next()?;
        Some(RunPosition { chunk: position, entry, at: inside.at(entry) })
    }

    /// Returns the groups that may have a run of at least `len` units, with their positions.
    fn groups_with(&self, len: u64) -> impl Iterator<Item = (usize, &Group<GROUP>)> {
        let (groups, wanted) = (self.groups.iter().zip(&self.bounds).enumerate(), Wanted::new(len));
        groups.filter(move |(_, (_, bound))| **bound >= wanted.size).map(|(nth, (group, _))| (nth, &**group))
    }

    /// Returns the run at a position.
    pub(super) fn get(&self, position: RunPosition) -> Run {
        self.run(position.chunk, position.entry)
    }

    #[inline]
    fn run(&self, position: ChunkPosition, entry: usize) -> Run {
        self.chunk(position).get(entry, self.latest)
    }

    /// Takes `len` units out of the run at `position`, from a multiple of `align` units on, a power of two; returns
    /// where that is. The run must have room for it.
    pub(super) fn carve(&mut self, position: RunPosition, len: u64, align: u64) -> u64 {
        let start = (position.at + align - 1) & !(align - 1);
        self.remove(position, start..start + len);
        start
    }

    /// Takes a range out of the run that holds it.
    pub(super) fn cut(&mut self, range: Range<u64>) {
        if let Some(position) = self.at_or_before(range.start) {
            self.remove(position, range);
        }
    }

    fn remove(&mut self, position: RunPosition, range: Range<u64>) {
        let run = self.get(position);
        let RunPosition { chunk: position, entry, .. } = position;
        debug_assert!(run.at <= range.start && range.end <= run.end(), "{range:?} of {run:?}");
        self.total -= range.end - range.start;
        let before = Run { len: range.start - run.at, ..run };
        let after = Run { at: range.end, len: run.end() - range.end, ..run };
        match (before.len > 0, after.len > 0) {
            (true, true) => {
                self.replace(position, entry, before);
                self.insert_entry(position, entry + 1, after);
            }
            (true, false) => self.replace(position, entry, before),
            (false, true) => self.replace(position, entry, after),
            (false, false) => self.remove_entry(position, entry),
        }
    }

    /// Inserts a run, which coalesces with its neighbours. Returns `false`, and nothing changes, where a part of it is
    /// here already.
    #[inline(always)]
    pub(super) fn insert(&mut self, Run { at, len, stamp }: Run) -> bool {
        self.insert_parts(at, len, stamp)
    }

    /// Inserts a run whose parts are passed in registers, where a run would be in memory.
    fn insert_parts(&mut self, at: u64, len: u64, stamp: u64) -> bool {
        let run = Run { at, len, stamp };
        let Some((position, entry)) = self.entry_for(run.at) else {
            self.add_first_group();
            return self.insert(run);
        };
        let after = self.begins_at(position, entry);
        let before = if entry > 0 { Some(self.run(position, entry - 1)) } else { None };
        if after < run.end() || before.is_some_and(|before| before.end() > run.at) {
            return false;
        }
        self.total += run.len;
        self.latest = self.latest.max(run.stamp);
        match before {
            _ if self.total > LONGEST => self.insert_apart(position, entry, run),
            Some(mut before) if before.end() == run.at => {
                before.take_over(run);
                if after == run.end() {
                    let (next, first) = self.here_or_next(position, entry);
                    before.take_over(self.run(next, first));
                    self.replace(position, entry - 1, before);
                    self.remove_entry(next, first);
                } else {
                    self.replace(position, entry - 1, before);
                }
            }
            _ if after == run.end() => self.extend_down(position, entry, run),
            _ => self.insert_entry(position, entry, run),
        }
        true
    }

    /// Inserts a run as it is, where all together are longer than a run can be; in pieces where it is by itself.
    #[cold]
    fn insert_apart(&mut self, position: ChunkPosition, entry: usize, run: Run) {
        let (len, rest) = (run.len.min(LONGEST), run.len.saturating_sub(LONGEST));
        self.insert_entry(position, entry, Run { len, ..run });
        if rest > 0 {
            self.total -= rest;
            self.insert(Run { at: run.at + len, len: rest, ..run });
        }
    }

    /// Extends the run at `entry`, or the first of the next chunk where there is none, down over a run just before it.
    #[inline(always)]
    fn extend_down(&mut self, position: ChunkPosition, entry: usize, mut run: Run) {
        let (position, entry) = self.here_or_next(position, entry);
        run.take_over(self.run(position, entry));
        self.replace(position, entry, run);
    }

    /// Takes out the runs that end where `range` begins and begin where it ends; returns all of it together.
    #[inline]
    pub(super) fn take_beside(&mut self, mut range: Range<u64>) -> Range<u64> {
        let Some((position, entry)) = self.entry_for(range.start) else { return range };
        let before = entry.checked_sub(1).map(|before| self.run(position, before));
        if self.begins_at(position, entry) == range.end {
            let (next, first) = self.here_or_next(position, entry);
            range.end = self.run(next, first).end();
            self.take_out(next, first);
        }
        if let Some(before) = before.filter(|before| before.end() == range.start) {
            range.start = before.at;
            self.take_starting_at(before.at);
        }
        range
    }

    fn take_out(&mut self, position: ChunkPosition, entry: usize) {
        self.total -= self.run(position, entry).len;
        self.remove_entry(position, entry);
    }

    /// Takes the run that begins at `at` out, if there is one.
    pub(super) fn take_starting_at(&mut self, at: u64) -> Option<Run> {
        let position = self.at_or_before(at).filter(|position| position.at == at)?;
        let run = self.get(position);
        self.take_out(position.chunk, position.entry);
        Some(run)
    }

    /// Returns whether the unit at `at` is in a run.
    pub(super) fn contains(&self, at: u64) -> bool {
        self.at_or_before(at).is_some_and(|position| self.get(position).end() > at)
    }

    /// Returns the run that ends at `end`.
    pub(super) fn ending_at(&self, end: u64) -> Option<Run> {
        let run = self.get(self.at_or_before(end.checked_sub(1)?)?);
        (run.end() == end).then_some(run)
    }

    /// Returns the run that begins at `at`.
    pub(super) fn starting_at(&self, at: u64) -> Option<Run> {
        self.at_or_before(at).filter(|position| position.at == at).map(|position| self.get(position))
    }

    /// Returns every run, lowest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.chunks().flat_map(|chunk| chunk.iter(self.latest))
    }

    /// Returns the runs of at least `len` units, lowest first.
    pub(super) fn iter_long(&self, len: u64) -> impl Iterator<Item = Run> + '_ {
        let chunks = self.groups_with(len).flat_map(|(_, group)| group.chunks());
        chunks.flat_map(|chunk| chunk.iter(self.latest)).filter(move |run| run.len >= len)
    }

    /// Removes every run.
    pub(super) fn clear(&mut self) {
        self.groups.iter_mut().for_each(|group| group.clear());
        let one = self.groups.len().min(1);
        self.spare.extend(self.groups.drain(one..));
        self.starts.truncate(one);
        self.bounds.truncate(one);
        self.bounds.fill(Size::NONE);
        self.total = 0;
    }

    fn at_or_before(&self, at: u64) -> Option<RunPosition> {
        let (position, entry) = self.entry_for(at)?;
        let entry = entry.checked_sub(1)?;
        Some(RunPosition { chunk: position, entry, at: self.chunk(position).at(entry) })
    }
}

#[cfg(test)]
mod tests;
