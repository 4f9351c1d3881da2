//! Where in the program live blocks were allocated.

use crate::Site;
use bursar_core::{Action, Actions, AllocTag, Bytes, DeviceId, Generation, Holding, Observer, Record};
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::Hash;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Place = Option<&'static Location<'static>>;

thread_local! {
    /// Where the program is asking for memory just now.
    static HERE: Cell<Place> = const { Cell::new(None) };
    /// The block that was freed last: a free that is then refused is told as an allocation, which it was not.
    static FREED: Cell<Option<(Generation, Place)>> = const { Cell::new(None) };
}

/// Being asked for memory from one place, until this is dropped.
#[derive(Debug)]
pub(crate) struct Here(Place);

impl Drop for Here {
    fn drop(&mut self) {
        HERE.set(self.0);
    }
}

#[derive(Clone, Copy, Debug)]
struct Live {
    place: Place,
    tag: AllocTag,
    bytes: Bytes,
}

/// The live blocks of one device: an observer, which hears of each block while its allocator is still being called.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sites {
    live: Arc<Mutex<HashMap<Generation, Live>>>,
}

impl Sites {
    /// From here until the answer is dropped, what this thread allocates is from `place`.
    pub(crate) fn enter(place: &'static Location<'static>) -> Here {
        Here(HERE.replace(Some(place)))
    }

    /// What hears of blocks: the same one each time.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(self.clone())
    }

    fn blocks(&self) -> MutexGuard<'_, HashMap<Generation, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is live, by place and tag.
    pub(crate) fn live(&self) -> Vec<Site> {
        let sites = self.sums(|live| (live.place, live.tag));
        let site = |((location, tag), (bytes, blocks))| Site { location, tag, bytes, blocks };
        sites.into_iter().map(site).collect()
    }

    /// Bytes and blocks that are live, by a key.
    fn sums<K: Eq + Hash>(&self, key: impl Fn(&Live) -> K) -> HashMap<K, (Bytes, u64)> {
        let mut sums: HashMap<K, (Bytes, u64)> = HashMap::new();
        for live in self.blocks().values() {
            let (bytes, blocks) = sums.entry(key(live)).or_default();
            (*bytes, *blocks) = (bytes.saturating_add(live.bytes), *blocks + 1);
        }
        sums
    }
}

impl Observer for Sites {
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
            return FREED.set(freed.map(|live| (generation, live.place)));
        }
        let place = match (record.error, FREED.get()) {
            (None, _) => HERE.get(),
            (Some(_), Some((freed, place))) if freed == generation => place,
            (Some(_), _) => return,
        };
        self.blocks().insert(generation, Live { place, tag: record.tag, bytes: record.granted });
    }

    /// Each observer is of one device.
    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        let holding = |(tag, (bytes, blocks))| Holding { tag, bytes, blocks };
        Some(self.sums(|live| live.tag).into_iter().map(holding).collect())
    }
}
