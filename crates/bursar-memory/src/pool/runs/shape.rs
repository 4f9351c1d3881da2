//! How runs lie in chunks and chunks in groups: finding an entry, and making and taking away room.
//!
//! Whatever is put in or taken out touches one chunk, and where that is full or empty its group; so it costs hardly more
//! where there are many.

use super::chunk::{CHUNK, Chunk};
use super::group::{GROUP, Group, Head};
use super::starts::class;
use super::{Place, Run, Runs};

impl Runs {
    pub(super) fn head(&self, place: Place) -> &Head {
        &self.groups[place.group].heads[place.chunk]
    }

    /// The chunk that `at` belongs in, and how many of its runs begin there or before; `None` where there are no runs.
    #[inline(always)]
    pub(super) fn entry_for(&self, at: u64) -> Option<(Place, usize)> {
        let group = match self.groups.len() {
            1 => 0,
            _ => self.groups.partition_point(|group| group.first <= at).saturating_sub(1),
        };
        let inside = self.groups.get(group)?;
        let chunk = inside.chunk_of(at);
        Some((Place { group, chunk }, inside.heads[chunk].inside.up_to(at)))
    }

    /// Where the run at `entry` begins, or the first of the next chunk where there is none; the end of all addresses where
    /// that is none either.
    #[inline(always)]
    pub(super) fn begins_at(&self, place: Place, entry: usize) -> u64 {
        let group = &self.groups[place.group];
        let inside = &group.heads[place.chunk].inside;
        if entry < inside.used() {
            return inside.at(entry);
        }
        let next_group = || self.groups.get(place.group + 1).map_or(u64::MAX, |next| next.first);
        group.heads.get(place.chunk + 1).map_or_else(next_group, |next| next.first)
    }

    #[inline]
    pub(super) fn here_or_next(&self, place: Place, entry: usize) -> (Place, usize) {
        let Place { group, chunk } = place;
        let inside = &self.groups[group];
        match (entry < inside.heads[chunk].inside.used(), chunk + 1 < inside.heads.len()) {
            (true, _) => (place, entry),
            (_, true) => (Place { group, chunk: chunk + 1 }, 0),
            _ => (Place { group: group + 1, chunk: 0 }, 0),
        }
    }

    #[inline(always)]
    pub(super) fn replace(&mut self, place: Place, entry: usize, run: Run) {
        let group = &mut self.groups[place.group];
        group.heads[place.chunk].inside.set(entry, run);
        if entry == 0 {
            group.begins(place.chunk, run.at);
        }
        group.reaches(place.chunk, run.len);
        self.starts.move_down(class(run.len), place);
    }

    #[cold]
    pub(super) fn begin(&mut self, run: Run) {
        let mut inside = self.fresh_chunk();
        inside.open(0, run);
        self.total += run.len;
        let mut heads = self.fresh_row();
        heads.push(Head::new(inside));
        self.groups.push(Group::new(heads));
    }

    fn fresh_chunk(&mut self) -> Box<Chunk> {
        self.spare.pop().unwrap_or_else(|| Box::new(Chunk::EMPTY))
    }

    fn fresh_row(&mut self) -> Vec<Head> {
        self.rows.pop().unwrap_or_else(|| Vec::with_capacity(GROUP))
    }

    #[inline]
    pub(super) fn insert_entry(&mut self, mut place: Place, mut entry: usize, run: Run) {
        if self.head(place).inside.used() == CHUNK {
            (place, entry) = self.split(place, entry);
        }
        let group = &mut self.groups[place.group];
        group.heads[place.chunk].inside.open(entry, run);
        if entry == 0 {
            group.begins(place.chunk, run.at);
        }
        group.reaches(place.chunk, run.len);
        self.starts.move_down(class(run.len), place);
    }

    #[inline]
    pub(super) fn remove_entry(&mut self, place: Place, entry: usize) {
        let group = &mut self.groups[place.group];
        let inside = &mut group.heads[place.chunk].inside;
        inside.close(entry);
        let (first, used) = (inside.at(0), inside.used());
        if used == 0 {
            self.remove_chunk(place);
        } else if entry == 0 {
            group.begins(place.chunk, first);
        }
    }

    #[cold]
    fn remove_chunk(&mut self, place: Place) {
        let group = &mut self.groups[place.group];
        let emptied = group.heads.remove(place.chunk);
        self.spare.push(emptied.inside);
        self.starts.chunk_removed(place);
        match group.heads.first() {
            Some(first) => group.first = first.first,
            None => {
                let emptied = self.groups.remove(place.group);
                self.rows.push(emptied.heads);
                self.starts.group_removed(place.group);
            }
        }
    }

    /// Makes two of a full chunk, and of its group if that is full; answers where an entry of it is now.
    #[cold]
    fn split(&mut self, mut place: Place, entry: usize) -> (Place, usize) {
        if self.groups[place.group].heads.len() == GROUP {
            place = self.split_group(place);
        }
        let mut high = self.fresh_chunk();
        let group = &mut self.groups[place.group];
        let low = &mut group.heads[place.chunk];
        low.inside.halve(&mut high);
        low.most = low.inside.longest();
        group.heads.insert(place.chunk + 1, Head::new(high));
        self.starts.chunk_added(place);
        let half = CHUNK / 2;
        if entry > half { (Place { chunk: place.chunk + 1, ..place }, entry - half) } else { (place, entry) }
    }

    /// Makes two of a full group; answers where a chunk of it is now.
    fn split_group(&mut self, place: Place) -> Place {
        let (mut high, half) = (self.fresh_row(), GROUP / 2);
        high.extend(self.groups[place.group].heads.drain(half..));
        self.groups[place.group].tighten();
        self.groups.insert(place.group + 1, Group::new(high));
        self.starts.group_split(Place { chunk: half, ..place });
        match place.chunk.checked_sub(half) {
            Some(chunk) => Place { group: place.group + 1, chunk },
            None => place,
        }
    }
}
