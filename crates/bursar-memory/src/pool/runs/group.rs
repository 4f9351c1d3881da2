//! Chunks side by side, and what is known of them without looking inside.

use super::Run;
use super::chunk::{Chunk, NOWHERE};
use super::sizes::{Size, Wanted, up_to};

/// How many chunks lie in a group at most, a power of two; few where tests are to see many groups.
pub(super) const GROUP: usize = if cfg!(test) { 4 } else { 64 };

/// How many chunks are looked at together.
const BLOCK: usize = if GROUP < 16 { GROUP } else { 16 };

/// At most [`GROUP`] chunks, lowest first, and at least one. All have runs, unless there are none at all.
#[derive(Debug)]
#[allow(clippy::vec_box, reason = "a chunk that is put in moves a pointer, not a chunk")]
pub(super) struct Group {
    /// Where the first run of each begins; nowhere behind the last.
    firsts: [u64; GROUP],
    /// None of the runs of each is larger.
    mosts: [Size; GROUP],
    /// None of all their runs is larger.
    most: Size,
    chunks: Vec<Box<Chunk>>,
}

impl Group {
    /// Of one chunk.
    pub(super) fn new(only: Box<Chunk>) -> Self {
        let chunks = Vec::with_capacity(GROUP);
        let mut group = Self { firsts: [NOWHERE; GROUP], mosts: [Size::NONE; GROUP], most: Size::NONE, chunks };
        group.add(0, only);
        group
    }

    /// Where its first run begins.
    #[inline]
    pub(super) const fn first(&self) -> u64 {
        self.firsts[0]
    }

    /// Whether a run of it may be as long.
    #[inline]
    pub(super) fn may_have(&self, wanted: Wanted) -> bool {
        self.most >= wanted.size
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

    /// Where the chunk after one begins, if there is one.
    #[inline]
    pub(super) fn first_after(&self, chunk: usize) -> Option<u64> {
        self.firsts.get(chunk + 1).copied().filter(|&first| first != NOWHERE)
    }

    /// The chunk that `at` belongs in.
    #[inline]
    pub(super) fn chunk_of(&self, at: u64) -> usize {
        if self.chunks.len() == 1 { 0 } else { up_to(&self.firsts, at).saturating_sub(1) }
    }

    /// The first chunk from `from` on that may have a run as long.
    #[inline]
    pub(super) fn promising(&self, from: usize, wanted: Wanted) -> Option<usize> {
        let blocks = self.mosts.as_chunks::<BLOCK>().0.iter().enumerate().skip(from / BLOCK);
        let mut promising = blocks.filter(|(_, block)| wanted.is_among(block));
        promising.find_map(|(nth, block)| {
            wanted.first(block, |chunk| nth * BLOCK + chunk >= from).map(|chunk| nth * BLOCK + chunk)
        })
    }

    /// Brings the bound of a chunk up to date.
    pub(super) fn tighten_chunk(&mut self, chunk: usize) {
        self.mosts[chunk] = self.chunks[chunk].most();
    }

    /// Brings the bound up to date with those of its chunks.
    pub(super) fn tighten(&mut self) {
        self.most = Size::largest(&self.mosts);
    }

    /// Notes what has become of the run at an entry.
    #[inline(always)]
    pub(super) fn changed(&mut self, chunk: usize, entry: usize) {
        let inside = &self.chunks[chunk];
        if entry == 0 {
            self.firsts[chunk] = inside.at(0);
        }
        let size = inside.size(entry);
        if size > self.mosts[chunk] {
            self.mosts[chunk] = size;
            self.most = self.most.max(size);
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

    /// Notes where a chunk begins now.
    #[inline]
    pub(super) fn begins_anew(&mut self, chunk: usize) {
        self.firsts[chunk] = self.chunks[chunk].at(0);
    }

    /// Puts a chunk in; there is room.
    pub(super) fn add(&mut self, nth: usize, chunk: Box<Chunk>) {
        let used = self.chunks.len();
        self.firsts.copy_within(nth..used, nth + 1);
        self.mosts.copy_within(nth..used, nth + 1);
        (self.firsts[nth], self.mosts[nth]) = (chunk.at(0), chunk.most());
        self.most = self.most.max(self.mosts[nth]);
        self.chunks.insert(nth, chunk);
    }

    /// Takes a chunk out.
    pub(super) fn remove(&mut self, nth: usize) -> Box<Chunk> {
        let used = self.chunks.len();
        self.firsts.copy_within(nth + 1..used, nth);
        self.mosts.copy_within(nth + 1..used, nth);
        (self.firsts[used - 1], self.mosts[used - 1]) = (NOWHERE, Size::NONE);
        self.chunks.remove(nth)
    }

    /// Moves the runs of the chunk after one into it, for which there is room; answers the emptied chunk.
    pub(super) fn join(&mut self, chunk: usize) -> Box<Chunk> {
        let mut after = self.remove(chunk + 1);
        self.chunks[chunk].append(&mut after);
        self.tighten_chunk(chunk);
        after
    }

    /// Takes every run out, and all chunks but one, into `spare`.
    #[allow(clippy::vec_box, reason = "as they lie here")]
    pub(super) fn clear(&mut self, spare: &mut Vec<Box<Chunk>>) {
        while self.chunks.len() > 1 {
            let mut last = self.remove(self.chunks.len() - 1);
            last.clear();
            spare.push(last);
        }
        self.chunks[0].clear();
        (self.firsts[0], self.mosts[0], self.most) = (NOWHERE, Size::NONE, Size::NONE);
    }
}
