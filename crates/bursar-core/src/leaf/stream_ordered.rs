//! The driver's own stream-ordered pool.
#![allow(unsafe_code)]

use super::pending::Pending;
use super::stuck::Stuck;
use crate::{
    Action, AllocTag, BlockParts, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, DevicePtr, DriverError,
    Error, Holder, Member, Note, OwnerId, RawStream, Record, Refused, Result, Stream, grant,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Memory from the driver's stream-ordered pool. What is freed is released when the stream has passed the free, which is
/// learned in batches: a question to the stream first, and at most one event for every 32 frees.
///
/// ```
/// # use bursar_core::*;
/// # use std::time::Duration;
/// # fn show(context: &std::sync::Arc<DeviceContext>) -> Result<()> {
/// let memory = Stack::new().over(leaf::Async).build(context)?;
/// let stream = context.create_stream(0)?;
/// let block = memory.allocate(1 << 20, 256, stream, tag!("batch"))?;
/// memory.deallocate(block, stream)?;
/// memory.reap_blocking(Duration::MAX)?;
/// assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncMemory {
    context: Arc<DeviceContext>,
    owner: OwnerId,
    granted: AtomicU64,
    pending: Pending,
    stuck: Stuck<StuckFree>,
}

#[derive(Clone, Copy, Debug)]
struct StuckFree {
    base: DevicePtr,
    granted: u64,
    stream: Stream,
}

impl AsyncMemory {
    /// Memory of the context's device.
    pub fn new(context: Arc<DeviceContext>) -> Arc<Self> {
        let memory = Arc::new(Self {
            context,
            owner: OwnerId::unique(),
            granted: AtomicU64::new(0),
            pending: Pending::new(),
            stuck: Stuck::default(),
        });
        let member: Weak<Self> = Arc::downgrade(&memory);
        memory.context.join(member);
        memory
    }

    fn give_back(&self, free: StuckFree) -> Result<(), DriverError> {
        // The stream of a free that stayed stuck until its adoption ended has run dry: any stream will do.
        let stream =
            if self.context.resolve(free.stream).is_ok() { free.stream } else { self.context.default_stream() };
        let raw = self.context.resolve(stream).unwrap_or(RawStream::LEGACY);
        self.submit_free(free.base, free.granted, stream, raw)
    }

    fn submit_free(&self, base: DevicePtr, granted: u64, stream: Stream, raw: RawStream) -> Result<(), DriverError> {
        // SAFETY: `base` is the start of an allocation of this leaf whose one block was consumed, and `raw` is live.
        unsafe { self.context.driver().free_async(self.context.device(), raw, base) }?;
        self.pending.retire(&self.context, stream, raw, granted);
        Ok(())
    }

    fn retry_stuck(&self) -> Result<Bytes> {
        self.stuck.retry(&self.context, |free| self.give_back(free).map(|()| Bytes::ZERO))
    }

    fn raw(&self, slot: usize) -> Option<RawStream> {
        self.context.resolve_slot(slot)
    }

    /// Waits for every stream that has frees which are not known to have run.
    fn wait_for_all(&self) -> Result<(), DriverError> {
        for raw in self.pending.busy().filter_map(|slot| self.raw(slot)) {
            // SAFETY: the table resolves live streams of this device only.
            unsafe { self.context.driver().stream_synchronize(self.context.device(), raw) }?;
        }
        Ok(())
    }

    fn is_quiet(&self) -> bool {
        self.pending.busy().next().is_none() && !self.pending.has_orphans()
    }
}

#[deny(clippy::missing_trait_methods)]
impl Holder for AsyncMemory {
    fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }

    fn bytes_outstanding(&self) -> Bytes {
        let released = self.pending.released();
        Bytes(self.granted.load(Ordering::Acquire).wrapping_sub(released))
    }

    fn released_total(&self) -> u64 {
        self.pending.released()
    }

    fn reap(&self) -> Result<Bytes> {
        let context = &self.context;
        context.fault().check()?;
        self.retry_stuck()?;
        let found = self.pending.reap(context, |slot| self.raw(slot)).map_err(|error| context.failed(error))?;
        if found > Bytes::ZERO {
            context.sink().emit(&Record { granted: found, ..Record::new(Action::Reap, context.device()) });
        }
        Ok(found)
    }

    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        let (start, before) = (Instant::now(), self.released_total());
        loop {
            self.reap()?;
            if self.is_quiet() || start.elapsed() >= patience {
                return Ok(Bytes(self.released_total().wrapping_sub(before)));
            }
            if patience == Duration::MAX {
                self.wait_for_all().map_err(|error| self.context.failed(error))?;
            } else {
                std::thread::sleep(POLL.min(patience));
            }
        }
    }
}

/// How long a bounded wait sleeps between two looks.
const POLL: Duration = Duration::from_micros(50);

#[deny(clippy::missing_trait_methods)]
impl DeviceMemoryResource for AsyncMemory {
    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes> {
        grant(bytes, align)
    }

    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let context = &self.context;
        let granted = grant(bytes, align)?;
        context.fault().check()?;
        let raw = context.resolve_for_memory(stream)?;
        // SAFETY: the table resolves live streams of this device only.
        let base = unsafe { context.driver().allocate_async(context.device(), raw, granted.get()) }
            .map_err(|error| context.allocation_failed(error, granted))?;
        self.granted.fetch_add(granted.get(), Ordering::Release);
        let parts = BlockParts::aligned(base, bytes, granted, align, tag, self.owner);
        // SAFETY: the range lies in the allocation just made, which nobody else has.
        unsafe { context.note(Note::Granted { ptr: parts.ptr, bytes, stream: raw, tag }) };
        // SAFETY: a fresh driver allocation of `granted` bytes, given out with this token alone.
        Ok(unsafe { DeviceBlock::from_parts(parts, stream) })
    }

    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let context = &self.context;
        if block.owner() != self.owner {
            let error = Error::ForeignBlock { device: context.device(), ptr: block.ptr() };
            return Err(Refused { block, error });
        }
        let raw = match context.resolve_for_free(stream) {
            Ok(raw) => raw,
            Err(error) => return Err(Refused { block, error }),
        };
        // SAFETY: the block is this leaf's and is consumed here.
        unsafe { context.note(Note::Freed { ptr: block.ptr(), stream: raw }) };
        let (base, granted) = (block.base(), block.granted().get());
        if let Err(error) = self.submit_free(base, granted, stream, raw) {
            self.stuck.keep(context, StuckFree { base, granted, stream }, error);
        }
        Ok(())
    }

    fn tracks_use(&self) -> bool {
        true
    }
}

impl Member for AsyncMemory {
    fn trim(&self) -> Bytes {
        Bytes::ZERO
    }

    fn stream_ends(&self, stream: Stream) {
        let Ok(raw) = self.context.resolve(stream) else { return };
        if let Err(Error::Driver(error)) = self.retry_stuck() {
            self.context.fault().record(error);
            // What stays stuck is freed on another stream later, so this one has to have run dry.
            // SAFETY: the stream is live until its adoption has ended, which is after this.
            if let Err(error) = unsafe { self.context.driver().stream_synchronize(self.context.device(), raw) } {
                self.context.fault().record(error);
            }
        }
        self.pending.stream_ends(&self.context, stream, raw);
    }
}

impl Drop for AsyncMemory {
    fn drop(&mut self) {
        if let Err(Error::Driver(error)) = self.retry_stuck() {
            self.context.fault().record(error);
        }
        self.pending.give_events_back(&self.context);
    }
}
