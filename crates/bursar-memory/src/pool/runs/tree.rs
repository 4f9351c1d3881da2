//! The tree of runs: chunks in groups, and what is known of them without looking inside.
//!
//! An insertion or removal touches one chunk, and where that is full or empty its group; so it costs hardly more where
//! there are many. What is searched in a group, and in the list of all groups, lies together: the starts, and bounds on
//! the sizes.

use super::chunk::{CHUNK, Chunk, LONGEST, NOWHERE, Size, Wanted, count_look, up_to};
use super::{ChunkPosition, Run, Runs};

/// At most `GROUP` chunks, a power of two, lowest first. All have runs, unless there are none at all.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Group<const GROUP: usize> {
    /// The start of the first run of each; nowhere behind the last.
    firsts: [u64; GROUP],
    /// A bound on the sizes in each chunk.
    bounds: [Size; GROUP],
    /// The place of each chunk; behind the last, the places that are free.
    places: [u8; GROUP],
    used: usize,
    chunks: [Chunk; GROUP],
}

impl<const GROUP: usize> Group<GROUP> {
    /// Makes a group of no chunks.
    pub(super) fn new() -> Self {
        Self {
            firsts: [NOWHERE; GROUP],
            bounds: [Size::NONE; GROUP],
            places: std::array::from_fn(|place| place as u8),
            used: 0,
            chunks: [Chunk::EMPTY; GROUP],
        }
    }

    /// Returns where its first run begins.
    #[inline]
    pub(super) const fn first(&self) -> u64 {
        self.firsts[0]
    }

    #[inline]
    pub(super) fn chunk(&self, chunk: usize) -> &Chunk {
        count_look();
        &self.chunks[usize::from(self.places[chunk]) % GROUP]
    }

    #[inline]
    fn chunk_mut(&mut self, chunk: usize) -> &mut Chunk {
        count_look();
        &mut self.chunks[usize::from(self.places[chunk]) % GROUP]
    }

    pub(super) fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        (0..self.used).map(|chunk| self.chunk(chunk))
    }

    /// Returns where the chunk after one begins, if there is one.
    #[inline]
    fn first_after(&self, chunk: usize) -> Option<u64> {
        self.firsts.get(chunk + 1).copied().filter(|&first| first != NOWHERE)
    }

    /// Returns the chunk that `at` belongs in.
    #[inline]
    fn chunk_of(&self, at: u64) -> usize {
        if self.used == 1 { 0 } else { up_to(&self.firsts, at).saturating_sub(1) }
    }

    /// Finds the first run of at least so many units, from a chunk on, and its chunk.
    #[inline(always)]
    pub(super) fn search(&mut self, wanted: Wanted) -> Option<(usize, usize)> {
        let mut from = 0;
        while let Some(nth) = wanted.first(&self.bounds[from..]) {
            let chunk = from + nth;
            if let Some(entry) = self.chunk(chunk).first_of(wanted) {
                return Some((chunk, entry));
            }
            self.tighten_chunk(chunk);
            from = chunk + 1;
        }
        None
    }

    /// Finds the chunk with the shortest run of at least so many units among the first that have one, at most `chunks` of
    /// them, and the length of that run. Returns how many of them are left as well.
    #[inline]
    pub(super) fn tightest(&mut self, wanted: Wanted, chunks: usize) -> (Option<(usize, u64)>, usize) {
        let (mut from, mut left, mut tightest) = (0, chunks, (0, u64::MAX));
        while left > 0
            && let Some(nth) = wanted.first(&self.bounds[from..])
        {
            let chunk = from + nth;
            let len = self.chunk(chunk).tightest_of(wanted);
            if len <= LONGEST {
                left -= 1;
                tightest = if len < tightest.1 { (chunk, len) } else { tightest };
            } else {
                self.tighten_chunk(chunk);
            }
            from = chunk + 1;
        }
        (Some(tightest).filter(|&(_, len)| len <= LONGEST), left)
    }

    /// Brings the bound of a chunk up to date.
    fn tighten_chunk(&mut self, chunk: usize) {
        self.bounds[chunk] = self.chunk(chunk).most();
    }

    /// Returns the least bound on the sizes in all chunks.
    pub(super) fn most(&self) -> Size {
        Size::largest(&self.bounds)
    }

    /// Inserts a chunk; there is room.
    fn add(&mut self, nth: usize, chunk: &Chunk) {
        let (used, place) = (self.used, self.places[self.used]);
        self.firsts.copy_within(nth..used, nth + 1);
        self.bounds.copy_within(nth..used, nth + 1);
        self.places.copy_within(nth..used, nth + 1);
        (self.firsts[nth], self.bounds[nth], self.places[nth]) = (chunk.at(0), chunk.most(), place);
        self.chunks[usize::from(place)] = *chunk;
        self.used += 1;
    }

    /// Removes a chunk.
    fn remove(&mut self, nth: usize) -> Chunk {
        let (used, place) = (self.used, self.places[nth]);
        self.firsts.copy_within(nth + 1..used, nth);
        self.bounds.copy_within(nth + 1..used, nth);
        self.places.copy_within(nth + 1..used, nth);
        (self.firsts[used - 1], self.bounds[used - 1], self.places[used - 1]) = (NOWHERE, Size::NONE, place);
        self.used -= 1;
        self.chunks[usize::from(place)]
    }

    /// Moves the runs of the chunk after one into it, for which there is room.
    fn join(&mut self, chunk: usize) {
        let after = self.remove(chunk + 1);
        self.chunk_mut(chunk).append(&after);
        self.tighten_chunk(chunk);
    }

    /// Moves the chunks from one on into a group, behind all of its own; there is room.
    fn move_into(&mut self, from: usize, before: &mut Self) {
        (from..self.used).for_each(|chunk| before.add(before.used, self.chunk(chunk)));
        self.firsts[from..].fill(NOWHERE);
        self.bounds[from..].fill(Size::NONE);
        self.used = from;
    }

    /// Removes every run, and all chunks but an empty one.
    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.firsts.fill(NOWHERE);
        self.bounds.fill(Size::NONE);
        self.add(0, &Chunk::EMPTY);
    }
}

#[inline(always)]
fn is_up_to(start: u64, at: u64) -> bool {
    count_look();
    start <= at
}

/// The number of runs from which down a chunk is joined with one beside it.
const FEW: usize = CHUNK / 4;

impl<const GROUP: usize> Runs<GROUP> {
    #[inline]
    pub(super) fn chunk(&self, position: ChunkPosition) -> &Chunk {
        self.groups[position.group].chunk(position.chunk)
    }

    /// Returns the chunk that `at` belongs in, and how many of its runs begin there or before; `None` where there never
    /// was a run.
    #[inline(always)]
    pub(super) fn entry_for(&self, at: u64) -> Option<(ChunkPosition, usize)> {
        let group = match self.groups.len() {
            1 => 0,
            _ => self.starts.partition_point(|&start| is_up_to(start, at)).saturating_sub(1),
        };
        let inside = self.groups.get(group)?;
        let chunk = inside.chunk_of(at);
        Some((ChunkPosition { group, chunk }, inside.chunk(chunk).up_to(at)))
    }

    /// Returns where the run at `entry` begins, or the first of the next chunk where there is none; nowhere where that
    /// is none either.
    #[inline(always)]
    pub(super) fn begins_at(&self, position: ChunkPosition, entry: usize) -> u64 {
        let group = &self.groups[position.group];
        match group.chunk(position.chunk).at(entry) {
            NOWHERE => group.first_after(position.chunk).unwrap_or_else(|| self.first_after(position.group)),
            at => at,
        }
    }

    fn first_after(&self, group: usize) -> u64 {
        self.groups.get(group + 1).map_or(NOWHERE, |next| next.first())
    }

    /// Returns the position of the run at `entry`, or of the first of the next chunk where there is none.
    #[inline]
    pub(super) fn here_or_next(&self, position: ChunkPosition, entry: usize) -> (ChunkPosition, usize) {
        let ChunkPosition { group, chunk } = position;
        let inside = &self.groups[group];
        match (inside.chunk(chunk).at(entry) != NOWHERE, chunk + 1 < inside.used) {
            (true, _) => (position, entry),
            (_, true) => (ChunkPosition { group, chunk: chunk + 1 }, 0),
            _ => (ChunkPosition { group: group + 1, chunk: 0 }, 0),
        }
    }

    #[inline(always)]
    pub(super) fn replace(&mut self, position: ChunkPosition, entry: usize, run: Run) {
        let group = &mut self.groups[position.group];
        group.chunk_mut(position.chunk).set(entry, run);
        self.changed(position, entry, run);
    }

    /// Brings start and bounds up to date with the run at an entry, which has changed.
    #[inline(always)]
    fn changed(&mut self, position: ChunkPosition, entry: usize, run: Run) {
        if entry == 0 {
            self.begins_now(position, run.at);
        }
        let (group, size) = (&mut self.groups[position.group], Size::of(run.len));
        if size > group.bounds[position.chunk] {
            group.bounds[position.chunk] = size;
            self.bounds[position.group] = self.bounds[position.group].max(size);
        }
    }

    /// Enters where a chunk begins now.
    #[inline(always)]
    fn begins_now(&mut self, ChunkPosition { group, chunk }: ChunkPosition, at: u64) {
        self.groups[group].firsts[chunk] = at;
        if chunk == 0 {
            self.starts[group] = at;
        }
    }

    /// Takes `len` units off the front of the run at an entry, which is longer.
    #[inline(always)]
    pub(super) fn shorten(&mut self, position: ChunkPosition, entry: usize, len: u64) {
        let at = self.groups[position.group].chunk_mut(position.chunk).shorten(entry, len);
        if entry == 0 {
            self.begins_now(position, at);
        }
    }

    /// Adds a group of one empty chunk, where there is none.
    #[cold]
    pub(super) fn add_first_group(&mut self) {
        let mut group = Box::new(Group::new());
        group.clear();
        self.add_group(0, group);
    }

    #[inline]
    pub(super) fn insert_entry(&mut self, mut position: ChunkPosition, mut entry: usize, run: Run) {
        if self.chunk(position).is_full() {
            (position, entry) = self.split(position, entry);
        }
        let group = &mut self.groups[position.group];
        group.chunk_mut(position.chunk).insert(entry, run);
        self.changed(position, entry, run);
    }

    #[inline]
    pub(super) fn remove_entry(&mut self, position: ChunkPosition, entry: usize) {
        let group = &mut self.groups[position.group];
        let inside = group.chunk_mut(position.chunk);
        inside.remove(entry);
        let (first, is_short) = (inside.at(0), inside.has_at_most(FEW));
        if entry == 0 {
            self.begins_now(position, first);
        }
        if is_short {
            self.join(position);
        }
    }

    /// Joins a chunk of few runs with a neighbour, if they are few together; one of none is removed.
    #[cold]
    fn join(&mut self, ChunkPosition { group, chunk }: ChunkPosition) {
        let inside = &mut self.groups[group];
        let used = |chunk: usize| if chunk < inside.used { inside.chunk(chunk).used() } else { CHUNK };
        let (here, after) = (used(chunk), used(chunk + 1));
        let before = chunk.checked_sub(1).map_or(CHUNK, used);
        if here == 0 && inside.used > 1 {
            inside.remove(chunk);
        } else if here == 0 {
            return self.remove_group(group);
        } else if here + after <= CHUNK - FEW {
            inside.join(chunk);
        } else if before + here <= CHUNK - FEW {
            inside.join(chunk - 1);
        } else {
            return;
        }
        self.starts[group] = inside.first();
        self.join_groups(group);
    }

    /// Removes a group that has no runs, unless it is the only one.
    fn remove_group(&mut self, group: usize) {
        if self.groups.len() > 1 {
            let mut removed = self.groups.remove(group);
            self.starts.remove(group);
            self.bounds.remove(group);
            removed.clear();
            self.spare.push(removed);
        }
    }

    /// Joins a group of few chunks with a neighbour, if they are few together.
    fn join_groups(&mut self, group: usize) {
        let used = |group: usize| self.groups.get(group).map_or(GROUP, |group| group.used);
        let few = GROUP - GROUP / 4;
        if used(group) > GROUP / 4 {
            return;
        }
        let low = match group.checked_sub(1) {
            _ if used(group) + used(group + 1) <= few => group,
            Some(before) if used(before) + used(group) <= few => before,
            _ => return,
        };
        if let [before, after, ..] = &mut self.groups[low..] {
            after.move_into(0, before);
            self.bounds[low] = before.most();
            self.remove_group(low + 1);
        }
    }

    /// Makes two of a full chunk, and of its group if that is full; returns where an entry of it is now.
    #[cold]
    fn split(&mut self, mut position: ChunkPosition, entry: usize) -> (ChunkPosition, usize) {
        if self.groups[position.group].used == GROUP {
            position = self.split_group(position);
        }
        let (group, chunk) = (&mut self.groups[position.group], position.chunk);
        let high = group.chunk_mut(chunk).halve();
        group.tighten_chunk(chunk);
        group.add(chunk + 1, &high);
        let half = CHUNK / 2;
        if entry > half { (ChunkPosition { chunk: chunk + 1, ..position }, entry - half) } else { (position, entry) }
    }

    /// Makes two of a full group; returns where a chunk of it is now.
    fn split_group(&mut self, position: ChunkPosition) -> ChunkPosition {
        let half = GROUP / 2;
        let mut high = self.spare.pop().unwrap_or_else(|| Box::new(Group::new()));
        high.used = 0;
        let low = &mut self.groups[position.group];
        low.move_into(half, &mut high);
        self.bounds[position.group] = low.most();
        self.add_group(position.group + 1, high);
        match position.chunk.checked_sub(half) {
            Some(chunk) => ChunkPosition { group: position.group + 1, chunk },
            None => position,
        }
    }

    fn add_group(&mut self, nth: usize, group: Box<Group<GROUP>>) {
        self.starts.insert(nth, group.first());
        self.bounds.insert(nth, group.most());
        self.groups.insert(nth, group);
    }
}
