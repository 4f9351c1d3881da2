//! The top of every stack, which records grants, frees and failures in the device's sink.

use crate::observe::StackCount;
use crate::{
    Action, AllocTag, Bytes, DeviceBlock, DeviceMemoryResource, Error, Holder, Record, Refused, Result, Stream, Survey,
    Tally, forward_holder, forward_memory_resource,
};
use std::time::Duration;

/// A resource whose grants and frees are recorded in the sink of its device. It is the outermost layer of every built
/// [`Stack`](crate::Stack); without observers it costs a few instructions.
///
/// A free is recorded before the memory can be granted again: otherwise another thread could be given the same address
/// and record it first, and logs would show an address allocated twice. If the free is then refused, the allocation it
/// left in place is recorded again, with the error, so that logs stay in order and statistics can take the free back. A
/// block of another context is refused below, and not recorded here.
///
/// ```
/// # use bursar::Result;
/// # use bursar::memory::ObservedResource;
/// # use bursar::prelude::*;
/// # fn show(context: &std::sync::Arc<DeviceContext>) -> Result<()> {
/// let memory: ObservedResource<_> = Stack::new().over(leaf::Direct).build(context)?;
/// assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ObservedResource<R> {
    inner: R,
    /// The counts of this stack in the device's tally, if it had one when this was made.
    count: StackCount,
}

impl<R: DeviceMemoryResource> ObservedResource<R> {
    /// Wraps `inner`.
    pub fn new(inner: R) -> Self {
        let (context, survey) = (inner.context(), Survey::of_path(|survey| inner.survey(survey)));
        let count = context.sink().count_stack(context.device(), &survey);
        Self { inner, count }
    }

    /// Returns the resource inside.
    pub const fn inner(&self) -> &R {
        &self.inner
    }

    /// Returns whether a block and the stream it is freed on are of this context; either stream may have ended.
    #[inline]
    fn is_local(&self, block: &DeviceBlock, stream: Stream) -> bool {
        self.context().is_own(stream) && block.stream().is_same_context(stream)
    }

    /// Returns the tally that blocks are counted in; a device has at most one.
    #[inline]
    fn tally(&self) -> Option<&Tally> {
        self.count.counter.tally().or_else(|| self.context().sink().tally()).map(|tally| &**tally)
    }

    /// Counts a block that was granted.
    #[inline]
    fn count(&self, block: &DeviceBlock) {
        if !self.count.counter.granted(block.tag(), block.granted()) && self.tally().is_some() {
            self.count_slow(block.tag(), block.granted());
        }
    }

    #[cold]
    fn count_slow(&self, tag: AllocTag, granted: Bytes) {
        if let Some(tally) = self.tally() {
            tally.granted_slow(self.count.column(self.context().device()), tag, granted);
        }
    }

    /// Allocates a block that an observer wants a record of.
    #[cold]
    #[inline(never)]
    fn allocate_and_record(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let granted = self.inner.allocate(bytes, align, stream, tag);
        match &granted {
            Ok(block) => {
                self.context().sink().emit_block(block, Action::Allocate, stream);
                self.count(block);
            }
            Err(error) => self.record_failure(bytes, stream, tag, error),
        }
        granted
    }

    /// Frees a block that the counter cannot count, or that an observer wants a record of.
    #[cold]
    #[inline(never)]
    fn free_and_record(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        if self.is_local(&block, stream) {
            self.context().sink().emit_block(&block, Action::Free, stream);
            if let Some(tally) = self.tally() {
                tally.freed_slow(self.count.column(block.device()), block.tag(), block.granted());
            }
        }
        self.inner.deallocate(block, stream).inspect_err(|refused| self.restore(refused, stream))
    }

    #[cold]
    fn restore(&self, refused: &Refused, stream: Stream) {
        if self.is_local(&refused.block, stream) {
            let context = self.context();
            context.sink().restore(refused, stream, self.count.column(context.device()));
        }
    }

    #[cold]
    fn record_failure(&self, bytes: u64, stream: Stream, tag: AllocTag, error: &Error) {
        let context = self.context();
        context.sink().emit(&Record {
            stream: Some(stream),
            tag,
            asked: Bytes(bytes),
            error: Some(error),
            ..Record::new(Action::Fail, context.device())
        });
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> Holder for ObservedResource<R> {
    forward_holder!(self.inner; context, bytes_outstanding, released_total, survey);

    fn reap(&self) -> Result<Bytes> {
        let reaped = self.inner.reap();
        self.context().collect_transfers(Duration::ZERO);
        reaped
    }

    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        let reaped = self.inner.reap_blocking(patience);
        self.context().collect_transfers(patience);
        reaped
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for ObservedResource<R> {
    forward_memory_resource!(self.inner; granted_size, tracks_use);

    #[inline]
    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        if self.context().sink().wants(Action::Allocate) {
            return self.allocate_and_record(bytes, align, stream, tag);
        }
        match self.inner.allocate(bytes, align, stream, tag) {
            Ok(block) => {
                self.count(&block);
                Ok(block)
            }
            Err(error) => {
                self.record_failure(bytes, stream, tag, &error);
                Err(error)
            }
        }
    }

    #[inline]
    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let context = self.context();
        if block.stream() != stream
            || !context.is_own(stream)
            || context.sink().wants(Action::Free)
            || !(self.count.counter.freed(block.tag(), block.granted()) || self.tally().is_none())
        {
            return self.free_and_record(block, stream);
        }
        match self.inner.deallocate(block, stream) {
            Ok(()) => Ok(()),
            Err(refused) => {
                // It was freed on its own stream, which is read there so that none has to be kept for this.
                self.restore(&refused, refused.block.stream());
                Err(refused)
            }
        }
    }
}
