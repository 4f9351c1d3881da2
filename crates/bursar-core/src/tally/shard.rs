//! A place for each thread to count in.

use super::Amount;
use super::cell::{Cell, Cells};
use super::chunks::Chunks;
use super::level::above_zero;
use super::place::{NEAR_TAGS, Place};
use super::scopes::Scopes;
use super::slack::{Slack, Step};
use crate::{Bytes, ThreadIndex};
use std::sync::{Mutex, OnceLock, PoisonError};

const THREADS: usize = 1024;

/// One thread's place, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Shard {
    whole: Slack,
    tags: Chunks<Slack, NEAR_TAGS>,
    cells: Cells,
    scopes: Scopes,
}

/// Everything of a thread that a block is counted in.
pub(super) struct Here<'a> {
    pub(super) whole: &'a Slack,
    pub(super) tag: &'a Slack,
    pub(super) cell: &'a Cell,
    pub(super) scopes: &'a Scopes,
}

impl Shard {
    /// Where a block of a place that is told apart is counted.
    pub(super) fn at(&self, place: Place) -> Here<'_> {
        let (tag, cell) = (self.tags.get_or_make(place.tag), self.cells.get_or_make(place));
        Here { whole: &self.whole, tag, cell, scopes: &self.scopes }
    }

    /// Opens, reads or closes scopes. While any is open, every step is halted, so that it is counted there too.
    pub(super) fn scopes<T>(&self, f: impl FnOnce(&Scopes) -> T) -> T {
        let result = f(&self.scopes);
        self.whole.halt(self.scopes.any_open());
        result
    }

    /// Moves both slacks by a step and answers the cell that is left to count in, if that is all there is to do.
    #[inline]
    fn step(&self, place: Place, step: Step) -> Option<&Cell> {
        let (tag, cell) = (self.tags.near(place.tag)?, self.cells.near(place)?);
        Slack::shift(&self.whole, tag, step).then_some(cell)
    }
}

/// The places of all threads.
#[derive(Debug)]
pub(super) struct Shards {
    shards: [OnceLock<Box<Shard>>; THREADS + 1],
    turns: Mutex<()>,
}

impl Default for Shards {
    fn default() -> Self {
        Self { shards: [const { OnceLock::new() }; THREADS + 1], turns: Mutex::default() }
    }
}

impl Shards {
    /// Moves the current thread's slacks by a step and answers the cell that is left to count in, if that is all there is
    /// to do.
    #[inline]
    pub(super) fn step(&self, place: Place, step: Step) -> Option<&Cell> {
        let (place, thread) = (place.near()?, ThreadIndex::known_below(THREADS)?);
        self.shards[thread].get()?.step(place, step)
    }

    /// Runs `f` as the only one in the current thread's place. Threads without a number of their own, and those beyond
    /// the first thousand, take turns in one.
    pub(super) fn with<T>(&self, f: impl FnOnce(&Shard) -> T) -> T {
        match ThreadIndex::current() {
            Some(index) if index.get() < THREADS => f(self.shards[index.get()].get_or_init(Box::default)),
            _ => {
                let _turn = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
                f(self.shards[THREADS].get_or_init(Box::default))
            }
        }
    }

    /// What is live and what was ever granted, on one device or all and for one tag or all. Frees are read before grants,
    /// and a free is counted after its grant; so only frees of what was never counted can take more than there was, and
    /// then nothing is live.
    pub(super) fn sum(&self, device: Option<usize>, tag: Option<usize>) -> (Amount, Amount) {
        let cells = || {
            let shards = self.shards.iter().filter_map(OnceLock::get);
            shards.flat_map(move |shard| shard.cells.of(device, tag))
        };
        let freed = Cell::freed(cells());
        let granted = Cell::granted(cells());
        let less = |granted: u64, freed: u64| above_zero(granted.wrapping_sub(freed).cast_signed());
        let live = Amount {
            bytes: Bytes(less(granted.bytes.get(), freed.bytes.get())),
            count: less(granted.count, freed.count),
        };
        (live, granted)
    }
}
