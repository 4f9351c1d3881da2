//! The live blocks of a device: where in the program they were allocated, and which are of which tag.

use crate::Site;
use bursar_core::{
    Action, Actions, AllocTag, BlocksOf, Bytes, DeviceContext, DeviceId, DevicePtr, Generation, Holding, MIN_ALIGN,
    Observer, Record, Result, TagRecord,
};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::ops::Range;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A location in the program's source, where it is known.
type SourceLocation = Option<&'static Location<'static>>;

/// The number that the blocks of a handle with no count of its own are recorded under.
pub(crate) const UNCOUNTED_HANDLE: u64 = 0;

/// The origin of an allocation: a location, and the number of the handle it is made through.
#[derive(Clone, Copy, Debug)]
struct Origin {
    location: SourceLocation,
    handle: u64,
}

const UNKNOWN: Origin = Origin { location: None, handle: UNCOUNTED_HANDLE };

thread_local! {
    /// The origin of what is allocating on this thread just now.
    static ALLOCATING: Cell<Origin> = const { Cell::new(UNKNOWN) };
    /// The block that was freed last: a free that is then refused is recorded as an allocation, which it was not.
    static FREED: Cell<Option<(Generation, Option<Origin>)>> = const { Cell::new(None) };
}

/// The time during which this thread's allocations are attributed to one origin, until this is dropped.
#[derive(Debug)]
pub(crate) struct AllocationScope {
    previous: Origin,
}

impl AllocationScope {
    /// Attributes what this thread allocates to `location`, until the result is dropped.
    pub(crate) fn enter(location: &'static Location<'static>) -> Self {
        let previous = ALLOCATING.get();
        ALLOCATING.set(Origin { location: Some(location), ..previous });
        Self { previous }
    }

    /// Attributes what this thread allocates to a handle, until the result is dropped; the outermost one counts.
    pub(crate) fn enter_handle(handle: u64) -> Self {
        let previous = ALLOCATING.get();
        if previous.handle == UNCOUNTED_HANDLE {
            ALLOCATING.set(Origin { handle, ..previous });
        }
        Self { previous }
    }
}

impl Drop for AllocationScope {
    fn drop(&mut self) {
        ALLOCATING.set(self.previous);
    }
}

#[derive(Clone, Debug)]
struct LiveBlock {
    /// The origin, if those were recorded when it was allocated.
    origin: Option<Origin>,
    tag: AllocTag,
    bytes: Bytes,
    range: Range<DevicePtr>,
}

/// The live blocks of one device, once somebody has asked for them; handles of one family share it. It is an observer, which is
/// called for each block while its allocator is still being called.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveBlocks {
    recording: Arc<Recording>,
}

#[derive(Debug, Default)]
struct Recording {
    live: Mutex<HashMap<Generation, LiveBlock>>,
    has_sites: AtomicBool,
    has_tags: AtomicBool,
}

impl LiveBlocks {
    /// Records from now on where blocks are allocated, and by which handle.
    pub(crate) fn record_sites(&self, context: &DeviceContext) -> Result<()> {
        self.subscribe(context, &self.recording.has_sites)
    }

    /// Records from now on which blocks are of which tag.
    pub(crate) fn record_tags(&self, context: &DeviceContext) -> Result<()> {
        self.subscribe(context, &self.recording.has_tags)
    }

    /// Subscribes once: it has the same identity each time.
    fn subscribe(&self, context: &DeviceContext, is_recorded: &AtomicBool) -> Result<()> {
        let observer: Arc<dyn Observer> = Arc::new(self.clone());
        context.sink().subscribe(&observer)?;
        is_recorded.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns whether the origins of blocks are recorded.
    #[inline]
    pub(crate) fn has_sites(&self) -> bool {
        self.recording.has_sites.load(Ordering::Acquire)
    }

    fn blocks(&self) -> MutexGuard<'_, HashMap<Generation, LiveBlock>> {
        self.recording.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether it is recorded which blocks are of which tag.
    pub(crate) fn has_tags(&self) -> bool {
        self.recording.has_tags.load(Ordering::Acquire)
    }

    /// Returns what a handle has allocated and is live, but for some blocks, by location and tag.
    pub(crate) fn sites(&self, handle: u64, but: &HashSet<Generation>) -> Vec<Site> {
        let site_of = |generation: &Generation, block: &LiveBlock| {
            let origin = block.origin.filter(|origin| origin.handle == handle && !but.contains(generation))?;
            Some((origin.location, block.tag))
        };
        let site = |((location, tag), (bytes, blocks))| Site { location, tag, bytes, blocks };
        self.sums(site_of).into_iter().map(site).collect()
    }

    /// Returns the bytes and the number of those blocks that have a key, by it.
    fn sums<K: Eq + Hash>(&self, key: impl Fn(&Generation, &LiveBlock) -> Option<K>) -> HashMap<K, (Bytes, u64)> {
        let mut sums: HashMap<K, (Bytes, u64)> = HashMap::new();
        for (generation, block) in self.blocks().iter() {
            let Some(key) = key(generation, block) else { continue };
            let (bytes, blocks) = sums.entry(key).or_default();
            (*bytes, *blocks) = (bytes.saturating_add(block.bytes), *blocks + 1);
        }
        sums
    }
}

impl TagRecord for LiveBlocks {
    fn hold(&self, look: &mut dyn FnMut(&BlocksOf<'_>)) {
        // A block's free is recorded before its allocator is called, which so waits here.
        let blocks = self.blocks();
        look(&|tag| {
            let own = blocks.values().filter(|block| block.tag == tag);
            own.map(|block| block.range.clone()).collect()
        });
    }
}

impl Observer for LiveBlocks {
    fn interest(&self) -> Actions {
        Actions::of(&[Action::Allocate, Action::Free])
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.recording).addr()
    }

    fn record(&self, record: &Record<'_>) {
        let Some(generation) = record.generation else { return };
        if record.action == Action::Free {
            let freed = self.blocks().remove(&generation);
            return FREED.set(freed.map(|block| (generation, block.origin)));
        }
        let origin = match (record.error, FREED.get()) {
            (None, _) => self.has_sites().then(|| ALLOCATING.get()),
            (Some(_), Some((freed, origin))) if freed == generation => origin,
            (Some(_), _) => return,
        };
        // What was granted may begin before the block, with a margin: what was asked for is the block's own.
        let range = record.ptr..record.ptr.offset(record.asked.get().next_multiple_of(MIN_ALIGN));
        self.blocks().insert(generation, LiveBlock { origin, tag: record.tag, bytes: record.granted, range });
    }

    /// Returns the holders of the one device that this observer is subscribed to, where it is there to report them.
    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        let holding = |(tag, (bytes, blocks))| Holding { tag, bytes, blocks };
        let holders = || self.sums(|_, block| Some(block.tag)).into_iter().map(holding).collect();
        self.has_sites().then(holders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bursar_core::{Build, DeviceMemoryResource, Stack, leaf, tag};
    use bursar_memory::Guard;

    fn blocks_of(live: &LiveBlocks, tag: AllocTag) -> Vec<Range<DevicePtr>> {
        let mut found = Vec::new();
        live.hold(&mut |blocks_of| found = blocks_of(tag));
        found
    }

    /// A block between margins is as long as its user asked: what lies behind it may be another's, which stays awake.
    #[test]
    fn z6_the_range_of_a_block_ends_before_its_neighbour() {
        let context = DeviceContext::open(bursar_sim::Sim::immediate(), DeviceId(0)).expect("a device");
        let (tagged, stream) = (LiveBlocks::default(), context.create_stream(0).expect("room"));
        assert!(!tagged.has_tags(), "they are not recorded");
        tagged.record_tags(&context).expect("room");
        let memory = Stack::new().layer(Guard::default()).over(leaf::Async).build(&context).expect("a stack");
        let block = memory.allocate(1000, 1 << 16, stream, tag!("weights")).expect("room");
        assert!(block.granted().get() > 1 << 16, "the margin before it is as long as its alignment");
        let range = block.ptr()..block.ptr().offset(1024);
        assert_eq!(blocks_of(&tagged, tag!("weights")), [range]);
        memory.deallocate(block, stream).expect("its own");
        assert_eq!(blocks_of(&tagged, tag!("weights")), []);
    }

    /// Whoever asks for tags first and for places later has both of what comes then, and no place that was not seen.
    #[test]
    fn d7_sites_and_tags_of_one_block_are_recorded_together() {
        let context = DeviceContext::open(bursar_sim::Sim::immediate(), DeviceId(0)).expect("a device");
        let (blocks, stream) = (LiveBlocks::default(), context.create_stream(0).expect("room"));
        let memory = Stack::new().over(leaf::Async).build(&context).expect("a stack");
        blocks.record_tags(&context).expect("room");
        let early = memory.allocate(1000, 256, stream, tag!("early")).expect("room");
        blocks.record_sites(&context).expect("it is subscribed");
        let _scope = AllocationScope::enter(Location::caller());
        let late = memory.allocate(1000, 256, stream, tag!("late")).expect("room");
        let is_known = |tag| blocks_of(&blocks, tag).len() == 1;
        assert!(is_known(tag!("early")) && is_known(tag!("late")));
        let sites = blocks.sites(UNCOUNTED_HANDLE, &HashSet::new());
        assert_eq!(sites.iter().map(|site| site.tag).collect::<Vec<_>>(), [tag!("late")]);
        [early, late].into_iter().for_each(|block| memory.deallocate(block, stream).expect("its own"));
        assert!(blocks.blocks().is_empty());
    }
}
