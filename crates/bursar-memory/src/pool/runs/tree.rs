//! The tree of runs: chunks in groups, and what is known of them without looking inside.
//!
//! An insertion or removal touches one chunk, and where that is full or empty its group; so it costs hardly more where
//! there are many. Each group has a bound on the sizes in each of its chunks, and for each power of two there is the
//! first group that may have a run as long.

use super::chunk::{CHUNK, Chunk, NOWHERE, Size, Wanted, up_to};
use super::{ChunkPosition, Run, Runs};

/// The most chunks that lie in a group, a power of two; few where tests are to see many groups.
const GROUP: usize = if cfg!(test) { 4 } else { 64 };

/// The number of chunks that are compared together.
const BLOCK: usize = if GROUP < 16 { GROUP } else { 16 };

/// At most [`GROUP`] chunks, lowest first, and at least one. All have runs, unless there are none at all.
#[derive(Debug)]
#[allow(clippy::vec_box, reason = "a chunk that is put in moves a pointer, not a chunk")]
pub(super) struct Group {
    /// The start of the first run of each; nowhere behind the last.
    firsts: [u64; GROUP],
    /// A bound on the sizes in each chunk.
    bounds: [Size; GROUP],
    /// A bound on the sizes in all of them.
    bound: Size,
    chunks: Vec<Box<Chunk>>,
}

impl Group {
    /// Makes a group of one chunk.
    pub(super) fn new(only: Box<Chunk>) -> Self {
        let chunks = Vec::with_capacity(GROUP);
        let mut group = Self { firsts: [NOWHERE; GROUP], bounds: [Size::NONE; GROUP], bound: Size::NONE, chunks };
        group.add(0, only);
        group
    }

    /// Returns where its first run begins.
    #[inline]
    pub(super) const fn first(&self) -> u64 {
        self.firsts[0]
    }

    /// Returns whether a run of it may be as long.
    #[inline]
    pub(super) fn may_have(&self, wanted: Wanted) -> bool {
        self.bound >= wanted.size
    }

    #[inline]
    pub(super) fn chunks(&self) -> &[Box<Chunk>] {
        &self.chunks
    }

    #[inline]
    pub(super) fn chunk(&self, chunk: usize) -> &Chunk {
        &self.chunks[chunk]
    }

    #[inline]
    pub(super) fn chunk_mut(&mut self, chunk: usize) -> &mut Chunk {
        &mut self.chunks[chunk]
    }

    pub(super) const fn is_full(&self) -> bool {
        self.chunks.len() == GROUP
    }

    /// Returns where the chunk after one begins, if there is one.
    #[inline]
    pub(super) fn first_after(&self, chunk: usize) -> Option<u64> {
        self.firsts.get(chunk + 1).copied().filter(|&first| first != NOWHERE)
    }

    /// Returns the chunk that `at` belongs in.
    #[inline]
    fn chunk_of(&self, at: u64) -> usize {
        if self.chunks.len() == 1 { 0 } else { up_to(&self.firsts, at).saturating_sub(1) }
    }

    /// Returns the first chunk from `from` on that may have a run as long.
    #[inline]
    pub(super) fn promising(&self, from: usize, wanted: Wanted) -> Option<usize> {
        let blocks = self.bounds.as_chunks::<BLOCK>().0.iter().enumerate().skip(from / BLOCK);
        let mut promising = blocks.filter(|(_, block)| wanted.is_among(block));
        promising.find_map(|(nth, block)| {
            wanted.first(block, |chunk| nth * BLOCK + chunk >= from).map(|chunk| nth * BLOCK + chunk)
        })
    }

    /// Brings the bound of a chunk up to date.
    pub(super) fn tighten_chunk(&mut self, chunk: usize) {
        self.bounds[chunk] = self.chunks[chunk].most();
    }

    /// Brings the bound up to date with those of its chunks.
    pub(super) fn tighten(&mut self) {
        self.bound = Size::largest(&self.bounds);
    }

    /// Brings start and bounds up to date with the run at an entry, which has changed.
    #[inline(always)]
    pub(super) fn changed(&mut self, chunk: usize, entry: usize) {
        let inside = &self.chunks[chunk];
        if entry == 0 {
            self.firsts[chunk] = inside.at(0);
        }
        let size = inside.size(entry);
        if size > self.bounds[chunk] {
            self.bounds[chunk] = size;
            self.bound = self.bound.max(size);
        }
    }

    /// Takes `len` units off the front of the run at an entry, which is longer.
    #[inline(always)]
    pub(super) fn shorten(&mut self, chunk: usize, entry: usize, len: u64) {
        let inside = &mut self.chunks[chunk];
        let run = inside.get(entry);
        inside.set(entry, Run { at: run.at + len, len: run.len - len, ..run });
        if entry == 0 {
            self.firsts[chunk] = run.at + len;
        }
    }

    /// Brings the start of a chunk up to date.
    #[inline]
    pub(super) fn update_first(&mut self, chunk: usize) {
        self.firsts[chunk] = self.chunks[chunk].at(0);
    }

    /// Inserts a chunk; there is room.
    pub(super) fn add(&mut self, nth: usize, chunk: Box<Chunk>) {
        let used = self.chunks.len();
        self.firsts.copy_within(nth..used, nth + 1);
        self.bounds.copy_within(nth..used, nth + 1);
        (self.firsts[nth], self.bounds[nth]) = (chunk.at(0), chunk.most());
        self.bound = self.bound.max(self.bounds[nth]);
        self.chunks.insert(nth, chunk);
    }

    /// Removes a chunk.
    pub(super) fn remove(&mut self, nth: usize) -> Box<Chunk> {
        let used = self.chunks.len();
        self.firsts.copy_within(nth + 1..used, nth);
        self.bounds.copy_within(nth + 1..used, nth);
        (self.firsts[used - 1], self.bounds[used - 1]) = (NOWHERE, Size::NONE);
        self.chunks.remove(nth)
    }

    /// Moves the runs of the chunk after one into it, for which there is room; returns the emptied chunk.
    pub(super) fn join(&mut self, chunk: usize) -> Box<Chunk> {
        let mut after = self.remove(chunk + 1);
        self.chunks[chunk].append(&mut after);
        self.tighten_chunk(chunk);
        after
    }

    /// Removes every run, and moves all chunks but one into `spare`.
    #[allow(clippy::vec_box, reason = "as they lie here")]
    pub(super) fn clear(&mut self, spare: &mut Vec<Box<Chunk>>) {
        while self.chunks.len() > 1 {
            let mut last = self.remove(self.chunks.len() - 1);
            last.clear();
            spare.push(last);
        }
        self.chunks[0].clear();
        (self.firsts[0], self.bounds[0], self.bound) = (NOWHERE, Size::NONE, Size::NONE);
    }
}

/// The number of powers of two that lengths are told apart by.
const CLASSES: usize = 40;

/// Returns the power of two that a length belongs to.
#[inline]
pub(super) fn class(len: u64) -> usize {
    (len.ilog2() as usize).min(CLASSES - 1)
}

/// The groups where searches begin: for each power of two, no group before this one has a run that long. They never
/// decrease.
#[derive(Debug)]
pub(super) struct SearchStarts([usize; CLASSES]);

impl Default for SearchStarts {
    fn default() -> Self {
        Self([0; CLASSES])
    }
}

impl SearchStarts {
    pub(super) fn of(&self, class: usize) -> usize {
        self.0[class]
    }

    /// Has searches for a class, and for those above, begin no earlier than at a group.
    pub(super) fn move_up(&mut self, class: usize, to: usize) {
        self.0[class..].iter_mut().take_while(|start| **start < to).for_each(|start| *start = to);
    }

    /// Has searches for a class, and for those below, begin no later than at a group, which has a run as long.
    pub(super) fn move_down(&mut self, class: usize, to: usize) {
        // The first that is right ends this, since they never decrease.
        self.0[..=class].iter_mut().rev().take_while(|start| **start > to).for_each(|start| *start = to);
    }

    /// Accounts for a group that was split in two.
    pub(super) fn group_split(&mut self, group: usize) {
        self.0.iter_mut().filter(|start| **start > group).for_each(|start| *start += 1);
    }

    /// Accounts for a group that was removed.
    pub(super) fn group_removed(&mut self, group: usize) {
        self.0.iter_mut().filter(|start| **start > group).for_each(|start| *start -= 1);
    }
}

/// The number of runs from which down a chunk is joined with one beside it.
const FEW: usize = CHUNK / 4;

impl Runs {
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
            _ => self.groups.partition_point(|group| group.first() <= at).saturating_sub(1),
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
        match (entry < inside.chunk(chunk).used(), chunk + 1 < inside.chunks().len()) {
            (true, _) => (position, entry),
            (_, true) => (ChunkPosition { group, chunk: chunk + 1 }, 0),
            _ => (ChunkPosition { group: group + 1, chunk: 0 }, 0),
        }
    }

    #[inline(always)]
    pub(super) fn replace(&mut self, position: ChunkPosition, entry: usize, run: Run) {
        let group = &mut self.groups[position.group];
        group.chunk_mut(position.chunk).set(entry, run);
        group.changed(position.chunk, entry);
        self.may_begin_at(position, run.len);
    }

    /// Has searches for as much begin no later than at a group that has it.
    #[inline(always)]
    fn may_begin_at(&mut self, position: ChunkPosition, len: u64) {
        if self.groups.len() > 1 {
            self.starts.move_down(class(len), position.group);
        }
    }

    /// Inserts the first run.
    #[cold]
    pub(super) fn insert_first(&mut self, run: Run) {
        let mut inside = self.fresh_chunk();
        inside.insert(0, run);
        self.total += run.len;
        self.groups.push(Box::new(Group::new(inside)));
    }

    fn fresh_chunk(&mut self) -> Box<Chunk> {
        self.spare.pop().unwrap_or_else(|| Box::new(Chunk::EMPTY))
    }

    #[inline]
    pub(super) fn insert_entry(&mut self, mut position: ChunkPosition, mut entry: usize, run: Run) {
        if self.chunk(position).used() == CHUNK {
            (position, entry) = self.split(position, entry);
        }
        let group = &mut self.groups[position.group];
        group.chunk_mut(position.chunk).insert(entry, run);
        group.changed(position.chunk, entry);
        self.may_begin_at(position, run.len);
    }

    #[inline]
    pub(super) fn remove_entry(&mut self, position: ChunkPosition, entry: usize) {
        let group = &mut self.groups[position.group];
        let inside = group.chunk_mut(position.chunk);
        inside.remove(entry);
        let used = inside.used();
        group.update_first(position.chunk);
        if used <= FEW {
            self.join(position);
        }
    }

    /// Joins a chunk of few runs with a neighbour, if they are few together; one of none is removed.
    #[cold]
    fn join(&mut self, position: ChunkPosition) {
        let group = &mut self.groups[position.group];
        let used = |chunk: usize| group.chunks().get(chunk).map_or(CHUNK, |chunk| chunk.used());
        let (here, after) = (used(position.chunk), used(position.chunk + 1));
        let before = position.chunk.checked_sub(1).map_or(CHUNK, used);
        if here == 0 {
            self.remove_chunk(position);
        } else if here + after <= CHUNK - FEW {
            self.spare.push(group.join(position.chunk));
        } else if before + here <= CHUNK - FEW {
            self.spare.push(group.join(position.chunk - 1));
        }
    }

    /// Removes a chunk that has no runs, unless it is the last.
    #[cold]
    fn remove_chunk(&mut self, position: ChunkPosition) {
        let group = &mut self.groups[position.group];
        if group.chunks().len() > 1 {
            let emptied = group.remove(position.chunk);
            self.spare.push(emptied);
        } else if self.groups.len() > 1 {
            let mut emptied = self.groups.remove(position.group);
            self.spare.push(emptied.remove(0));
            self.starts.group_removed(position.group);
        }
        if self.groups.len() == 1 {
            self.starts = SearchStarts::default();
        }
    }

    /// Makes two of a full chunk, and of its group if that is full; returns where an entry of it is now.
    #[cold]
    fn split(&mut self, mut position: ChunkPosition, entry: usize) -> (ChunkPosition, usize) {
        if self.groups[position.group].is_full() {
            position = self.split_group(position);
        }
        let mut high = self.fresh_chunk();
        let group = &mut self.groups[position.group];
        group.chunk_mut(position.chunk).halve(&mut high);
        group.tighten_chunk(position.chunk);
        group.add(position.chunk + 1, high);
        let half = CHUNK / 2;
        if entry > half {
            (ChunkPosition { chunk: position.chunk + 1, ..position }, entry - half)
        } else {
            (position, entry)
        }
    }

    /// Makes two of a full group; returns where a chunk of it is now.
    fn split_group(&mut self, position: ChunkPosition) -> ChunkPosition {
        let half = GROUP / 2;
        let low = &mut self.groups[position.group];
        let mut high = Group::new(low.remove(half));
        (1..GROUP - half).for_each(|nth| high.add(nth, low.remove(half)));
        low.tighten();
        self.groups.insert(position.group + 1, Box::new(high));
        self.starts.group_split(position.group);
        match position.chunk.checked_sub(half) {
            Some(chunk) => ChunkPosition { group: position.group + 1, chunk },
            None => position,
        }
    }
}
