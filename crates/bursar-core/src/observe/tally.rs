//! Counts blocks, whole and by tag, without threads meeting on the way.

mod cell;
mod chunks;
mod level;
mod place;
mod scopes;
mod shard;
mod slack;

use crate::{AllocTag, Bytes, DeviceId, Holding};
use cell::Cell;
use level::{Levels, Shares};
use place::{DEVICES, NEAR_TAGS, Place, TAGS};
use scopes::Scopes;
use shard::{Here, Shard, Shards};
use slack::Step;
use std::fmt;
use std::sync::Arc;

/// How many bytes and how many blocks.
///
/// ```
/// use bursar_core::{Amount, Bytes};
///
/// let amount = Amount { bytes: Bytes::mib(3), count: 2 };
/// assert_eq!(amount.to_string(), "3 MiB in 2 blocks");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes granted.
    pub bytes: Bytes,
    /// Blocks.
    pub count: u64,
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {} block{}", self.bytes, self.count, if self.count == 1 { "" } else { "s" })
    }
}

/// What was counted, by bytes granted and by blocks.
///
/// ```
/// use bursar_core::Counts;
///
/// assert_eq!(Counts::default().current.count, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// What is live.
    pub current: Amount,
    /// The most that was live at a time: never less than the truth, and at most 1 MiB and 256 blocks a thread more.
    /// Where one thread does everything it is exact.
    pub peak: Amount,
    /// Everything that was ever granted.
    pub total: Amount,
}

/// Blocks and bytes by device and tag, each thread's in a place of its own.
///
/// An [observer](crate::Observer::tally) that counts gives it to the sinks it subscribes to, and blocks are counted without
/// a record being made. To know peaks, each thread claims what it needs of shared levels and keeps some slack: while that
/// lasts, to count a block is to write four words that nobody else writes.
///
/// ```
/// use bursar_core::{Bytes, DeviceId, Tally, tag};
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
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tally").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// Counts blocks of one device where the current thread counted last, which takes a few instructions, and leaves the others
/// to the [`Tally`].
#[derive(Clone, Default)]
pub(crate) struct Counter {
    tally: Option<Arc<Tally>>,
    /// The tally's number; zero where blocks have to be counted the long way.
    number: u64,
    /// The device's first cell.
    first: usize,
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Counter {
    pub(crate) fn new(tally: &Arc<Tally>, device: DeviceId) -> Self {
        let place = Place::of(device, AllocTag::UNTAGGED).near();
        let (number, first) = place.map_or((0, 0), |place| (tally.shards.number(), place.index()));
        Self { tally: Some(tally.clone()), number, first }
    }

    /// For whom it counts, if anybody.
    pub(crate) const fn tally(&self) -> Option<&Arc<Tally>> {
        self.tally.as_ref()
    }

    /// Counts a block that was granted; `false` if the tally has to.
    #[inline(always)]
    pub(crate) fn granted(&self, tag: AllocTag, bytes: Bytes) -> bool {
        let bytes = bytes.get();
        let cell = self.moved(tag, Step::down(bytes), |shares| shares.rise(bytes));
        cell.map(|cell| cell.rise(bytes)).is_some()
    }

    /// Counts a block that was freed; `false` if the tally has to.
    #[inline(always)]
    pub(crate) fn freed(&self, tag: AllocTag, bytes: Bytes) -> bool {
        let bytes = bytes.get();
        let cell = self.moved(tag, Step::up(bytes), |shares| shares.fall(bytes));
        cell.map(|cell| cell.fall(bytes)).is_some()
    }

    /// Moves both slacks by a step or, if that is not enough, both levels, and answers the cell that is left to
    /// count in.
    #[inline(always)]
    fn moved(&self, tag: AllocTag, step: Step, change: impl FnOnce(Shares<'_>)) -> Option<&'static Cell> {
        let tag = tag.index();
        let shard = if tag < NEAR_TAGS { shard::last(self.number)? } else { return None };
        let moved = shard.step_near(tag, step);
        (moved || self.move_levels(shard, tag, change)).then(|| shard.cell_near(self.first + tag))
    }

    /// Moves the levels of everything and of a tag; `false` if the tally has to.
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
        let (place, bytes) = (Place::of(device, tag), bytes.get());
        match self.shards.step(place, Step::down(bytes)) {
            Some(cell) => cell.rise(bytes),
            None => self.claim(place, bytes),
        }
    }

    /// Counts a block that was freed.
    #[inline]
    pub fn freed(&self, device: DeviceId, tag: AllocTag, bytes: Bytes) {
        let (place, bytes) = (Place::of(device, tag), bytes.get());
        match self.shards.step(place, Step::up(bytes)) {
            Some(cell) => cell.fall(bytes),
            None => self.disclaim(place, bytes),
        }
    }

    /// Counts a block again whose free was counted and then refused.
    #[cold]
    pub fn restored(&self, device: DeviceId, tag: AllocTag, bytes: Bytes) {
        let bytes = bytes.get();
        self.with(Place::of(device, tag), |here| here.restore(bytes));
    }

    /// Everything, whatever its tag.
    pub fn counts(&self) -> Counts {
        let (current, total) = self.shards.sum(None, None);
        Counts { current, peak: self.levels.whole.peak(current), total }
    }

    /// What was counted for one tag.
    pub fn counts_of(&self, tag: AllocTag) -> Counts {
        let Place { tag, .. } = Place::of(DeviceId(0), tag).bounded();
        let (current, total) = self.shards.sum(None, Some(tag));
        let peak = self.levels.tags.get(tag).map_or(current, |level| level.peak(current));
        Counts { current, peak, total }
    }

    /// Every tag that was ever counted, the largest holder first.
    pub fn tags(&self) -> Vec<(AllocTag, Counts)> {
        let mut tags: Vec<_> = AllocTag::all().take(TAGS).map(|tag| (tag, self.counts_of(tag))).collect();
        tags.retain(|(_, counts)| counts.total.count > 0);
        tags.sort_by_key(|(_, counts)| std::cmp::Reverse((counts.current.bytes, counts.peak.bytes)));
        tags
    }

    /// Every tag that holds anything on a device. One too far up to be told apart from others has no answer.
    pub fn holders(&self, device: DeviceId) -> Option<Vec<Holding>> {
        let place = device.0 as usize;
        let held = |tag: AllocTag| {
            let (Amount { bytes, count }, _) = self.shards.sum(Some(place), Some(tag.index()));
            (count > 0).then_some(Holding { tag, bytes, blocks: count })
        };
        (place < DEVICES - 1).then(|| AllocTag::all().take(TAGS - 1).filter_map(held).collect())
    }

    /// Counts what this thread does from here on its own, too, until the scope is closed. Scopes nest; the answer is how
    /// deep it is.
    pub fn open_scope(&self) -> usize {
        self.shards.with(|shard| shard.scopes(Scopes::push))
    }

    /// What was counted in the current thread's scope at a depth, what inner ones that are closed counted included.
    pub fn counts_in_scope(&self, depth: usize) -> Counts {
        self.shards.with(|shard| shard.scopes(|scopes| scopes.read(depth)))
    }

    /// Closes the current thread's scopes from a depth inwards, each into the one around it, and answers what was
    /// counted at that depth.
    pub fn close_scope(&self, depth: usize) -> Counts {
        self.shards.with(|shard| shard.scopes(|scopes| scopes.pop(depth)))
    }

    /// Counts a grant for which a [`Counter`] is not enough.
    pub(crate) fn granted_at_length(&self, device: DeviceId, tag: AllocTag, bytes: Bytes) {
        self.claim(Place::of(device, tag), bytes.get());
    }

    /// Counts a free for which a [`Counter`] is not enough.
    pub(crate) fn freed_at_length(&self, device: DeviceId, tag: AllocTag, bytes: Bytes) {
        self.disclaim(Place::of(device, tag), bytes.get());
    }

    /// Counts a grant for which a step is not enough.
    #[cold]
    fn claim(&self, place: Place, bytes: u64) {
        self.with(place, |here| here.rise(bytes));
    }

    /// Counts a free for which a step is not enough.
    #[cold]
    fn disclaim(&self, place: Place, bytes: u64) {
        self.with(place, |here| here.fall(bytes));
    }

    /// Counts in the current thread's place.
    fn with(&self, place: Place, count: impl FnOnce(Here<'_>)) {
        self.shards.with(|shard| shard.count(&self.levels, place.bounded(), count));
    }
}

#[cfg(test)]
mod tests;
