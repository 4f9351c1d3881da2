//! Counts of blocks, in total and by tag, without contention between threads.
//!
//! To know peaks, each thread claims what it needs of shared levels (`level.rs`) and keeps some slack (`slack.rs`). A
//! thread keeps what it frees, up to 1 MiB, as slack and allocates from it first; only the rest touches the shared
//! total. In a steady state of small blocks no shared cache line is written, a large one writes two, and a program with
//! one thread gets an exact peak.
//!
//! Bytes and blocks of a slack share a word with guard bits between them, so that one addition moves both and one test,
//! for the total and the tag together, finds the rare case in which something shared must be touched. An open scope
//! sets a guard too, and costs nobody else anything. A block that is more than a slack covers is counted in the same
//! shard: one addition to each of two levels, behind a latch, which is all that threads share. Before a claim would
//! raise a peak the thread gives up its slack, so where one thread does everything the peak is exact, and elsewhere
//! large blocks leave the slack of small ones alone.
//!
//! Shards are cleared and used again but never freed, so a thread may remember one by the tally's number without owning
//! it.

mod chunks;
mod columns;
mod key;
mod level;
mod scopes;
mod shard;
mod slack;
mod tag_counts;

use crate::{AllocTag, Bytes, DeviceId, Holding};
pub(crate) use columns::{Column, ColumnKind};
use columns::{ColumnSet, Columns, DEVICES};
use key::{Key, NEAR_TAGS, counted_tags};
use level::{Level, Levels, Shares};
use scopes::Scopes;
use shard::{Counters, Shard, Shards};
use slack::Step;
use std::fmt;
use std::sync::Arc;
use tag_counts::TagCounts;

/// A number of bytes and of blocks.
///
/// ```
/// use bursar::Bytes;
/// use bursar::observe::Amount;
///
/// let amount = Amount { bytes: Bytes::mib(3), count: 2 };
/// assert_eq!(amount.to_string(), "3 MiB in 2 blocks");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// The bytes granted.
    pub bytes: Bytes,
    /// The number of blocks.
    pub count: u64,
}

impl Amount {
    /// Returns the lesser of both numbers.
    fn at_most(self, most: Self) -> Self {
        Self { bytes: self.bytes.min(most.bytes), count: self.count.min(most.count) }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {} block{}", self.bytes, self.count, if self.count == 1 { "" } else { "s" })
    }
}

/// Counts by bytes granted and by blocks.
///
/// ```
/// use bursar::observe::Counts;
///
/// assert_eq!(Counts::default().current.count, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The blocks that are live.
    pub current: Amount,
    /// The most that was live at a time: never less than the truth, and at most 1 MiB and 256 blocks for each thread
    /// more. Where one thread does everything it is exact.
    pub peak: Amount,
    /// All blocks that were ever granted.
    pub total: Amount,
}

/// Counts of blocks and bytes by device and tag, each thread's in a shard of its own.
///
/// An [observer](crate::Observer::tally) that counts gives it to the sinks it subscribes to, and blocks are counted
/// without a record being made. Blocks inside the memory of graphs are counted under their own tags, and what is left of
/// that memory as `graph memory`. To know peaks, each thread claims what it needs of shared levels and keeps some slack:
/// while that lasts, to count a block is to write four words that nobody else writes.
///
/// ```
/// use bursar::observe::Tally;
/// use bursar::{Bytes, DeviceId, tag};
///
/// let tally = Tally::default();
/// tally.granted(DeviceId(0), tag!("weights"), Bytes(512));
/// tally.freed(DeviceId(0), tag!("weights"), Bytes(512));
/// let counts = tally.counts();
/// assert_eq!((counts.current.count, counts.peak.bytes), (0, Bytes(512)));
/// ```
#[derive(Default)]
pub struct Tally {
    shards: Shards,
    levels: Levels,
    columns: Columns,
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tally").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// A short way to count blocks in one column of the shard that the current thread counted in last, which takes a few
/// instructions; it leaves all others to the [`Tally`].
#[derive(Clone, Default)]
pub(crate) struct Counter {
    tally: Option<Arc<Tally>>,
    /// The tally's number; zero where every block has to be counted by the tally.
    number: u64,
    /// The index of the column's first counts.
    first: usize,
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Counter {
    pub(crate) fn new(tally: &Arc<Tally>, column: Column) -> Self {
        let key = Key::in_column(column, AllocTag::UNTAGGED).near();
        let (number, first) = key.map_or((0, 0), |key| (tally.shards.number(), key.index()));
        Self { tally: Some(tally.clone()), number, first }
    }

    /// Returns the tally that it counts for, if there is one.
    pub(crate) const fn tally(&self) -> Option<&Arc<Tally>> {
        self.tally.as_ref()
    }

    /// Counts a block that was granted; returns `false` if the tally has to count it.
    #[inline(always)]
    pub(crate) fn granted(&self, tag: AllocTag, bytes: Bytes) -> bool {
        let bytes = bytes.get();
        let counts = self.moved(tag, Step::down(bytes), move |shares| shares.add(bytes));
        counts.map(|counts| counts.add(bytes)).is_some()
    }

    /// Counts a block that was freed; returns `false` if the tally has to count it.
    #[inline(always)]
    pub(crate) fn freed(&self, tag: AllocTag, bytes: Bytes) -> bool {
        let bytes = bytes.get();
        let counts = self.moved(tag, Step::up(bytes), move |shares| shares.remove(bytes));
        counts.map(|counts| counts.remove(bytes)).is_some()
    }

    /// Counts a block that was granted, in the column alone, as part of what is counted elsewhere; returns `false` if
    /// the tally has to count it.
    #[inline]
    pub(crate) fn granted_part(&self, tag: AllocTag, bytes: Bytes) -> bool {
        self.part(tag).map(|counts| counts.add(bytes.get())).is_some()
    }

    /// Counts a block that was freed, as [`granted_part`](Self::granted_part) does.
    #[inline]
    pub(crate) fn freed_part(&self, tag: AllocTag, bytes: Bytes) -> bool {
        self.part(tag).map(|counts| counts.remove(bytes.get())).is_some()
    }

    #[inline]
    fn part(&self, tag: AllocTag) -> Option<&'static TagCounts> {
        let tag = tag.index();
        if tag < NEAR_TAGS { shard::last(self.number).map(|shard| shard.counts_near(self.first + tag)) } else { None }
    }

    /// Moves both slacks by a step or, if that is not enough, both levels, and returns the counts that are left to
    /// change.
    #[inline(always)]
    fn moved(&self, tag: AllocTag, step: Step, change: impl FnOnce(Shares<'_>)) -> Option<&'static TagCounts> {
        let tag = tag.index();
        let shard = if tag < NEAR_TAGS { shard::last(self.number)? } else { return None };
        let moved = shard.step_near(tag, step);
        (moved || self.move_levels(shard, tag, change)).then(|| shard.counts_near(self.first + tag))
    }

    /// Moves the levels of the total and of a tag; returns `false` if the tally has to.
    #[cold]
    #[inline(never)]
    fn move_levels(&self, shard: &Shard, tag: usize, change: impl FnOnce(Shares<'_>)) -> bool {
        let levels = self.tally.as_ref().map(|tally| &tally.levels);
        levels.and_then(|levels| shard.shares_near(levels, tag)).map(change).is_some()
    }
}

impl Tally {
    /// Counts a block that was granted.
    #[inline]
    pub fn granted(&self, device: DeviceId, tag: AllocTag, bytes: Bytes) {
        let (key, bytes) = (Key::of(device, tag), bytes.get());
        match self.shards.step(key, Step::down(bytes)) {
            Some(counts) => counts.add(bytes),
            None => self.claim(key, bytes),
        }
    }

    /// Counts a block that was freed.
    #[inline]
    pub fn freed(&self, device: DeviceId, tag: AllocTag, bytes: Bytes) {
        let (key, bytes) = (Key::of(device, tag), bytes.get());
        match self.shards.step(key, Step::up(bytes)) {
            Some(counts) => counts.remove(bytes),
            None => self.disclaim(key, bytes),
        }
    }

    /// Counts a block again whose free was counted and then refused.
    #[cold]
    pub fn restored(&self, device: DeviceId, tag: AllocTag, bytes: Bytes) {
        self.restored_in(Column::of_device(device), tag, bytes);
    }

    /// Returns the counts of all blocks, whatever their tag.
    pub fn counts(&self) -> Counts {
        self.read(None, || ())
    }

    /// Returns the counts of one tag.
    pub fn counts_of(&self, tag: AllocTag) -> Counts {
        let Key { tag, .. } = Key::of(DeviceId(0), tag).bounded();
        self.read(Some(tag), || ())
    }

    /// Returns the counts of one tag or all; `between` runs after frees are read and before grants are.
    ///
    /// What is granted and freed between the two looks live here, and never was at a time. The peak is never below what
    /// is live and is read last, so no more than that is reported as live, and a peak is never raised by a reading.
    fn read(&self, tag: Option<usize>, between: impl FnOnce()) -> Counts {
        let columns = if tag.is_some() { self.columns.by_tag(None) } else { self.columns.counted(None) };
        let (current, total) = self.shards.sum_around(columns, tag, between);
        let level = tag.map_or(Some(&self.levels.whole), |tag| self.levels.tags.get(tag));
        let peak = level.map_or(current, Level::peak);
        Counts { current: current.at_most(peak), peak, total }
    }

    /// Returns the counts of every tag that was ever counted, the largest holder first.
    pub fn tags(&self) -> Vec<(AllocTag, Counts)> {
        let mut tags: Vec<_> = counted_tags().map(|tag| (tag, self.counts_of(tag))).collect();
        tags.retain(|(_, counts)| counts.total.count > 0);
        tags.sort_by_key(|(_, counts)| std::cmp::Reverse((counts.current.bytes, counts.peak.bytes)));
        tags
    }

    /// Returns what every tag holds on a device; `None` for a device whose ordinal is too large to be counted apart
    /// from others.
    pub fn holders(&self, device: DeviceId) -> Option<Vec<Holding>> {
        is_apart(device).then(|| self.live(self.columns.by_tag(Some(device))))
    }

    /// Returns what every tag holds on a device as [`holders`](Self::holders) does, but for the memory of graphs, which
    /// is shown whole, under its own tag.
    pub(crate) fn undivided_holders(&self, device: DeviceId) -> Option<Vec<Holding>> {
        is_apart(device).then(|| self.live(self.columns.counted(Some(device))))
    }

    /// Returns what every tag holds in some columns.
    fn live(&self, columns: ColumnSet) -> Vec<Holding> {
        let held = |tag: AllocTag| {
            let (Amount { bytes, count }, _) = self.shards.sum(columns, Some(Key::of(DeviceId(0), tag).bounded().tag));
            (count > 0 && bytes > Bytes::ZERO).then_some(Holding { tag, bytes, blocks: count })
        };
        counted_tags().filter_map(held).collect()
    }

    /// Takes a column to count in for a stack, a layer or the memory of graphs on a device; `None` where there are none
    /// left.
    pub(crate) fn take_column(&self, device: DeviceId, kind: ColumnKind) -> Option<Column> {
        self.columns.take(device, kind)
    }

    /// Returns a column that nobody counts in any more. With blocks that are still live it is not used again.
    pub(crate) fn give_back_column(&self, column: Column) {
        let (Amount { bytes, count }, _) = self.shards.sum(ColumnSet::of(column), None);
        if (bytes, count) == (Bytes::ZERO, 0) {
            self.columns.give_back(column);
        }
    }

    /// Returns what every tag holds in a column; nothing where others count there too.
    pub(crate) fn holders_in(&self, column: Column) -> Vec<Holding> {
        if !self.columns.is_apart(column) {
            return Vec::new();
        }
        let tags: Vec<_> = counted_tags().collect();
        let keys: Vec<_> = tags.iter().map(|&tag| Key::in_column(column, tag).bounded()).collect();
        let live = self.shards.live_under(&keys);
        let held = tags.into_iter().zip(live).filter(|(_, live)| live.count > 0);
        held.map(|(tag, Amount { bytes, count })| Holding { tag, bytes, blocks: count }).collect()
    }

    /// Says that blocks of other devices' sinks are counted here by record, which is in the columns of devices.
    pub(crate) fn share_columns(&self) {
        self.columns.share();
    }

    /// Opens a scope, in which what this thread does from here on is counted separately, too, until the scope is
    /// closed. Scopes nest; returns the depth of this one.
    pub fn open_scope(&self) -> usize {
        self.shards.with(|shard| shard.scopes(Scopes::push))
    }

    /// Returns the counts of the current thread's scope at a depth, including those of inner scopes that are closed.
    pub fn counts_in_scope(&self, depth: usize) -> Counts {
        self.shards.with(|shard| shard.scopes(|scopes| scopes.read(depth)))
    }

    /// Closes the current thread's scopes from a depth inwards, adding each to the one around it, and returns the
    /// counts of the one at that depth.
    pub fn close_scope(&self, depth: usize) -> Counts {
        self.shards.with(|shard| shard.scopes(|scopes| scopes.pop(depth)))
    }

    /// Counts a grant for which a [`Counter`] is not enough.
    pub(crate) fn granted_slow(&self, column: Column, tag: AllocTag, bytes: Bytes) {
        self.claim(Key::in_column(column, tag), bytes.get());
    }

    /// Counts a free for which a [`Counter`] is not enough.
    pub(crate) fn freed_slow(&self, column: Column, tag: AllocTag, bytes: Bytes) {
        self.disclaim(Key::in_column(column, tag), bytes.get());
    }

    /// Counts a block again whose free was counted in a column and then refused.
    #[cold]
    pub(crate) fn restored_in(&self, column: Column, tag: AllocTag, bytes: Bytes) {
        let bytes = bytes.get();
        self.with(Key::in_column(column, tag), |counters| counters.restore(bytes));
    }

    /// Counts a grant in a column alone, where a [`Counter`] cannot.
    #[cold]
    pub(crate) fn granted_part_slow(&self, column: Column, tag: AllocTag, bytes: Bytes) {
        let key = Key::in_column(column, tag).bounded();
        self.shards.with(|shard| shard.counts(key).add(bytes.get()));
    }

    /// Counts a free in a column alone, where a [`Counter`] cannot.
    #[cold]
    pub(crate) fn freed_part_slow(&self, column: Column, tag: AllocTag, bytes: Bytes) {
        let key = Key::in_column(column, tag).bounded();
        self.shards.with(|shard| shard.counts(key).remove(bytes.get()));
    }

    /// Counts a part of blocks of the tag `divided` as a block of its own tag. The column is the part's, and the whole
    /// stays as it is.
    pub(crate) fn divided(&self, column: Column, divided: AllocTag, tag: AllocTag, bytes: Bytes) {
        let (keys, bytes) = ([divided, tag].map(|tag| Key::in_column(column, tag).bounded()), bytes.get());
        self.shards.with(|shard| {
            shard.division(&self.levels, keys).part(bytes);
            shard.counts(keys[1]).add(bytes);
            shard.counts(keys[0]).lend(bytes);
        });
    }

    /// Undoes [`divided`](Self::divided) for a part that was freed.
    pub(crate) fn rejoined(&self, column: Column, divided: AllocTag, tag: AllocTag, bytes: Bytes) {
        let (keys, bytes) = ([divided, tag].map(|tag| Key::in_column(column, tag).bounded()), bytes.get());
        self.shards.with(|shard| {
            shard.division(&self.levels, keys).rejoin(bytes);
            shard.counts(keys[0]).take_back(bytes);
            shard.counts(keys[1]).remove(bytes);
        });
    }

    /// Returns the column of a device, which stacks that have none of their own are counted in.
    pub(crate) const fn column_of(device: DeviceId) -> Column {
        Column::of_device(device)
    }

    /// Counts a grant for which a step is not enough.
    #[cold]
    fn claim(&self, key: Key, bytes: u64) {
        self.with(key, |counters| counters.add(bytes));
    }

    /// Counts a free for which a step is not enough.
    #[cold]
    fn disclaim(&self, key: Key, bytes: u64) {
        self.with(key, |counters| counters.remove(bytes));
    }

    /// Counts in the current thread's shard.
    fn with(&self, key: Key, count: impl FnOnce(Counters<'_>)) {
        self.shards.with(|shard| shard.count(&self.levels, key.bounded(), count));
    }
}

/// Returns whether a device is counted apart from others.
const fn is_apart(device: DeviceId) -> bool {
    (device.0 as usize) < DEVICES - 1
}

#[cfg(test)]
mod tests;
