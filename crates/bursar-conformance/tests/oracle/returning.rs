//! A leaf that frees blocks on a stream of its own, so that no stream of a user waits for a free.
#![allow(unsafe_code)]

use super::{BlockAccounting, Notes, Variant, accounted_holder};
use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, Holder, Refused, Result, Stream, grant,
};
use std::sync::Arc;
use std::time::Duration;

/// A returning leaf. Its bug: its stream does not wait for the stream that the block was freed on.
#[derive(Debug)]
pub(crate) struct ReturningLeaf {
    accounting: BlockAccounting,
    variant: Variant,
    returns: Stream,
}

impl ReturningLeaf {
    pub(crate) fn opener(
        variant: Variant,
        notes: Notes,
    ) -> impl Fn(&Arc<DeviceContext>) -> Arc<dyn DeviceMemoryResource> {
        move |context| {
            Arc::new(Self {
                accounting: BlockAccounting::new(context, notes),
                variant,
                returns: context.create_stream(0).expect("the device works"),
            })
        }
    }
}

impl Holder for ReturningLeaf {
    accounted_holder!();

    fn reap(&self) -> Result<Bytes> {
        Ok(Bytes::ZERO)
    }

    fn reap_blocking(&self, _: Duration) -> Result<Bytes> {
        self.accounting.context.synchronize(self.returns)?;
        Ok(Bytes::ZERO)
    }
    fn survey(&self, _: &mut bursar_core::Survey) {}
}

impl DeviceMemoryResource for ReturningLeaf {
    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes> {
        grant(bytes, align)
    }

    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let (context, granted) = (&self.accounting.context, grant(bytes, align)?.get());
        let raw = context.resolve(stream)?;
        // SAFETY: the table resolves live streams of this device only.
        let ptr = unsafe { context.driver().allocate_async(context.device(), raw, granted) }?;
        // SAFETY: a fresh driver allocation.
        Ok(unsafe { self.accounting.grant(ptr, bytes, granted, stream, tag) })
    }

    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let (context, granted) = (&self.accounting.context, block.granted().get());
        let resolve = |stream| context.resolve(stream).expect("a stream of this context");
        let ptr = self.accounting.take_back(block, resolve(stream));
        if self.variant == Variant::Repaired {
            context.order(stream, self.returns).expect("the device works");
        }
        // SAFETY: allocated here and consumed; that its uses are ordered before this is what is judged.
        let freed = unsafe { context.driver().free_async(context.device(), resolve(self.returns), ptr) };
        freed.expect("the device works");
        self.accounting.release(granted);
        Ok(())
    }

    fn tracks_use(&self) -> bool {
        false
    }
}
