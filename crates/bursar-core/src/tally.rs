//! Counts blocks, whole and by tag, without threads meeting on the way.

mod cell;
mod chunks;
mod level;
mod place;
mod scopes;
mod shard;
mod slack;

use crate::{AllocTag, Bytes, DeviceId, Holding};
use chunks::Chunks;
use level::Level;
use place::{DEVICES, NEAR_TAGS, Place, TAGS};
use scopes::Scopes;
use shard::{Here, Shards};
use slack::Step;
use std::fmt;

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
#[derive(Debug, Default)]
pub struct Tally {
    shards: Shards,
    whole: Level,
    tags: Chunks<Level, NEAR_TAGS>,
}

/// Counts blocks of one device where the current thread counted last, which takes a few instructions, and leaves the others
/// to the [`Tally`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counter {
    /// The tally's number; zero where blocks have to be counted the long way.
    number: u64,
    /// The device's first cell.
    first: usize,
}

impl Counter {
    pub(crate) fn new(tally: &Tally, device: DeviceId) -> Self {
        let place = Place::of(device, AllocTag::UNTAGGED).near();
        place.map_or_else(Self::default, |place| Self { number: tally.shards.number(), first: place.index() })
    }

    /// Counts a block that was granted; `false` if the tally has to.
    #[inline]
    pub(crate) fn granted(&self, tag: AllocTag, bytes: Bytes) -> bool {
        let cell = self.step(tag, Step::down(bytes.get()));
        cell.map(|cell| cell.rise(bytes.get())).is_some()
    }

    /// Counts a block that was freed; `false` if the tally has to.
    #[inline]
    pub(crate) fn freed(&self, tag: AllocTag, bytes: Bytes) -> bool {
        let cell = self.step(tag, Step::up(bytes.get()));
        cell.map(|cell| cell.fall(bytes.get())).is_some()
    }

    #[inline]
    fn step(&self, tag: AllocTag, step: Step) -> Option<&'static cell::Cell> {
        let tag = tag.index();
        if tag < NEAR_TAGS { shard::last(self.number)?.step_near(tag, self.first + tag, step) } else { None }
    }
}

/// Forgets where the current thread counted, at its end.
pub(crate) fn forget_place() {
    shard::forget();
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
        self.with(Place::of(device, tag), |here, level| {
            self.whole.rise(here.whole, bytes);
            level.rise(here.tag, bytes);
            here.cell.restore(bytes);
            here.scopes.restore(bytes);
        });
    }

    /// Everything, whatever its tag.
    pub fn counts(&self) -> Counts {
        let (current, total) = self.shards.sum(None, None);
        Counts { current, peak: self.whole.peak(current), total }
    }

    /// What was counted for one tag.
    pub fn counts_of(&self, tag: AllocTag) -> Counts {
        let Place { tag, .. } = Place::of(DeviceId(0), tag).bounded();
        let (current, total) = self.shards.sum(None, Some(tag));
        let peak = self.tags.get(tag).map_or(current, |level| level.peak(current));
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
        self.with(place, |here, level| {
            self.whole.rise(here.whole, bytes);
            level.rise(here.tag, bytes);
            here.cell.rise(bytes);
            here.scopes.rise(bytes);
        });
    }

    /// Counts a free for which a step is not enough.
    #[cold]
    fn disclaim(&self, place: Place, bytes: u64) {
        self.with(place, |here, level| {
            self.whole.fall(here.whole, bytes);
            level.fall(here.tag, bytes);
            here.cell.fall(bytes);
            here.scopes.fall(bytes);
        });
    }

    /// Counts in the current thread's place and at the level of a tag.
    fn with(&self, place: Place, count: impl FnOnce(Here<'_>, &Level)) {
        let place = place.bounded();
        self.shards.with(|shard| count(shard.at(place), self.tags.get_or_make(place.tag)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tag;
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};

    const BYTES: Bytes = Bytes(512);

    fn current(tally: &Tally) -> u64 {
        tally.counts().current.count
    }

    #[test]
    fn g2_tallies_that_a_thread_counts_for_in_turn_are_told_apart() {
        let tallies = [Tally::default(), Tally::default()];
        let counters = tallies.each_ref().map(|tally| Counter::new(tally, DeviceId(0)));
        for (tally, counter) in tallies.iter().zip(counters) {
            tally.granted(DeviceId(0), tag!("turn"), BYTES);
            tally.freed(DeviceId(0), tag!("turn"), BYTES);
            tally.granted(DeviceId(0), tag!("turn"), BYTES);
            assert!(counter.freed(tag!("turn"), BYTES), "it is where the thread counted last");
        }
        assert!(!counters[0].granted(tag!("turn"), BYTES), "the other is");
        assert!(counters[1].granted(tag!("turn"), BYTES));
        assert_eq!(tallies.each_ref().map(current), [0, 1]);
        assert_eq!(tallies.each_ref().map(|tally| tally.counts().total.count), [2, 3]);
    }

    #[test]
    fn g2_a_tally_begins_with_nothing_wherever_others_counted_before() {
        for _ in 0..3 {
            let tally = Tally::default();
            let far = AllocTag::intern("far away");
            assert_eq!((tally.counts(), tally.counts_of(far)), (Counts::default(), Counts::default()));
            assert_eq!(tally.open_scope(), 0);
            for device in [0, 7, 40] {
                tally.granted(DeviceId(device), far, BYTES);
                tally.granted(DeviceId(device), AllocTag::UNTAGGED, BYTES);
            }
            tally.freed(DeviceId(0), far, BYTES);
            assert_eq!((current(&tally), tally.counts().peak.count), (5, 6));
        }
    }

    /// Says, when its thread is past its end, whether it could still be counted where the thread counted last.
    struct Last(RefCell<Option<(Counter, Sender<bool>)>>);

    impl Drop for Last {
        fn drop(&mut self) {
            if let Some((counter, says)) = self.0.take() {
                says.send(counter.granted(tag!("last"), BYTES)).expect("somebody hears");
            }
        }
    }

    #[test]
    fn g2_a_thread_past_its_end_does_not_count_in_a_place_that_may_be_anothers() {
        thread_local! {
            static LAST: Last = const { Last(RefCell::new(None)) };
        }
        let (says, hears) = channel();
        let tally = Arc::new(Tally::default());
        let counter = Counter::new(&tally, DeviceId(0));
        let thread = std::thread::spawn({
            let tally = tally.clone();
            move || {
                // Before the thread has a number, and so gone after it.
                LAST.with(|last| last.0.replace(Some((counter, says))));
                tally.granted(DeviceId(0), tag!("last"), BYTES);
                tally.freed(DeviceId(0), tag!("last"), BYTES);
                tally.granted(DeviceId(0), tag!("last"), BYTES);
                assert!(counter.freed(tag!("last"), BYTES));
            }
        });
        thread.join().expect("no panic");
        assert_eq!(hears.recv(), Ok(false));
        assert_eq!(current(&tally), 0);
    }
}
