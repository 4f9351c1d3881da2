//! Chunks side by side, and what is known of them without looking inside.

use super::chunk::Chunk;

/// How many chunks lie in a group at most; few where tests are to see many groups.
pub(super) const GROUP: usize = if cfg!(test) { 4 } else { 64 };

/// A chunk, and what is known of it.
#[derive(Debug)]
pub(super) struct Head {
    /// Where its first run begins.
    pub(super) first: u64,
    /// None of its runs is longer.
    pub(super) most: u64,
    pub(super) inside: Box<Chunk>,
}

impl Head {
    pub(super) fn new(inside: Box<Chunk>) -> Self {
        Self { first: inside.at(0), most: inside.longest(), inside }
    }
}

/// At most [`GROUP`] chunks, lowest first, and at least one.
#[derive(Debug)]
pub(super) struct Group {
    /// Where its first run begins.
    pub(super) first: u64,
    /// None of its runs is longer.
    pub(super) most: u64,
    pub(super) heads: Vec<Head>,
}

impl Group {
    /// Of these chunks, of which there is at least one.
    pub(super) fn new(heads: Vec<Head>) -> Self {
        let mut group = Self { first: heads[0].first, most: 0, heads };
        group.tighten();
        group
    }

    /// Brings the bound up to date with those of its chunks.
    pub(super) fn tighten(&mut self) {
        self.most = self.heads.iter().fold(0, |most, head| most.max(head.most));
    }

    /// The first chunk from `from` on that may have a run of `len` units.
    #[inline]
    pub(super) fn promising(&self, from: usize, len: u64) -> Option<usize> {
        let heads = self.heads.get(from..)?;
        heads.iter().position(|head| head.most >= len).map(|nth| from + nth)
    }

    /// The chunk that `at` belongs in.
    #[inline]
    pub(super) fn chunk_of(&self, at: u64) -> usize {
        self.heads.partition_point(|head| head.first <= at).saturating_sub(1)
    }

    /// Notes where a chunk begins now.
    #[inline]
    pub(super) fn begins(&mut self, chunk: usize, at: u64) {
        self.heads[chunk].first = at;
        if chunk == 0 {
            self.first = at;
        }
    }

    /// Keeps the bounds true when a run in a chunk has become `len` units long.
    #[inline]
    pub(super) fn reaches(&mut self, chunk: usize, len: u64) {
        let head = &mut self.heads[chunk];
        if len > head.most {
            head.most = len;
            self.most = self.most.max(len);
        }
    }
}
