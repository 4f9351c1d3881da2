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
mod starts;

use chunk::Chunk;
use group::{Group, Head};
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
    groups: Vec<Group>,
    total: u64,
    starts: Starts,
    /// Chunks, and room for those of a group, that are not in use, so that runs which come and go allocate nothing.
    spare: Vec<Box<Chunk>>,
    rows: Vec<Vec<Head>>,
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
        self.heads().map(|head| head.inside.longest()).max().unwrap_or(0)
    }

    fn heads(&self) -> impl Iterator<Item = &Head> {
        self.groups.iter().flat_map(|group| &group.heads)
    }

    /// The run of at least `len` units with the lowest address; `len` is at least one.
    #[inline(always)]
    pub(super) fn find(&mut self, len: u64) -> Option<Spot> {
        let Place { mut group, mut chunk } = self.start(class(len));
        while let Some(inside) = self.groups.get_mut(group) {
            if inside.most >= len {
                while let Some(next) = inside.promising(chunk, len) {
                    let head = &mut inside.heads[next];
                    if let Some(entry) = head.inside.first_of(len) {
                        let place = Place { group, chunk: next };
                        return Some(Spot { place, entry, at: head.inside.at(entry) });
                    }
                    head.most = head.inside.longest();
                    chunk = next + 1;
                }
                inside.tighten();
            }
            (group, chunk) = (group + 1, 0);
        }
        None
    }

    /// The first chunk that may have a run of a class.
    #[inline]
    fn start(&mut self, class: usize) -> Place {
        let start = self.starts.of(class);
        let head = self.groups.get(start.group).and_then(|group| group.heads.get(start.chunk));
        if head.is_some_and(|head| head.most >= 1 << class) { start } else { self.move_start(class, start) }
    }

    /// Lets searches for a class, and for those above, begin where one may end.
    fn move_start(&mut self, class: usize, from: Place) -> Place {
        let Place { mut group, mut chunk } = from;
        while let Some(inside) = self.groups.get(group) {
            if inside.most >= 1 << class
                && let Some(found) = inside.promising(chunk, 1 << class)
            {
                chunk = found;
                break;
            }
            (group, chunk) = (group + 1, 0);
        }
        self.starts.move_up(class, Place { group, chunk });
        Place { group, chunk }
    }

    /// The run with the lowest address that has room for `len` units from a multiple of `align` on, a power of two.
    #[inline]
    pub(super) fn find_aligned(&mut self, len: u64, align: u64) -> Option<Spot> {
        if align == 1 { self.find(len) } else { self.search_aligned(len, align) }
    }

    #[cold]
    fn search_aligned(&self, len: u64, align: u64) -> Option<Spot> {
        let fits = |run: Run| ((run.at + align - 1) & !(align - 1)) + len <= run.end();
        let groups = self.groups.iter().enumerate().filter(|(_, group)| group.most >= len);
        let mut chunks = groups.flat_map(|(group, inside)| {
            let heads = inside.heads.iter().enumerate().filter(|(_, head)| head.most >= len);
            heads.map(move |(chunk, head)| (Place { group, chunk }, &head.inside))
        });
        chunks.find_map(|(place, inside)| {
            let entry = inside.iter().position(fits)?;
            Some(Spot { place, entry, at: inside.at(entry) })
        })
    }

    /// The run at a spot.
    pub(super) fn get(&self, spot: Spot) -> Run {
        self.head(spot.place).inside.get(spot.entry)
    }

    /// Takes `len` units out of the run at `spot`, from a multiple of `align` units on, a power of two; answers where that
    /// is. The run must have room for it.
    #[inline(always)]
    pub(super) fn carve(&mut self, spot: Spot, len: u64, align: u64) -> u64 {
        let Spot { place, entry, at } = spot;
        let start = (at + align - 1) & !(align - 1);
        let group = &mut self.groups[place.group];
        let inside = &mut group.heads[place.chunk].inside;
        let run = inside.get(entry);
        if start > at || run.len == len {
            self.remove(spot, start..start + len);
            return start;
        }
        inside.set(entry, Run { at: at + len, len: run.len - len, ..run });
        if entry == 0 {
            group.begins(place.chunk, at + len);
        }
        self.total -= len;
        start
    }

    /// Takes `len` units from a multiple of `align` on out of the first run that has room for them.
    #[inline(always)]
    pub(super) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let spot = self.find_aligned(len, align)?;
        Some(self.carve(spot, len, align))
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
        let before = if entry > 0 { Some(self.head(place).inside.get(entry - 1)) } else { None };
        if after < run.end() || before.is_some_and(|before| before.end() > run.at) {
            return false;
        }
        self.total += run.len;
        match before {
            Some(mut before) if before.end() == run.at => {
                before.take_over(run);
                if after == run.end() {
                    before.take_over(self.take_entry(place, entry));
                }
                self.replace(place, entry - 1, before);
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
        run.take_over(self.head(place).inside.get(entry));
        self.replace(place, entry, run);
    }

    /// Takes out the run at `entry`, or the first of the next chunk where there is none.
    fn take_entry(&mut self, place: Place, entry: usize) -> Run {
        let (place, entry) = self.here_or_next(place, entry);
        let run = self.head(place).inside.get(entry);
        self.remove_entry(place, entry);
        run
    }

    /// Takes out the runs that end where `range` begins and begin where it ends; answers all of it together.
    #[inline]
    pub(super) fn take_beside(&mut self, mut range: Range<u64>) -> Range<u64> {
        let Some((place, entry)) = self.entry_for(range.start) else { return range };
        let inside = &self.head(place).inside;
        let before = entry.checked_sub(1).map(|before| inside.get(before)).filter(|run| run.end() == range.start);
        if self.begins_at(place, entry) == range.end {
            let after = self.take_entry(place, entry);
            self.total -= after.len;
            range.end = after.end();
        }
        if let Some(before) = before {
            self.remove_entry(place, entry - 1);
            self.total -= before.len;
            range.start = before.at;
        }
        range
    }

    /// Takes the run that begins at `at` out, if there is one.
    pub(super) fn take_starting_at(&mut self, at: u64) -> Option<Run> {
        let spot = self.at_or_before(at).filter(|spot| spot.at == at)?;
        let run = self.get(spot);
        self.total -= run.len;
        self.remove_entry(spot.place, spot.entry);
        Some(run)
    }

    /// The run that ends at `end`.
    pub(super) fn ending_at(&self, end: u64) -> Option<Run> {
        let run = self.get(self.at_or_before(end.checked_sub(1)?)?);
        (run.end() == end).then_some(run)
    }

    /// Every run, lowest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.heads().flat_map(|head| head.inside.iter())
    }

    /// The runs of at least `len` units, lowest first.
    pub(super) fn iter_long(&self, len: u64) -> impl Iterator<Item = Run> + '_ {
        let groups = self.groups.iter().filter(move |group| group.most >= len);
        let heads = groups.flat_map(|group| &group.heads).filter(move |head| head.most >= len);
        heads.flat_map(|head| head.inside.iter()).filter(move |run| run.len >= len)
    }

    /// Takes every run out.
    pub(super) fn clear(&mut self) {
        for mut group in self.groups.drain(..) {
            for mut head in group.heads.drain(..) {
                head.inside.clear();
                self.spare.push(head.inside);
            }
            self.rows.push(group.heads);
        }
        (self.total, self.starts) = (0, Starts::default());
    }

    fn at_or_before(&self, at: u64) -> Option<Spot> {
        let (place, entry) = self.entry_for(at)?;
        let entry = entry.checked_sub(1)?;
        Some(Spot { place, entry, at: self.head(place).inside.at(entry) })
    }
}

#[cfg(test)]
mod tests;
