//! The leaf that makes one driver allocation for each block.
#![allow(unsafe_code)]

use super::failed_frees::FailedFrees;
use super::totals::Totals;
use crate::{
    AllocTag, BlockParts, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, DevicePtr, DriverError, Error,
    Holder, MemoryUsage, Note, OwnerId, Refused, Result, Stream, Survey, SurveyStep, grant,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Memory straight from the driver, one allocation for each block, which memory checkers see as one. Freeing waits for
/// all work of the device, so what is freed is released at once.
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
/// # fn show(context: &std::sync::Arc<DeviceContext>) -> Result<()> {
/// let memory = Stack::new().over(leaf::Direct).build(context)?;
/// let stream = context.default_stream();
/// let block = memory.allocate(1, 1, stream, tag!("tiny"))?;
/// assert_eq!(memory.bytes_outstanding(), Bytes(256));
/// memory.deallocate(block, stream)?;
/// assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
/// # Ok(())
/// # }
/// ```
pub struct DirectMemory {
    context: Arc<DeviceContext>,
    owner: OwnerId,
    totals: Totals,
    failed: FailedFrees<(DevicePtr, u64)>,
}

impl DirectMemory {
    /// Makes memory of the context's device.
    pub fn new(context: Arc<DeviceContext>) -> Self {
        Self { context, owner: OwnerId::unique(), totals: Totals::default(), failed: FailedFrees::default() }
    }

    fn give_back(&self, allocation: &mut (DevicePtr, u64)) -> Result<Bytes, DriverError> {
        let bytes = free(&self.context, allocation)?;
        self.totals.release(bytes);
        Ok(bytes)
    }
}

/// Frees an allocation of a leaf and returns its size.
fn free(context: &DeviceContext, &mut (base, granted): &mut (DevicePtr, u64)) -> Result<Bytes, DriverError> {
    // SAFETY: `base` is the start of an allocation of a leaf whose one block was consumed.
    unsafe { context.driver().free(context.device(), base) }?;
    Ok(Bytes(granted))
}

#[deny(clippy::missing_trait_methods)]
impl Holder for DirectMemory {
    fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }

    fn bytes_outstanding(&self) -> Bytes {
        self.totals.outstanding()
    }

    fn released_total(&self) -> u64 {
        self.totals.released()
    }

    fn reap(&self) -> Result<Bytes> {
        self.context.fault().check()?;
        self.failed.retry(&self.context, |allocation| self.give_back(allocation))
    }

    fn reap_blocking(&self, _: Duration) -> Result<Bytes> {
        self.reap()
    }

    fn survey(&self, survey: &mut Survey) {
        let held = self.bytes_outstanding();
        let usage = MemoryUsage { held, ..MemoryUsage::default() };
        survey.add(SurveyStep::Leaf { usage, frees_in_order: false });
    }
}

#[deny(clippy::missing_trait_methods)]
impl DeviceMemoryResource for DirectMemory {
    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes> {
        grant(bytes, align)
    }

    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let context = &self.context;
        let granted = grant(bytes, align)?;
        context.fault().check()?;
        let held = context.hold_for_memory(stream)?;
        let base = context
            .ask_for_memory(|| context.driver().allocate(context.device(), granted.get()))
            .map_err(|error| context.allocation_failed(error, granted))?;
        self.totals.grant(granted);
        let parts = BlockParts::aligned(base, bytes, granted, align, tag, self.owner);
        // SAFETY: the range lies in the allocation just made, which nobody else has.
        unsafe { context.note(Note::Granted { ptr: parts.ptr, bytes, stream: held.raw(), tag }) };
        // SAFETY: a fresh driver allocation of `granted` bytes, given out with this token alone.
        Ok(unsafe { DeviceBlock::from_parts(parts, stream) })
    }

    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let context = &self.context;
        if block.owner() != self.owner {
            let error = Error::ForeignBlock { device: context.device(), ptr: block.ptr() };
            return Err(Refused { block, error });
        }
        // The driver waits for all work of the device; only one that listens has to be told of an order.
        let home = block.stream();
        if context.listens() && home != stream && context.order_after(home, stream).is_err() {
            // What cannot be put in order has run, or the device's next call says why not.
            let _waited = context.on_lasting(home, |home| context.synchronize(home));
        }
        let held = match context.hold_for_free(stream) {
            Ok(held) => held,
            Err(error) => return Err(Refused { block, error }),
        };
        // SAFETY: the block is this leaf's and is consumed here.
        unsafe { context.note(Note::Freed { ptr: block.ptr(), stream: held.raw() }) };
        let mut allocation = (block.base(), block.granted().get());
        if let Err(error) = self.give_back(&mut allocation) {
            self.failed.keep(context, allocation, error);
        }
        Ok(())
    }

    fn tracks_use(&self) -> bool {
        true
    }
}

impl Drop for DirectMemory {
    fn drop(&mut self) {
        self.failed.leave(&self.context, free, |&(_, granted)| granted);
    }
}

impl fmt::Debug for DirectMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectMemory")
            .field("device", &self.context.device())
            .field("outstanding", &self.bytes_outstanding())
            .finish_non_exhaustive()
    }
}
