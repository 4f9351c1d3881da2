//! A handful of runs side by side.

use super::Run;
use super::sizes::{Size, Wanted, up_to};

/// How many runs lie in a chunk at most, a power of two.
pub(super) const CHUNK: usize = 8;

/// With room behind them, so that as many are moved whichever is put in or taken out.
const ROOM: usize = 2 * CHUNK;

/// Where no run begins, since none could end.
pub(super) const NOWHERE: u64 = u64::MAX;

/// At most [`CHUNK`] runs, lowest first, and nothing behind the last. What is searched lies by itself.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    used: usize,
    sizes: [Size; ROOM],
    at: [u64; ROOM],
    /// How long each is, and its stamp; anything behind the last.
    rest: [(u64, u64); ROOM],
}

impl Chunk {
    pub(super) const EMPTY: Self =
        Self { used: 0, sizes: [Size::NONE; ROOM], at: [NOWHERE; ROOM], rest: [(0, 0); ROOM] };

    #[inline]
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    /// Where the run at `entry` begins; [`NOWHERE`] behind the last.
    #[inline]
    pub(super) const fn at(&self, entry: usize) -> u64 {
        self.at[entry]
    }

    /// How long the run at `entry` is in a few bits.
    #[inline]
    pub(super) const fn size(&self, entry: usize) -> Size {
        self.sizes[entry]
    }

    #[inline]
    pub(super) const fn get(&self, entry: usize) -> Run {
        let (len, stamp) = self.rest[entry];
        Run { at: self.at[entry], len, stamp }
    }

    #[inline(always)]
    pub(super) const fn set(&mut self, entry: usize, run: Run) {
        self.sizes[entry] = Size::of(run.len);
        self.at[entry] = run.at;
        self.rest[entry] = (run.len, run.stamp);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        (0..self.used).map(|entry| self.get(entry))
    }

    /// How many runs begin at `at` or before it.
    #[inline]
    pub(super) fn up_to(&self, at: u64) -> usize {
        let [low, _] = halves(&self.at);
        up_to(low, at)
    }

    /// The first run that is long enough.
    #[inline]
    pub(super) fn first_of(&self, wanted: Wanted) -> Option<usize> {
        let [low, _] = halves(&self.sizes);
        wanted.first(low, |entry| self.rest[entry].0 >= wanted.len)
    }

    pub(super) fn longest(&self) -> u64 {
        self.rest[..self.used].iter().fold(0, |most, &(run, _)| most.max(run))
    }

    /// How long the longest is in a few bits.
    pub(super) fn most(&self) -> Size {
        Size::largest(&self.sizes[..CHUNK])
    }

    /// Puts a run in at `entry`; there is room.
    #[inline(always)]
    pub(super) fn open(&mut self, entry: usize, run: Run) {
        let behind = entry..entry + CHUNK;
        self.sizes.copy_within(behind.clone(), entry + 1);
        self.at.copy_within(behind.clone(), entry + 1);
        self.rest.copy_within(behind, entry + 1);
        self.used += 1;
        self.set(entry, run);
    }

    /// Takes the run at `entry` out.
    #[inline(always)]
    pub(super) fn close(&mut self, entry: usize) {
        let behind = entry + 1..entry + 1 + CHUNK;
        self.sizes.copy_within(behind.clone(), entry);
        self.at.copy_within(behind.clone(), entry);
        self.rest.copy_within(behind, entry);
        self.used -= 1;
    }

    /// Moves the upper half of a full chunk into an empty one.
    pub(super) fn halve(&mut self, high: &mut Self) {
        let half = CHUNK / 2;
        for (entry, run) in self.iter().enumerate().skip(half) {
            high.set(entry - half, run);
        }
        self.sizes[half..].fill(Size::NONE);
        self.at[half..].fill(NOWHERE);
        (self.used, high.used) = (half, half);
    }

    /// Moves every run of a chunk behind the last of this one; there is room.
    pub(super) fn append(&mut self, after: &mut Self) {
        for (entry, run) in after.iter().enumerate() {
            self.set(self.used + entry, run);
        }
        self.used += after.used;
        after.clear();
    }

    pub(super) fn clear(&mut self) {
        self.sizes.fill(Size::NONE);
        self.at.fill(NOWHERE);
        self.used = 0;
    }
}

/// The places that runs may lie in, and the room behind them.
#[inline(always)]
const fn halves<T>(all: &[T; ROOM]) -> &[[T; CHUNK]; 2] {
    all.as_chunks().0.first_chunk().expect("as many again")
}
