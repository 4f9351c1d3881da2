//! The places in the program where live blocks were allocated.

use crate::Site;
use bursar_core::{Action, Actions, AllocTag, Bytes, DeviceId, Generation, Holding, Observer, Record};
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::Hash;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A location in the program's source, where it is known.
type SourceLocation = Option<&'static Location<'static>>;

thread_local! {
    /// The location that is allocating on this thread just now.
    static ALLOCATING: Cell<SourceLocation> = const { Cell::new(None) };
    /// The block that was freed last: a free that is then refused is recorded as an allocation, which it was not.
    static FREED: Cell<Option<(Generation, SourceLocation)>> = const { Cell::new(None) };
}

/// The time during which this thread's allocations are attributed to one location, until this is dropped.
#[derive(Debug)]
pub(crate) struct AllocationScope {
    previous: SourceLocation,
}

impl AllocationScope {
    /// Attributes what this thread allocates to `location`, until the result is dropped.
    pub(crate) fn enter(location: &'static Location<'static>) -> Self {
        Self { previous: ALLOCATING.replace(Some(location)) }
    }
}

impl Drop for AllocationScope {
    fn drop(&mut self) {
        ALLOCATING.set(self.previous);
    }
}

#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    location: SourceLocation,
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

    /// Returns what is live, by location and tag.
    pub(crate) fn live(&self) -> Vec<Site> {
        let sites = self.sums(|block| (block.location, block.tag));
        let site = |((location, tag), (bytes, blocks))| Site { location, tag, bytes, blocks };
        sites.into_iter().map(site).collect()
    }

    /// Returns the bytes and the number of blocks that are live, by a key.
    fn sums<K: Eq + Hash>(&self, key: impl Fn(&LiveBlock) -> K) -> HashMap<K, (Bytes, u64)> {
        let mut sums: HashMap<K, (Bytes, u64)> = HashMap::new();
        for block in self.blocks().values() {
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
            return FREED.set(freed.map(|block| (generation, block.location)));
        }
        let location = match (record.error, FREED.get()) {
            (None, _) => ALLOCATING.get(),
            (Some(_), Some((freed, location))) if freed == generation => location,
            (Some(_), _) => return,
        };
        self.blocks().insert(generation, LiveBlock { location, tag: record.tag, bytes: record.granted });
    }

    /// Returns the holders of the one device that this observer is subscribed to.
    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        let holding = |(tag, (bytes, blocks))| Holding { tag, bytes, blocks };
        Some(self.sums(|block| block.tag).into_iter().map(holding).collect())
    }
}
