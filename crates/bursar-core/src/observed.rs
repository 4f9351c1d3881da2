//! The top of every stack: tells the device's sink what was granted, freed and failed.

use crate::{
    Action, AllocTag, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, Error, Holder, Record, Refused, Result,
    Stream, StreamMisuse,
};
use std::sync::Arc;
use std::time::Duration;

/// A resource whose grants and frees reach the sink of its device. Every built [`Stack`](crate::Stack) ends in one; with
/// nobody listening it costs a load and a branch.
///
/// A free is told before the memory can be given out again, so that records of one address are in order. If it is then
/// refused, the allocation it left in place is told again, with the error. What belongs to another context is told here
/// only if it is accepted.
///
/// ```
/// # use bursar_core::*;
/// # fn show(context: &std::sync::Arc<DeviceContext>) -> Result<()> {
/// let memory: Observed<_> = Stack::new().over(leaf::Direct).build(context)?;
/// assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Observed<R> {
    inner: R,
}

impl<R: DeviceMemoryResource> Observed<R> {
    /// Observes `inner`.
    pub const fn new(inner: R) -> Self {
        Self { inner }
    }

    /// What is observed.
    pub const fn inner(&self) -> &R {
        &self.inner
    }

    /// Whether a block and the stream it is freed on are of this context. The stream a block was allocated on may have
    /// ended.
    #[inline]
    fn is_local(&self, block: &DeviceBlock, stream: Stream) -> bool {
        let foreign = |stream| match self.context().hold(stream) {
            Err(Error::StreamMisuse { why, .. }) => why != StreamMisuse::Ended,
            _ => false,
        };
        !foreign(stream) && (stream == block.stream() || !foreign(block.stream()))
    }

    #[cold]
    fn tell_failure(&self, bytes: u64, stream: Stream, tag: AllocTag, error: &Error) {
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

#[inline]
fn of_block(action: Action, stream: Stream, block: &DeviceBlock) -> Record<'static> {
    Record {
        stream: Some(stream),
        tag: block.tag(),
        ptr: block.ptr(),
        granted: block.granted(),
        asked: block.requested(),
        generation: Some(block.generation()),
        ..Record::new(action, block.device())
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> Holder for Observed<R> {
    fn context(&self) -> &Arc<DeviceContext> {
        self.inner.context()
    }
    fn bytes_outstanding(&self) -> Bytes {
        self.inner.bytes_outstanding()
    }
    fn released_total(&self) -> u64 {
        self.inner.released_total()
    }
    fn reap(&self) -> Result<Bytes> {
        self.inner.reap()
    }
    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        self.inner.reap_blocking(patience)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for Observed<R> {
    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes> {
        self.inner.granted_size(bytes, align)
    }

    #[inline]
    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let result = self.inner.allocate(bytes, align, stream, tag);
        match &result {
            Ok(block) => {
                let sink = self.context().sink();
                if sink.wants(Action::Allocate) {
                    sink.emit(&of_block(Action::Allocate, stream, block));
                }
            }
            Err(error) => self.tell_failure(bytes, stream, tag, error),
        }
        result
    }

    #[inline]
    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let sink = self.context().sink();
        if !sink.wants(Action::Free) {
            return self.inner.deallocate(block, stream);
        }
        let free = of_block(Action::Free, stream, &block);
        if !self.is_local(&block, stream) {
            return self.inner.deallocate(block, stream).inspect(|()| sink.emit(&free));
        }
        sink.emit(&free);
        self.inner.deallocate(block, stream).inspect_err(|refused| {
            sink.emit(&Record { action: Action::Allocate, error: Some(&refused.error), ..free });
        })
    }

    fn tracks_use(&self) -> bool {
        self.inner.tracks_use()
    }
}
