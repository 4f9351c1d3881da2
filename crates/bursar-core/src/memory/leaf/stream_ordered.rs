//! The leaf over the driver's own stream-ordered pool.
#![allow(unsafe_code)]

use super::failed_frees::{FailedFrees, FreeOrder};
use super::pending::{PaddedTotal, Pending};
use crate::stream::StreamHold;
use crate::{
    Action, AllocTag, BlockParts, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, DevicePtr, DriverError,
    Error, Holder, Member, MemoryUsage, Note, OwnerId, RawStream, Record, Refused, Result, Stream, Survey, SurveyStep,
    grant,
};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Memory from the driver's stream-ordered pool. What is freed is released when the stream has passed the free, which
/// is learned in batches: a question to the stream first, and at most one event for every 32 frees (see `FREES_PER_MARK`
/// in `pending.rs`).
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
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
pub struct AsyncMemory {
    context: Arc<DeviceContext>,
    owner: OwnerId,
    granted: PaddedTotal,
    pending: Pending,
    failed: FailedFrees<FailedFree>,
}

/// A free that was not submitted.
#[derive(Clone, Copy, Debug)]
struct FailedFree {
    base: DevicePtr,
    granted: u64,
    order: FreeOrder,
    /// The address of the block, where a driver that listens has not been told of the free.
    unreported: Option<DevicePtr>,
}

impl FailedFree {
    /// Submits the free to a stream that comes after both and returns that stream. While a stream is being captured into a
    /// graph nothing is submitted to it, and that is the error.
    fn submit<'a>(&mut self, context: &'a DeviceContext) -> Result<(Stream, StreamHold<'a>), DriverError> {
        let (stream, held) = self.order.hold(context)?;
        if let Some(ptr) = self.unreported.take() {
            // SAFETY: the block was consumed when its free failed.
            unsafe { context.note(Note::Freed { ptr, stream: held.raw(), home: held.raw() }) };
        }
        context.beside_captures(|| {
            // SAFETY: `base` is the start of an allocation of a leaf whose one block was consumed, and the stream is held.
            unsafe { context.driver().free_async(context.device(), held.raw(), self.base) }
        })?;
        Ok((stream, held))
    }
}

impl AsyncMemory {
    /// Makes memory of the context's device.
    pub fn new(context: Arc<DeviceContext>) -> Arc<Self> {
        let memory = Arc::new(Self {
            context,
            owner: OwnerId::unique(),
            granted: PaddedTotal::default(),
            pending: Pending::new(),
            failed: FailedFrees::default(),
        });
        let member: Weak<Self> = Arc::downgrade(&memory);
        memory.context.join(member);
        memory
    }

    fn give_back(&self, free: &mut FailedFree) -> Result<(), DriverError> {
        let (stream, held) = free.submit(&self.context)?;
        self.pending.retire(&self.context, stream, &held, free.granted);
        Ok(())
    }

    /// Keeps a free that failed.
    #[cold]
    fn keep(&self, block: &DeviceBlock, stream: Stream, unreported: Option<DevicePtr>, error: DriverError) {
        let (base, granted) = (block.base(), block.granted().get());
        let order = FreeOrder { stream, home: block.stream() };
        self.failed.keep(&self.context, FailedFree { base, granted, order, unreported }, error);
    }

    /// Keeps a free that the driver could not order. A free that is wrong in any other way goes back to its caller.
    #[cold]
    fn keep_unordered(&self, block: DeviceBlock, stream: Stream, error: Error) -> Result<(), Refused> {
        match self.context.failed_order(&error, stream) {
            Some(failed) => {
                self.keep(&block, stream, Some(block.ptr()), failed);
                Ok(())
            }
            None => Err(Refused { block, error }),
        }
    }

    /// Holds the stream of a free, ordered after the stream that the block was allocated on.
    #[inline]
    fn hold_ordered(&self, block: &DeviceBlock, stream: Stream) -> Result<StreamHold<'_>> {
        if block.stream() != stream {
            self.context.order_after(block.stream(), stream)?;
        }
        self.context.hold_for_submitted_free(stream)
    }

    fn submit_free(
        &self,
        base: DevicePtr,
        granted: u64,
        stream: Stream,
        held: &StreamHold<'_>,
    ) -> Result<(), DriverError> {
        self.context.beside_captures(|| {
            // SAFETY: `base` is the start of an allocation of this leaf whose one block was consumed, and the stream is
            // held.
            unsafe { self.context.driver().free_async(self.context.device(), held.raw(), base) }
        })?;
        self.pending.retire(&self.context, stream, held, granted);
        Ok(())
    }

    fn retry_failed(&self) -> Result<Bytes> {
        self.failed.retry(&self.context, |free| self.give_back(free).map(|()| Bytes::ZERO))
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
        Bytes(self.granted.0.load(Ordering::Acquire).wrapping_sub(released))
    }

    fn released_total(&self) -> u64 {
        self.pending.released()
    }

    fn reap(&self) -> Result<Bytes> {
        let context = &self.context;
        context.fault().check()?;
        let retried = self.retry_failed();
        let found = self.pending.reap(context).map_err(|error| context.failed(error))?;
        if found > Bytes::ZERO {
            context.sink().emit(&Record { granted: found, ..Record::new(Action::Reap, context.device()) });
        }
        retried.map(|_| found)
    }

    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        let (start, before) = (Instant::now(), self.released_total());
        self.context.order_ended(patience);
        self.reap()?;
        if patience == Duration::MAX {
            self.pending.wait(&self.context).map_err(|error| self.context.failed(error))?;
            self.reap()?;
            // Another thread may have been asking about the last of them.
            while self.pending.has_orphans() {
                std::thread::yield_now();
                self.reap()?;
            }
        }
        while !self.is_quiet() && patience != Duration::MAX && start.elapsed() < patience {
            std::thread::sleep(POLL.min(patience));
            self.reap()?;
        }
        Ok(Bytes(self.released_total().wrapping_sub(before)))
    }

    fn survey(&self, survey: &mut Survey) {
        survey.add(SurveyStep::Leaf { usage: self.usage(), frees_in_order: true });
    }
}

/// The pause between two looks of a bounded wait.
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
        let held = context.hold_for_memory(stream)?;
        let allocated = context.ask_for_memory(|| {
            context.beside_captures(|| {
                // SAFETY: the stream is live while it is held.
                unsafe { context.driver().allocate_async(context.device(), held.raw(), granted.get()) }
            })
        });
        let base = allocated.map_err(|error| context.allocation_failed(error, granted))?;
        self.granted.0.fetch_add(granted.get(), Ordering::Release);
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
        let held = match self.hold_ordered(&block, stream) {
            Ok(held) => held,
            Err(error) => return self.keep_unordered(block, stream, error),
        };
        // SAFETY: the block is this leaf's and is consumed here.
        unsafe { context.note(Note::Freed { ptr: block.ptr(), stream: held.raw(), home: held.raw() }) };
        if let Err(error) = self.submit_free(block.base(), block.granted().get(), stream, &held) {
            self.keep(&block, stream, None, error);
        }
        Ok(())
    }

    fn tracks_use(&self) -> bool {
        true
    }
}

impl Member for AsyncMemory {
    /// Submits the frees that failed. Their memory is the driver's once their streams have passed them.
    fn trim(&self) -> Bytes {
        if let Err(Error::Driver(error)) = self.retry_failed() {
            self.context.fault().record(error);
        }
        Bytes::ZERO
    }

    fn usage(&self) -> MemoryUsage {
        MemoryUsage { held: self.bytes_outstanding(), pending: self.pending.bytes(), ..MemoryUsage::default() }
    }

    /// Returns nothing: what the driver's pool keeps is the driver's to say.
    fn spare(&self) -> Bytes {
        Bytes::ZERO
    }

    fn stream_ends(&self, stream: Stream, raw: RawStream) {
        self.pending.stream_ends(&self.context, stream, raw);
    }

    /// Does nothing: no contents are its own.
    fn contents_given_up(&self, _: &[Range<DevicePtr>]) {}
}

impl Drop for AsyncMemory {
    fn drop(&mut self) {
        if !self.failed.is_empty() {
            self.context.order_ended(Duration::MAX);
        }
        let submit = |context: &DeviceContext, free: &mut FailedFree| free.submit(context).map(|_| Bytes(free.granted));
        self.failed.leave(&self.context, submit, |free| free.granted);
        if let Err(error) = self.pending.wait(&self.context) {
            drop(self.context.failed(error));
        }
        self.pending.return_events(&self.context);
    }
}

impl fmt::Debug for AsyncMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncMemory")
            .field("device", &self.context.device())
            .field("outstanding", &self.bytes_outstanding())
            .field("pending", &self.pending.bytes())
            .finish_non_exhaustive()
    }
}
