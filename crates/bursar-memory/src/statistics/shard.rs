//! A place for each thread to count in.

use super::level::{Slack, above_zero};
use super::scope::Scopes;
use super::{Amount, Shared};
use bursar_core::{AllocTag, Bytes, ThreadIndex};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

const CHUNK: usize = 64;
/// How many tags are told apart; those beyond share the last place.
pub(super) const TAGS: usize = CHUNK * CHUNK;
const THREADS: usize = 1024;

/// Where a tag is counted.
#[inline]
pub(super) fn slot_of(tag: AllocTag) -> usize {
    tag.index().min(TAGS - 1)
}

/// An array of [`TAGS`] that takes memory as it is used.
#[derive(Debug)]
pub(super) struct Chunks<T> {
    chunks: Box<[OnceLock<Box<[T]>>]>,
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self { chunks: (0..CHUNK).map(|_| OnceLock::new()).collect() }
    }
}

impl<T: Default> Chunks<T> {
    #[inline]
    pub(super) fn get_or_make(&self, at: usize) -> &T {
        &self.chunks[at / CHUNK].get_or_init(|| (0..CHUNK).map(|_| T::default()).collect())[at % CHUNK]
    }

    pub(super) fn get(&self, at: usize) -> Option<&T> {
        Some(&self.chunks[at / CHUNK].get()?[at % CHUNK])
    }
}

/// What one thread counted for one tag. Only the thread itself writes, so an addition is a load and a store.
#[derive(Debug, Default)]
struct Cell {
    allocated_bytes: AtomicU64,
    allocated_count: AtomicU64,
    freed_bytes: AtomicU64,
    freed_count: AtomicU64,
    slack: Slack,
}

#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
}

/// One thread's place, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Shard {
    cells: Chunks<Cell>,
    whole: Slack,
    pub(super) scopes: Scopes,
}

impl Shard {
    #[inline]
    pub(super) fn rise(&self, shared: &Shared, slot: usize, bytes: u64) {
        let cell = self.cells.get_or_make(slot);
        shared.whole.rise(&self.whole, bytes);
        shared.tags.get_or_make(slot).rise(&cell.slack, bytes);
        add(&cell.allocated_bytes, bytes);
        add(&cell.allocated_count, 1);
        self.scopes.rise(bytes);
    }

    #[inline]
    pub(super) fn fall(&self, shared: &Shared, slot: usize, bytes: u64) {
        let cell = self.cells.get_or_make(slot);
        shared.whole.fall(&self.whole, bytes);
        shared.tags.get_or_make(slot).fall(&cell.slack, bytes);
        add(&cell.freed_bytes, bytes);
        add(&cell.freed_count, 1);
        self.scopes.fall(bytes);
    }

    /// Undoes [`fall`](Self::fall).
    #[cold]
    pub(super) fn restore(&self, shared: &Shared, slot: usize, bytes: u64) {
        let cell = self.cells.get_or_make(slot);
        shared.whole.rise(&self.whole, bytes);
        shared.tags.get_or_make(slot).rise(&cell.slack, bytes);
        add(&cell.freed_bytes, bytes.wrapping_neg());
        add(&cell.freed_count, 1u64.wrapping_neg());
        self.scopes.restore(bytes);
    }
}

/// The places of all threads.
#[derive(Debug)]
pub(super) struct Shards {
    shards: Box<[OnceLock<Box<Shard>>]>,
    shared: Mutex<()>,
}

impl Default for Shards {
    fn default() -> Self {
        Self { shards: (0..=THREADS).map(|_| OnceLock::new()).collect(), shared: Mutex::default() }
    }
}

impl Shards {
    /// Runs `f` as the only one in the current thread's place. Threads without a number of their own, and those beyond
    /// the first thousand, take turns in one.
    #[inline]
    pub(super) fn with<T>(&self, f: impl FnOnce(&Shard) -> T) -> T {
        match ThreadIndex::current() {
            Some(index) if index.get() < THREADS => f(self.shards[index.get()].get_or_init(Box::default)),
            _ => {
                let _turn = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
                f(self.shards[THREADS].get_or_init(Box::default))
            }
        }
    }

    /// What is live and what was ever granted for some tags. Frees are read before grants, and a free is counted after
    /// its grant; so only frees of what was never counted can take more than there was, and then nothing is live.
    pub(super) fn sum(&self, slots: Range<usize>) -> (Amount, Amount) {
        let cells = || {
            let shards = self.shards.iter().filter_map(OnceLock::get);
            shards.flat_map(|shard| slots.clone().filter_map(|slot| shard.cells.get(slot)))
        };
        let total = |counter: fn(&Cell) -> &AtomicU64| {
            cells().fold(0u64, |sum, cell| sum.wrapping_add(counter(cell).load(Ordering::Acquire)))
        };
        let freed = Amount { bytes: Bytes(total(|cell| &cell.freed_bytes)), count: total(|cell| &cell.freed_count) };
        let granted =
            Amount { bytes: Bytes(total(|cell| &cell.allocated_bytes)), count: total(|cell| &cell.allocated_count) };
        let less = |granted: u64, freed: u64| above_zero(granted.wrapping_sub(freed).cast_signed());
        let live = Amount {
            bytes: Bytes(less(granted.bytes.get(), freed.bytes.get())),
            count: less(granted.count, freed.count),
        };
        (live, granted)
    }
}
