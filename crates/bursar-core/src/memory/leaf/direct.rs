//! One driver allocation a block.
#![allow(unsafe_code)]

use super::stuck::Stuck;
use crate::{
    AllocTag, BlockParts, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, DevicePtr, DriverError, Error,
    Holder, Note, OwnerId, Refused, Result, Stream, grant,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Memory straight from the driver, one allocation a block, each visible to memory checkers as one. Freeing waits for
/// all work of the device, so what is freed is released at once.
///
/// ```
/// # use bursar_core::*;
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
    granted: AtomicU64,
    released: AtomicU64,
    stuck: Stuck<(DevicePtr, u64)>,
}

impl DirectMemory {
    /// Memory of the context's device.
    pub fn new(context: Arc<DeviceContext>) -> Self {
        Self {
            context,
            owner: OwnerId::unique(),
            granted: AtomicU64::new(0),
            released: AtomicU64::new(0),
            stuck: Stuck::default(),
        }
    }

    fn give_back(&self, base: DevicePtr, granted: u64) -> Result<Bytes, DriverError> {
        free(&self.context, &mut (base, granted))?;
        self.released.fetch_add(granted, Ordering::Release);
        Ok(Bytes(granted))
    }
}

/// Frees an allocation of a leaf.
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
        let released = self.released.load(Ordering::Acquire);
        Bytes(self.granted.load(Ordering::Acquire).wrapping_sub(released))
    }

    fn released_total(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    fn reap(&self) -> Result<Bytes> {
        self.context.fault().check()?;
        self.stuck.retry(&self.context, |&mut (base, granted)| self.give_back(base, granted))
    }

    fn reap_blocking(&self, _: Duration) -> Result<Bytes> {
        self.reap()
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
        self.granted.fetch_add(granted.get(), Ordering::Release);
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
        let held = match context.hold_for_free(stream) {
            Ok(held) => held,
            Err(error) => return Err(Refused { block, error }),
        };
        // SAFETY: the block is this leaf's and is consumed here.
        unsafe { context.note(Note::Freed { ptr: block.ptr(), stream: held.raw() }) };
        let (base, granted) = (block.base(), block.granted().get());
        if let Err(error) = self.give_back(base, granted) {
            self.stuck.keep(context, (base, granted), error);
        }
        Ok(())
    }

    fn tracks_use(&self) -> bool {
        true
    }
}

impl Drop for DirectMemory {
    fn drop(&mut self) {
        self.stuck.leave(&self.context, free, |&(_, granted)| granted);
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
