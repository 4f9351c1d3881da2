//! A handful of runs side by side.

use super::Run;

/// How many runs lie in a chunk at most. The search for an address below is written for as many.
pub(super) const CHUNK: usize = 16;

/// Where no run begins, since none could end.
const NOWHERE: u64 = u64::MAX;

const NOTHING: Run = Run { at: NOWHERE, len: 0, stamp: 0 };

/// At most [`CHUNK`] runs, lowest first. Addresses lie by themselves, since they are what is searched.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    used: usize,
    /// Where runs begin, and [`NOWHERE`] behind the last.
    at: [u64; CHUNK],
    /// How long each is, and its stamp; nothing behind the last.
    rest: [(u64, u64); CHUNK],
}

impl Chunk {
    pub(super) const EMPTY: Self = Self { used: 0, at: [NOWHERE; CHUNK], rest: [(0, 0); CHUNK] };

    #[inline]
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    /// Where the run at `entry` begins; [`NOWHERE`] behind the last.
    #[inline]
    pub(super) fn at(&self, entry: usize) -> u64 {
        self.at[entry]
    }

    #[inline]
    pub(super) fn get(&self, entry: usize) -> Run {
        let (len, stamp) = self.rest[entry];
        Run { at: self.at[entry], len, stamp }
    }

    #[inline]
    pub(super) fn set(&mut self, entry: usize, run: Run) {
        self.at[entry] = run.at;
        self.rest[entry] = (run.len, run.stamp);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        (0..self.used).map(|entry| self.get(entry))
    }

    /// How many runs begin at `at` or before it: a binary search with nothing to predict.
    #[inline]
    pub(super) fn up_to(&self, at: u64) -> usize {
        let reaches = |entry: usize| usize::from(self.at[entry] <= at);
        let mut below = reaches(7) << 3;
        below |= reaches(below | 3) << 2;
        below |= reaches(below | 1) << 1;
        below |= reaches(below);
        below + reaches(below)
    }

    /// The first run of at least `len` units, which is at least one.
    #[inline]
    pub(super) fn first_of(&self, len: u64) -> Option<usize> {
        // Over all entries, used or not, so that nothing but lengths is compared.
        self.rest.iter().position(|&(run, _)| run >= len)
    }

    pub(super) fn longest(&self) -> u64 {
        self.rest[..self.used].iter().fold(0, |most, &(run, _)| most.max(run))
    }

    /// Puts a run in at `entry`; there is room.
    #[inline(always)]
    pub(super) fn open(&mut self, entry: usize, run: Run) {
        self.at.copy_within(entry..self.used, entry + 1);
        self.rest.copy_within(entry..self.used, entry + 1);
        self.used += 1;
        self.set(entry, run);
    }

    /// Takes the run at `entry` out.
    #[inline(always)]
    pub(super) fn close(&mut self, entry: usize) {
        self.at.copy_within(entry + 1..self.used, entry);
        self.rest.copy_within(entry + 1..self.used, entry);
        self.used -= 1;
        self.set(self.used, NOTHING);
    }

    /// Moves the upper half of a full chunk into an empty one.
    pub(super) fn halve(&mut self, high: &mut Self) {
        let half = CHUNK / 2;
        high.at[..half].copy_from_slice(&self.at[half..]);
        high.rest[..half].copy_from_slice(&self.rest[half..]);
        self.at[half..].fill(NOWHERE);
        self.rest[half..].fill((0, 0));
        (self.used, high.used) = (half, half);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::EMPTY;
    }
}
