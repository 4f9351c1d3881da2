//! The live blocks of a device by tag, for those who put a tag to sleep.

use bursar_core::{Action, Actions, AllocTag, DeviceId, DevicePtr, Generation, Holding, MIN_ALIGN, Observer, Record};
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

thread_local! {
    /// The block that was freed last: a free that is then refused is recorded as an allocation, which it was not.
    static FREED: Cell<Option<Generation>> = const { Cell::new(None) };
}

/// A block that is live.
#[derive(Clone, Debug)]
struct TaggedBlock {
    tag: AllocTag,
    range: Range<DevicePtr>,
}

/// The live blocks of one device: an observer, which is called for each block while its allocator is still being called.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaggedBlocks {
    live: Arc<Mutex<HashMap<Generation, TaggedBlock>>>,
}

impl TaggedBlocks {
    /// Returns the observer to subscribe, which has the same identity each time.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(self.clone())
    }

    fn blocks(&self) -> MutexGuard<'_, HashMap<Generation, TaggedBlock>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the blocks of a tag.
    pub(crate) fn of(&self, tag: AllocTag) -> Vec<Range<DevicePtr>> {
        self.blocks().values().filter(|block| block.tag == tag).map(|block| block.range.clone()).collect()
    }
}

impl Observer for TaggedBlocks {
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
            return FREED.set(freed.map(|_| generation));
        }
        if record.error.is_some() && FREED.get() != Some(generation) {
            return;
        }
        // What was granted may begin before the block, with a margin: what was asked for is the block's own.
        let bytes = record.asked.get().next_multiple_of(MIN_ALIGN);
        let range = record.ptr..record.ptr.offset(bytes);
        self.blocks().insert(generation, TaggedBlock { tag: record.tag, range });
    }

    /// Returns nothing: others count.
    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bursar_core::{Build, DeviceContext, DeviceMemoryResource, Stack, leaf, tag};
    use bursar_memory::Guard;

    /// A block between margins is as long as its user asked: what lies behind it may be another's, which stays awake.
    #[test]
    fn z6_the_range_of_a_block_ends_before_its_neighbour() {
        let context = DeviceContext::open(bursar_sim::Sim::immediate(), DeviceId(0)).expect("a device");
        let (tagged, stream) = (TaggedBlocks::default(), context.create_stream(0).expect("room"));
        context.sink().subscribe(&tagged.observer()).expect("room");
        let memory = Stack::new().layer(Guard::default()).over(leaf::Async).build(&context).expect("a stack");
        let block = memory.allocate(1000, 1 << 16, stream, tag!("weights")).expect("room");
        assert!(block.granted().get() > 1 << 16, "the margin before it is as long as its alignment");
        assert_eq!(tagged.of(tag!("weights")), [block.ptr()..block.ptr().offset(1024)]);
        memory.deallocate(block, stream).expect("its own");
        assert!(tagged.of(tag!("weights")).is_empty());
    }
}
