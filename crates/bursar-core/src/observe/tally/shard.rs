//! Shards: the memory that each thread counts in.

use super::Amount;
use super::chunks::Chunks;
use super::columns::ColumnSet;
use super::key::{Key, NEAR_TAGS};
use super::level::{Division, Levels, Share, Shares, above_zero};
use super::scopes::Scopes;
use super::slack::{Slack, Step};
use super::tag_counts::{TagCounts, TagCountsTable};
use crate::sync::at_thread_end;
use crate::{Bytes, ThreadIndex};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

const THREADS: usize = 1024;

/// The counts of one thread, on cache lines of their own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Shard {
    whole: Slack,
    tags: Chunks<Slack, NEAR_TAGS>,
    counts: TagCountsTable,
    scopes: Scopes,
}

/// Everything in one shard that a block is counted in.
pub(super) struct Counters<'a> {
    shares: Shares<'a>,
    counts: &'a TagCounts,
    scopes: &'a Scopes,
}

impl Counters<'_> {
    /// Counts a block that was granted.
    pub(super) fn add(self, bytes: u64) {
        self.shares.add(bytes);
        self.counts.add(bytes);
        self.scopes.add(bytes);
    }

    /// Counts a block that was freed.
    pub(super) fn remove(self, bytes: u64) {
        self.shares.remove(bytes);
        self.counts.remove(bytes);
        self.scopes.remove(bytes);
    }

    /// Undoes [`remove`](Self::remove).
    pub(super) fn restore(self, bytes: u64) {
        self.shares.add(bytes);
        self.counts.restore(bytes);
        self.scopes.restore(bytes);
    }
}

impl Shard {
    const fn new() -> Self {
        let tags = Chunks::new([const { Slack::new() }; NEAR_TAGS]);
        Self { whole: Slack::new(), tags, counts: TagCountsTable::new(), scopes: Scopes::new() }
    }

    /// Counts a block under a bounded key, halted or not.
    pub(super) fn count(&self, levels: &Levels, key: Key, count: impl FnOnce(Counters<'_>)) {
        let Key { tag, .. } = key;
        let (level, slack) = (levels.tags.get_or_make(tag), self.tags.get_or_make(tag));
        let shares = self.shares(levels, Share { level, slack });
        self.whole.halt(false);
        count(Counters { shares, counts: self.counts.get_or_make(key), scopes: &self.scopes });
        self.whole.halt(self.scopes.any_open());
    }

    /// Returns the shares of the total and of a near tag, unless they are halted.
    #[inline]
    pub(super) fn shares_near<'a>(&'a self, levels: &'a Levels, tag: usize) -> Option<Shares<'a>> {
        if self.whole.is_halted() {
            return None;
        }
        let (level, slack) = (levels.tags.nearest(tag), self.tags.nearest(tag));
        Some(self.shares(levels, Share { level, slack }))
    }

    #[inline]
    fn shares<'a>(&'a self, levels: &'a Levels, tag: Share<'a>) -> Shares<'a> {
        let whole = Share { level: &levels.whole, slack: &self.whole };
        Shares { latch: &levels.latch, whole, tag }
    }

    /// Opens, reads or closes scopes. While any is open everything is halted, so that it is counted there too.
    pub(super) fn scopes<T>(&self, f: impl FnOnce(&Scopes) -> T) -> T {
        let result = f(&self.scopes);
        self.whole.halt(self.scopes.any_open());
        result
    }

    /// Moves both slacks by a step, for a near tag; returns `false` if that is not enough.
    #[inline]
    pub(super) fn step_near(&self, tag: usize, step: Step) -> bool {
        Slack::shift(&self.whole, self.tags.nearest(tag), step)
    }

    /// Returns the counts of a near key by its [index](Key::index).
    #[inline]
    pub(super) fn counts_near(&self, index: usize) -> &TagCounts {
        self.counts.nearest(index)
    }

    /// Returns the shares of a tag whose blocks are divided and of the tag of a part, by bounded keys.
    pub(super) fn division<'a>(&'a self, levels: &'a Levels, [divided, part]: [Key; 2]) -> Division<'a> {
        let share = |Key { tag, .. }| Share { level: levels.tags.get_or_make(tag), slack: self.tags.get_or_make(tag) };
        Division { latch: &levels.latch, divided: share(divided), part: share(part) }
    }

    /// Returns the counts of any bounded key, without levels.
    pub(super) fn counts(&self, key: Key) -> &TagCounts {
        self.counts.get_or_make(key)
    }

    /// Resets it.
    fn clear(&self) {
        self.whole.clear();
        self.tags.one_or_all(None).for_each(Slack::clear);
        self.counts.clear();
        self.scopes.clear();
    }

    /// Moves both slacks by a step and returns the counts that are left to change; `None` if that is not all there is to
    /// do.
    #[inline]
    fn step(&self, key: Key, step: Step) -> Option<&TagCounts> {
        let (tag, counts) = (self.tags.near(key.tag)?, self.counts.near(key)?);
        Slack::shift(&self.whole, tag, step).then_some(counts)
    }
}

/// Shards that nobody counts in. None is ever freed, so that a thread may remember the one it counted in last.
static SPARE: Mutex<Vec<&'static Shard>> = Mutex::new(Vec::new());

fn spare() -> MutexGuard<'static, Vec<&'static Shard>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fresh() -> &'static Shard {
    let spare = spare().pop();
    spare.unwrap_or_else(|| Box::leak(Box::new(Shard::new())))
}

/// The entry of a thread that never counted: nobody's shard, for a tally that is never made.
const NEVER: (u64, &Shard) = (u64::MAX, &NOWHERE);
static NOWHERE: Shard = Shard::new();

thread_local! {
    /// The tally that the thread counted for last, by number, and its shard there.
    static LAST: std::cell::Cell<(u64, &'static Shard)> = const { std::cell::Cell::new(NEVER) };
}

/// Returns the shard that the current thread counted in last, if that was for the tally with this number.
#[inline]
pub(super) fn last(number: u64) -> Option<&'static Shard> {
    let (whose, shard) = LAST.get();
    (whose == number).then_some(shard)
}

/// Forgets the shard of the current thread, which will be another thread's.
fn forget() {
    LAST.set(NEVER);
}

/// The shards of all threads.
#[derive(Debug)]
pub(super) struct Shards {
    /// The tally's number: unique in the process, and not zero.
    number: u64,
    shards: [OnceLock<&'static Shard>; THREADS + 1],
    turns: Mutex<()>,
}

impl Default for Shards {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        static FORGETS: Once = Once::new();
        FORGETS.call_once(|| at_thread_end(forget));
        let number = NEXT.fetch_add(1, Relaxed);
        Self { number, shards: [const { OnceLock::new() }; THREADS + 1], turns: Mutex::default() }
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        for shard in self.shards.iter().filter_map(OnceLock::get) {
            shard.clear();
            spare().push(shard);
        }
    }
}

impl Shards {
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Moves the current thread's slacks by a step and returns the counts that are left to change; `None` if that is not
    /// all there is to do.
    #[inline]
    pub(super) fn step(&self, key: Key, step: Step) -> Option<&TagCounts> {
        let (key, thread) = (key.near()?, ThreadIndex::known_below(THREADS)?);
        self.shards[thread].get()?.step(key, step)
    }

    /// Runs `f` as the only one in the current thread's shard. Threads without a number of their own, and those beyond
    /// the first thousand, take turns in one.
    pub(super) fn with<T>(&self, f: impl FnOnce(&Shard) -> T) -> T {
        match ThreadIndex::current() {
            Some(index) if index.get() < THREADS => {
                let shard = self.shards[index.get()].get_or_init(fresh);
                LAST.set((self.number, shard));
                f(shard)
            }
            _ => {
                let _turn = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
                f(self.shards[THREADS].get_or_init(fresh))
            }
        }
    }

    /// Returns what is live under each of some keys, as [`sum`](Self::sum) does for a tag.
    pub(super) fn live_under(&self, keys: &[Key]) -> Vec<Amount> {
        let shards = || self.shards.iter().filter_map(OnceLock::get);
        let each = |add: fn(&TagCounts, &mut Amount)| {
            let mut sums = vec![Amount::default(); keys.len()];
            for shard in shards() {
                let counts = sums.iter_mut().zip(keys).map(|(sum, key)| (shard.counts.get(*key), sum));
                counts.for_each(|(counts, sum)| counts.into_iter().for_each(|counts| add(counts, sum)));
            }
            sums
        };
        let freed = each(TagCounts::add_freed);
        let granted = each(TagCounts::add_granted);
        granted.into_iter().zip(freed).map(|(granted, freed)| live(granted, freed)).collect()
    }

    /// Returns what is live and what was ever granted, in some columns and for one tag or all. Frees are read
    /// before grants, and a free is counted after its grant; so only frees of what was never counted can take more than
    /// there was, and then nothing is live.
    pub(super) fn sum(&self, columns: ColumnSet, tag: Option<usize>) -> (Amount, Amount) {
        self.sum_around(columns, tag, || ())
    }

    /// Does what [`sum`](Self::sum) does, and runs `between` after frees are read and before grants are.
    pub(super) fn sum_around(
        &self,
        columns: ColumnSet,
        tag: Option<usize>,
        between: impl FnOnce(),
    ) -> (Amount, Amount) {
        let counts = || {
            let shards = self.shards.iter().filter_map(OnceLock::get);
            shards.flat_map(move |shard| shard.counts.of(columns, tag))
        };
        let freed = TagCounts::freed(counts());
        between();
        let granted = TagCounts::granted(counts());
        (live(granted, freed), granted)
    }
}

/// Returns what is live of what was granted.
fn live(granted: Amount, freed: Amount) -> Amount {
    let less = |granted: u64, freed: u64| above_zero(granted.wrapping_sub(freed).cast_signed());
    Amount { bytes: Bytes(less(granted.bytes.get(), freed.bytes.get())), count: less(granted.count, freed.count) }
}
