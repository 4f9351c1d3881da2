//! A leaf that caches freed blocks and reuses them on any stream.
#![allow(unsafe_code)]

use super::{BlockAccounting, Notes, accounted_holder};
use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, DevicePtr, Error, Holder, MIN_ALIGN, Refused,
    Result, Stream, grant,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The sizes of its blocks; few, so that most are reused.
const CLASSES: [Bytes; 3] = [Bytes::kib(4), Bytes::kib(64), Bytes::mib(1)];

/// A free block, its own stream and the one that it was freed on.
type Spare = (DevicePtr, [Stream; 2]);

/// The streams that one which is given a block has to come after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Its own and the one that it was freed on, as is right.
    ForBoth,
    /// The one that it was freed on.
    ForFree,
    /// Its own.
    ForHome,
    Never,
}

/// A caching leaf, whose frees come after both the block's own stream and the one that it was freed on without either
/// having been made to wait. Its bugs: a stream that is given a block does not wait for one of the two, or for both.
#[derive(Debug)]
pub(crate) struct CachingLeaf {
    accounting: BlockAccounting,
    waits: Waits,
    /// The free blocks, by size.
    spares: Mutex<HashMap<u64, Vec<Spare>>>,
}

impl CachingLeaf {
    pub(crate) fn opener(waits: Waits) -> impl Fn(&Arc<DeviceContext>) -> Arc<dyn DeviceMemoryResource> {
        move |context| {
            Arc::new(Self { accounting: BlockAccounting::new(context, Notes::Sent), waits, spares: Mutex::default() })
        }
    }

    fn take_spare(&self, bytes: u64) -> Option<Spare> {
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        spares.get_mut(&bytes)?.pop()
    }

    fn reuse(&self, (ptr, [home, freed_on]): Spare, stream: Stream) -> Result<DevicePtr> {
        let context = &self.accounting.context;
        if matches!(self.waits, Waits::ForBoth | Waits::ForFree) {
            context.order(freed_on, stream)?;
        }
        if matches!(self.waits, Waits::ForBoth | Waits::ForHome) {
            context.order(home, stream)?;
        }
        Ok(ptr)
    }
}

impl Holder for CachingLeaf {
    accounted_holder!();

    fn reap(&self) -> Result<Bytes> {
        Ok(Bytes::ZERO)
    }

    /// Frees the cached blocks, for which the driver waits for the device.
    fn reap_blocking(&self, _: Duration) -> Result<Bytes> {
        let context = &self.accounting.context;
        let spares = std::mem::take(&mut *self.spares.lock().unwrap_or_else(PoisonError::into_inner));
        for (ptr, _) in spares.into_values().flatten() {
            // SAFETY: allocated here, and no block covers it any more.
            unsafe { context.driver().free(context.device(), ptr) }?;
        }
        Ok(Bytes::ZERO)
    }
    fn survey(&self, _: &mut bursar_core::Survey) {}
}

impl DeviceMemoryResource for CachingLeaf {
    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes> {
        let needed = grant(bytes, align)?;
        let class = CLASSES.into_iter().find(|class| needed <= *class);
        class.ok_or(Error::InvalidSize { requested: bytes })
    }

    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        assert!(align <= MIN_ALIGN, "programs ask for no more");
        let (context, granted) = (&self.accounting.context, self.granted_size(bytes, align)?.get());
        let ptr = match self.take_spare(granted) {
            Some(spare) => self.reuse(spare, stream)?,
            None => context.driver().allocate(context.device(), granted)?,
        };
        // SAFETY: a driver allocation that no block covers, fresh or freed before.
        Ok(unsafe { self.accounting.grant(ptr, bytes, granted, stream, tag) })
    }

    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let (context, granted, home) = (&self.accounting.context, block.granted().get(), block.stream());
        let [raw_home, raw] = [home, stream].map(|stream| context.resolve(stream).expect("a stream of this context"));
        let ptr = self.accounting.take_back_after(block, raw, raw_home);
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        spares.entry(granted).or_default().push((ptr, [home, stream]));
        self.accounting.release(granted);
        Ok(())
    }

    fn tracks_use(&self) -> bool {
        false
    }
}
