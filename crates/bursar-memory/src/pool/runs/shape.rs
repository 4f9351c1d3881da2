//! How runs lie in chunks and chunks in groups: finding an entry, and making and taking away room.
//!
//! Whatever is put in or taken out touches one chunk, and where that is full or empty its group; so it costs hardly more
//! where there are many.

use super::chunk::{CHUNK, Chunk, NOWHERE};
use super::group::{GROUP, Group};
use super::starts::{Starts, class};
use super::{Place, Run, Runs};

/// From so few runs on, a chunk is joined with one beside it.
const FEW: usize = CHUNK / 4;

impl Runs {
    #[inline]
    pub(super) fn chunk(&self, place: Place) -> &Chunk {
        self.groups[place.group].chunk(place.chunk)
    }

    /// The chunk that `at` belongs in, and how many of its runs begin there or before; `None` where there never was a run.
    #[inline(always)]
    pub(super) fn entry_for(&self, at: u64) -> Option<(Place, usize)> {
        let group = match self.groups.len() {
            1 => 0,
            _ => self.groups.partition_point(|group| group.first() <= at).saturating_sub(1),
        };
        let inside = self.groups.get(group)?;
        let chunk = inside.chunk_of(at);
        Some((Place { group, chunk }, inside.chunk(chunk).up_to(at)))
    }

    /// Where the run at `entry` begins, or the first of the next chunk where there is none; nowhere where that is none
    /// either.
    #[inline(always)]
    pub(super) fn begins_at(&self, place: Place, entry: usize) -> u64 {
        let group = &self.groups[place.group];
        match group.chunk(place.chunk).at(entry) {
            NOWHERE => group.first_after(place.chunk).unwrap_or_else(|| self.first_after(place.group)),
            at => at,
        }
    }

    fn first_after(&self, group: usize) -> u64 {
        self.groups.get(group + 1).map_or(NOWHERE, |next| next.first())
    }

    #[inline]
    pub(super) fn here_or_next(&self, place: Place, entry: usize) -> (Place, usize) {
        let Place { group, chunk } = place;
        let inside = &self.groups[group];
        match (entry < inside.chunk(chunk).used(), chunk + 1 < inside.chunks().len()) {
            (true, _) => (place, entry),
            (_, true) => (Place { group, chunk: chunk + 1 }, 0),
            _ => (Place { group: group + 1, chunk: 0 }, 0),
        }
    }

    #[inline(always)]
    pub(super) fn replace(&mut self, place: Place, entry: usize, run: Run) {
        let group = &mut self.groups[place.group];
        group.chunk_mut(place.chunk).set(entry, run);
        group.changed(place.chunk, entry);
        self.may_begin_at(place, run.len);
    }

    /// Lets searches for as much begin at a group that has it.
    #[inline(always)]
    fn may_begin_at(&mut self, place: Place, len: u64) {
        if self.groups.len() > 1 {
            self.starts.move_down(class(len), place.group);
        }
    }

    /// The first run.
    #[cold]
    pub(super) fn begin(&mut self, run: Run) {
        let mut inside = self.fresh_chunk();
        inside.open(0, run);
        self.total += run.len;
        self.groups.push(Box::new(Group::new(inside)));
    }

    fn fresh_chunk(&mut self) -> Box<Chunk> {
        self.spare.pop().unwrap_or_else(|| Box::new(Chunk::EMPTY))
    }

    #[inline]
    pub(super) fn insert_entry(&mut self, mut place: Place, mut entry: usize, run: Run) {
        if self.chunk(place).used() == CHUNK {
            (place, entry) = self.split(place, entry);
        }
        let group = &mut self.groups[place.group];
        group.chunk_mut(place.chunk).open(entry, run);
        group.changed(place.chunk, entry);
        self.may_begin_at(place, run.len);
    }

    #[inline]
    pub(super) fn remove_entry(&mut self, place: Place, entry: usize) {
        let group = &mut self.groups[place.group];
        let inside = group.chunk_mut(place.chunk);
        inside.close(entry);
        let used = inside.used();
        group.begins_anew(place.chunk);
        if used <= FEW {
            self.join(place);
        }
    }

    /// Lets a chunk of few runs become one with a neighbour, if they are few together; one of none goes.
    #[cold]
    fn join(&mut self, place: Place) {
        let group = &mut self.groups[place.group];
        let used = |chunk: usize| group.chunks().get(chunk).map_or(CHUNK, |chunk| chunk.used());
        let (here, after) = (used(place.chunk), used(place.chunk + 1));
        let before = place.chunk.checked_sub(1).map_or(CHUNK, used);
        if here == 0 {
            self.remove_chunk(place);
        } else if here + after <= CHUNK - FEW {
            self.spare.push(group.join(place.chunk));
        } else if before + here <= CHUNK - FEW {
            self.spare.push(group.join(place.chunk - 1));
        }
    }

    /// Takes out a chunk that has no runs, unless it is the last.
    #[cold]
    fn remove_chunk(&mut self, place: Place) {
        let group = &mut self.groups[place.group];
        if group.chunks().len() > 1 {
            let emptied = group.remove(place.chunk);
            self.spare.push(emptied);
        } else if self.groups.len() > 1 {
            let mut emptied = self.groups.remove(place.group);
            self.spare.push(emptied.remove(0));
            self.starts.group_removed(place.group);
        }
        if self.groups.len() == 1 {
            self.starts = Starts::default();
        }
    }

    /// Makes two of a full chunk, and of its group if that is full; answers where an entry of it is now.
    #[cold]
    fn split(&mut self, mut place: Place, entry: usize) -> (Place, usize) {
        if self.groups[place.group].is_full() {
            place = self.split_group(place);
        }
        let mut high = self.fresh_chunk();
        let group = &mut self.groups[place.group];
        group.chunk_mut(place.chunk).halve(&mut high);
        group.tighten_chunk(place.chunk);
        group.add(place.chunk + 1, high);
        let half = CHUNK / 2;
        if entry > half { (Place { chunk: place.chunk + 1, ..place }, entry - half) } else { (place, entry) }
    }

    /// Makes two of a full group; answers where a chunk of it is now.
    fn split_group(&mut self, place: Place) -> Place {
        let half = GROUP / 2;
        let low = &mut self.groups[place.group];
        let mut high = Group::new(low.remove(half));
        (1..GROUP - half).for_each(|nth| high.add(nth, low.remove(half)));
        low.tighten();
        self.groups.insert(place.group + 1, Box::new(high));
        self.starts.group_split(place.group);
        match place.chunk.checked_sub(half) {
            Some(chunk) => Place { group: place.group + 1, chunk },
            None => place,
        }
    }
}
