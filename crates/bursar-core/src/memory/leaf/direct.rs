//! The leaf that makes one driver allocation for each block.
#![allow(unsafe_code)]

use super::failed_frees::{FailedFrees, FreeOrder};
use super::totals::Totals;
use crate::stream::StreamHold;
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
    failed: FailedFrees<FailedFree>,
}

/// A free that the driver failed, or that could not be put in order.
#[derive(Clone, Copy, Debug)]
struct FailedFree {
    base: DevicePtr,
    granted: u64,
    /// The address of the block and the order of its free, where there was no such order yet.
    unordered: Option<(DevicePtr, FreeOrder)>,
}

impl DirectMemory {
    /// Makes memory of the context's device.
    pub fn new(context: Arc<DeviceContext>) -> Self {
        Self { context, owner: OwnerId::unique(), totals: Totals::default(), failed: FailedFrees::default() }
    }

    fn give_back(&self, failed: &mut FailedFree) -> Result<Bytes, DriverError> {
        let bytes = free(&self.context, failed)?;
        self.totals.release(bytes);
        Ok(bytes)
    }

    /// Holds the stream of a free. The driver waits for all work of the device; only one that listens has to be told of
    /// an order with the stream that the block was allocated on.
    fn hold_ordered(&self, order: FreeOrder) -> Result<StreamHold<'_>> {
        let (context, FreeOrder { stream, home }) = (&self.context, order);
        if context.listens()
            && home != stream
            && let Err(error) = context.order_after(home, stream)
        {
            // What cannot be put in order may be waited for.
            context.has_run(home, Duration::MAX).map_err(|_| error)?;
        }
        context.hold_for_noted_free(stream)
    }

    /// Keeps a free that the driver could not order. A free that is wrong in any other way goes back to its caller.
    #[cold]
    fn keep_unordered(&self, block: DeviceBlock, order: FreeOrder, error: Error) -> Result<(), Refused> {
        match self.context.failed_order(&error, order.stream) {
            Some(failed) => {
                let (base, granted, unordered) = (block.base(), block.granted().get(), Some((block.ptr(), order)));
                self.failed.keep(&self.context, FailedFree { base, granted, unordered }, failed);
                Ok(())
            }
            None => Err(Refused { block, error }),
        }
    }
}

/// Frees an allocation of a leaf, once it can be ordered, and returns its size.
fn free(context: &DeviceContext, failed: &mut FailedFree) -> Result<Bytes, DriverError> {
    if let Some((ptr, order)) = failed.unordered {
        let (_, held) = order.hold(context)?;
        // SAFETY: the block was consumed when its free could not be ordered.
        unsafe { context.note(Note::Freed { ptr, stream: held.raw(), home: held.raw() }) };
        failed.unordered = None;
    }
    // SAFETY: `base` is the start of an allocation of a leaf whose one block was consumed.
    unsafe { context.driver().free(context.device(), failed.base) }?;
    Ok(Bytes(failed.granted))
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
        self.failed.retry(&self.context, |failed| self.give_back(failed))
    }

    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        self.context.order_ended(patience);
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
        let order = FreeOrder { stream, home: block.stream() };
        let held = match self.hold_ordered(order) {
            Ok(held) => held,
            Err(error) => return self.keep_unordered(block, order, error),
        };
        // SAFETY: the block is this leaf's and is consumed here.
        unsafe { context.note(Note::Freed { ptr: block.ptr(), stream: held.raw(), home: held.raw() }) };
        let mut allocation = FailedFree { base: block.base(), granted: block.granted().get(), unordered: None };
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
        if !self.failed.is_empty() {
            self.context.order_ended(Duration::MAX);
        }
        self.failed.leave(&self.context, free, |failed| failed.granted);
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
