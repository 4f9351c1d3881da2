//! Free runs in the order of their addresses: the first that fits, and neighbours that grow together.
//!
//! Runs lie in chunks, chunks in groups, and each knows how long a run in it may be. So the first fit is found by three
//! short scans, and a run's neighbours are the entries beside it: there is no record of what is in use, and none in the
//! memory itself. First fit keeps what is in use at low addresses and packed, which is what leaves whole frames
//! free; and what it costs hardly grows with the number of runs.
//!
//! A run that gets shorter leaves these bounds as they are: a search that meets one which promises too much puts it right,
//! and most are met again by a request that still fits.

mod chunk;
mod group;
mod shape;
mod sizes;
mod starts;

use chunk::Chunk;
use group::Group;
use sizes::Wanted;
use starts::{Starts, class};
use std::ops::Range;

/// The unit of addresses and lengths here, in bytes: what every block is aligned to.
pub(super) const UNIT: u64 = bursar_core::MIN_ALIGN;

/// A stretch of free memory, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) at: u64,
    pub(super) len: u64,
    /// When the last of it was freed, in its lane's own time.
    pub(super) stamp: u64,
}

impl Run {
    pub(super) const fn end(&self) -> u64 {
        self.at + self.len
    }

    pub(super) const fn range(&self) -> Range<u64> {
        self.at..self.end()
    }

    /// Grows over a run just after it.
    #[inline]
    fn take_over(&mut self, next: Self) {
        self.len += next.len;
        self.stamp = self.stamp.max(next.stamp);
    }
}

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    group: usize,
    chunk: usize,
}

/// Where a run is; good until the runs change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    place: Place,
    entry: usize,
    pub(super) at: u64,
}

/// Free runs that touch no other run here.
#[derive(Debug, Default)]
#[allow(clippy::vec_box, reason = "a chunk that is put in moves a pointer, not a chunk")]
pub(super) struct Runs {
    /// Once there has been a run there is a group, and a chunk in it.
    groups: Vec<Box<Group>>,
    total: u64,
    /// Where searches begin while there are several groups.
    starts: Starts,
    /// Chunks that are not in use, so that runs which come and go allocate nothing.
    spare: Vec<Box<Chunk>>,
}

impl Runs {
    /// How much there is in all, in units.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The longest run, in units.
    pub(super) fn longest(&self) -> u64 {
        self.chunks().map(|chunk| chunk.longest()).max().unwrap_or(0)
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.groups.iter().flat_map(|group| group.chunks()).map(|chunk| &**chunk)
    }

    /// The run of at least `len` units with the lowest address; `len` is at least one.
    pub(super) fn find(&mut self, len: u64) -> Option<Spot> {
        self.search(len, |group, place, entry| Spot { place, entry, at: group.chunk(place.chunk).at(entry) })
    }

    /// Looks for the first run of at least `len` units, and lets `then` have its group, its chunk's place and its entry.
    #[inline(always)]
    fn search<T>(&mut self, len: u64, then: impl FnOnce(&mut Group, Place, usize) -> T) -> Option<T> {
        let wanted = Wanted::new(len);
        let mut group = if self.groups.len() > 1 { self.start(wanted) } else { 0 };
        while let Some(inside) = self.groups.get_mut(group) {
            if inside.may_have(wanted) {
                let mut from = 0;
                while let Some(chunk) = inside.promising(from, wanted) {
                    if let Some(entry) = inside.chunk(chunk).first_of(wanted) {
                        return Some(then(inside, Place { group, chunk }, entry));
                    }
                    inside.tighten_chunk(chunk);
                    from = chunk + 1;
                }
                inside.tighten();
            }
            group += 1;
        }
        None
    }

    /// Takes `len` units out of the first run that has as many.
    #[inline(always)]
    pub(super) fn take(&mut self, len: u64) -> Option<u64> {
        let (at, place, entry, whole) = self.search(len, |group, place, entry| {
            let run = group.chunk(place.chunk).get(entry);
            if run.len > len {
                group.shorten(place.chunk, entry, len);
            }
            (run.at, place, entry, run.len == len)
        })?;
        self.total -= len;
        if whole {
            self.remove_entry(place, entry);
        }
        Some(at)
    }

    /// The first group that may have as long a run; searches for its class, and for those above, begin there from here on.
    #[cold]
    fn start(&mut self, wanted: Wanted) -> usize {
        let class = class(wanted.len);
        let least = Wanted::new(1 << class);
        let from = self.starts.of(class);
        let found = self.groups[from..].iter().position(|group| group.may_have(least));
        let start = found.map_or(self.groups.len(), |nth| from + nth);
        self.starts.move_up(class, start);
        start
    }

    /// The run with the lowest address that has room for `len` units from a multiple of `align` on, a power of two.
    pub(super) fn find_aligned(&mut self, len: u64, align: u64) -> Option<Spot> {
        if align == 1 { self.find(len) } else { self.search_aligned(len, align) }
    }

    fn search_aligned(&self, len: u64, align: u64) -> Option<Spot> {
        let fits = |run: Run| ((run.at + align - 1) & !(align - 1)) + len <= run.end();
        let groups = self.groups.iter().enumerate().filter(|(_, group)| group.may_have(Wanted::new(len)));
        let mut chunks = groups.flat_map(|(group, inside)| {
            let chunks = inside.chunks().iter().enumerate();
            chunks.map(move |(chunk, inside)| (Place { group, chunk }, inside))
        });
        chunks.find_map(|(place, inside)| {
            let entry = inside.iter().position(fits)?;
            Some(Spot { place, entry, at: inside.at(entry) })
        })
    }

    /// The run at a spot.
    pub(super) fn get(&self, spot: Spot) -> Run {
        self.chunk(spot.place).get(spot.entry)
    }

    /// Takes `len` units out of the run at `spot`, from a multiple of `align` units on, a power of two; answers where that
    /// is. The run must have room for it.
    pub(super) fn carve(&mut self, spot: Spot, len: u64, align: u64) -> u64 {
        let start = (spot.at + align - 1) & !(align - 1);
        self.remove(spot, start..start + len);
        start
    }

    /// Takes a range out of the run that holds it.
    pub(super) fn cut(&mut self, range: Range<u64>) {
        if let Some(spot) = self.at_or_before(range.start) {
            self.remove(spot, range);
        }
    }

    fn remove(&mut self, spot: Spot, range: Range<u64>) {
        let Spot { place, entry, .. } = spot;
        let run = self.get(spot);
        debug_assert!(run.at <= range.start && range.end <= run.end(), "{range:?} of {run:?}");
        self.total -= range.end - range.start;
        let before = Run { len: range.start - run.at, ..run };
        let after = Run { at: range.end, len: run.end() - range.end, ..run };
        match (before.len > 0, after.len > 0) {
            (true, true) => {
                self.replace(place, entry, before);
                self.insert_entry(place, entry + 1, after);
            }
            (true, false) => self.replace(place, entry, before),
            (false, true) => self.replace(place, entry, after),
            (false, false) => self.remove_entry(place, entry),
        }
    }

    /// Adds a run; neighbours become one with it. `false`, and nothing changes, where a part of it is here already.
    #[inline]
    pub(super) fn insert(&mut self, run: Run) -> bool {
        let Some((place, entry)) = self.entry_for(run.at) else {
            self.begin(run);
            return true;
        };
        let after = self.begins_at(place, entry);
        let before = if entry > 0 { Some(self.chunk(place).get(entry - 1)) } else { None };
        if after < run.end() || before.is_some_and(|before| before.end() > run.at) {
            return false;
        }
        self.total += run.len;
        match before {
            Some(mut before) if before.end() == run.at => {
                before.take_over(run);
                if after == run.end() {
                    let (next, first) = self.here_or_next(place, entry);
                    before.take_over(self.chunk(next).get(first));
                    self.replace(place, entry - 1, before);
                    self.remove_entry(next, first);
                } else {
                    self.replace(place, entry - 1, before);
                }
            }
            _ if after == run.end() => self.extend_down(place, entry, run),
            _ => self.insert_entry(place, entry, run),
        }
        true
    }

    /// Lets the run at `entry`, or the first of the next chunk where there is none, begin with a run just before it.
    #[inline(always)]
    fn extend_down(&mut self, place: Place, entry: usize, mut run: Run) {
        let (place, entry) = self.here_or_next(place, entry);
        run.take_over(self.chunk(place).get(entry));
        self.replace(place, entry, run);
    }

    /// Takes out the runs that end where `range` begins and begin where it ends; answers all of it together.
    #[inline]
    pub(super) fn take_beside(&mut self, mut range: Range<u64>) -> Range<u64> {
        let Some((place, entry)) = self.entry_for(range.start) else { return range };
        let before = entry.checked_sub(1).map(|before| self.chunk(place).get(before));
        if self.begins_at(place, entry) == range.end {
            let (next, first) = self.here_or_next(place, entry);
            range.end = self.chunk(next).get(first).end();
            self.take_out(next, first);
        }
        if let Some(before) = before.filter(|before| before.end() == range.start) {
            range.start = before.at;
            self.take_starting_at(before.at);
        }
        range
    }

    fn take_out(&mut self, place: Place, entry: usize) {
        self.total -= self.chunk(place).get(entry).len;
        self.remove_entry(place, entry);
    }

    /// Takes the run that begins at `at` out, if there is one.
    pub(super) fn take_starting_at(&mut self, at: u64) -> Option<Run> {
        let spot = self.at_or_before(at).filter(|spot| spot.at == at)?;
        let run = self.get(spot);
        self.take_out(spot.place, spot.entry);
        Some(run)
    }

    /// The run that ends at `end`.
    pub(super) fn ending_at(&self, end: u64) -> Option<Run> {
        let run = self.get(self.at_or_before(end.checked_sub(1)?)?);
        (run.end() == end).then_some(run)
    }

    /// Every run, lowest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.chunks().flat_map(Chunk::iter)
    }

    /// The runs of at least `len` units, lowest first.
    pub(super) fn iter_long(&self, len: u64) -> impl Iterator<Item = Run> + '_ {
        let groups = self.groups.iter().filter(move |group| group.may_have(Wanted::new(len)));
        groups.flat_map(|group| group.chunks()).flat_map(|chunk| chunk.iter()).filter(move |run| run.len >= len)
    }

    /// Takes every run out.
    pub(super) fn clear(&mut self) {
        for mut group in self.groups.drain(self.groups.len().min(1)..) {
            group.clear(&mut self.spare);
            self.spare.push(group.remove(0));
        }
        if let Some(only) = self.groups.first_mut() {
            only.clear(&mut self.spare);
        }
        (self.total, self.starts) = (0, Starts::default());
    }

    fn at_or_before(&self, at: u64) -> Option<Spot> {
        let (place, entry) = self.entry_for(at)?;
        let entry = entry.checked_sub(1)?;
        Some(Spot { place, entry, at: self.chunk(place).at(entry) })
    }
}

#[cfg(test)]
mod tests;
