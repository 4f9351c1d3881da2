//! The places in the program where live blocks were allocated.

use crate::Site;
use bursar_core::{Action, Actions, AllocTag, Bytes, DeviceId, Generation, Holding, Observer, Record};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::panic::Location;
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
    static FREED: Cell<Option<(Generation, Origin)>> = const { Cell::new(None) };
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

#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    origin: Origin,
    tag: AllocTag,
    bytes: Bytes,
}

/// The live blocks of one device: an observer, which is called for each block while its allocator is still being
/// called.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllocationSites {
    live: Arc<Mutex<HashMap<Generation, LiveBlock>>>,
}

impl AllocationSites {
    /// Returns the observer to subscribe, which has the same identity each time.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(self.clone())
    }

    fn blocks(&self) -> MutexGuard<'_, HashMap<Generation, LiveBlock>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what a handle has allocated and is live, but for some blocks, by location and tag.
    pub(crate) fn live(&self, handle: u64, but: &HashSet<Generation>) -> Vec<Site> {
        let is_meant =
            |generation: &Generation, block: &LiveBlock| block.origin.handle == handle && !but.contains(generation);
        let sites = self.sums(is_meant, |block| (block.origin.location, block.tag));
        let site = |((location, tag), (bytes, blocks))| Site { location, tag, bytes, blocks };
        sites.into_iter().map(site).collect()
    }

    /// Returns the bytes and the number of those blocks that are meant, by a key.
    fn sums<K: Eq + Hash>(
        &self,
        is_meant: impl Fn(&Generation, &LiveBlock) -> bool,
        key: impl Fn(&LiveBlock) -> K,
    ) -> HashMap<K, (Bytes, u64)> {
        let mut sums: HashMap<K, (Bytes, u64)> = HashMap::new();
        for (_, block) in self.blocks().iter().filter(|(generation, block)| is_meant(generation, block)) {
            let (bytes, blocks) = sums.entry(key(block)).or_default();
            (*bytes, *blocks) = (bytes.saturating_add(block.bytes), *blocks + 1);
        }
        sums
    }
}

impl Observer for AllocationSites {
    fn interest(&self) -> Actions {
        Actions::of(&[Action::Allocate, Action::Free])
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.live).addr()
    }

    fn record(&self, record: &Record<'_>) {
        let Some(generation) = record.generation else { return };
        if record.action == Action::Free {
            let freed = self.blocks().remove(&generation);
            return FREED.set(freed.map(|block| (generation, block.origin)));
        }
        let origin = match (record.error, FREED.get()) {
            (None, _) => ALLOCATING.get(),
            (Some(_), Some((freed, origin))) if freed == generation => origin,
            (Some(_), _) => return,
        };
        self.blocks().insert(generation, LiveBlock { origin, tag: record.tag, bytes: record.granted });
    }

    /// Returns the holders of the one device that this observer is subscribed to.
    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        let holding = |(tag, (bytes, blocks))| Holding { tag, bytes, blocks };
        Some(self.sums(|_, _| true, |block| block.tag).into_iter().map(holding).collect())
    }
}
