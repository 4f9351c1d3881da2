//! Frees of blocks in stream order, and those that were refused, to be tried again.

use crate::WaitingFree;
use bursar_core::{
    DeviceBlock, DeviceContext, DeviceMemoryResource, Error, Generation, Refused, RefusedTracked, Result, Stream,
    StreamMisuse, TrackedBlock,
};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The path by which the blocks of buffers are freed, with a list of those whose free was refused: their buffer is
/// gone, so nobody else can hold them, and their memory did not take them. A stream that is being captured into a graph
/// takes no free, for instance. Such blocks stay counted by their memory and are tried again.
///
/// A free on an adopted stream whose adoption has ended is not deferred: it is made on the context's heir of such
/// streams, which comes after their work.
#[derive(Debug, Default)]
pub(crate) struct DeferredFrees {
    count: AtomicUsize,
    frees: Mutex<Vec<DeferredFree>>,
}

/// A block, the stream whose order its free follows, and the reason why it was not freed.
#[derive(Debug)]
struct DeferredFree {
    memory: Arc<dyn DeviceMemoryResource>,
    block: Box<TrackedBlock>,
    stream: Stream,
    cause: Error,
}

impl DeferredFrees {
    fn frees(&self) -> MutexGuard<'_, Vec<DeferredFree>> {
        self.frees.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of frees that were refused and not made since, those being tried included.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Returns the frees of blocks of `memory` that wait, with the generations of the blocks.
    pub(crate) fn waiting(&self, memory: &Arc<dyn DeviceMemoryResource>) -> Vec<(Generation, WaitingFree)> {
        let frees = self.frees();
        let own = frees.iter().filter(|free| Arc::ptr_eq(&free.memory, memory));
        own.map(|free| (free.block.block().generation(), free.describe())).collect()
    }

    /// Frees a block in the order of `stream`. If that is refused, the free is deferred and the refusal returned.
    pub(crate) fn free(
        &self,
        memory: &Arc<dyn DeviceMemoryResource>,
        block: TrackedBlock,
        stream: Stream,
    ) -> Result<()> {
        block.give_up();
        free_in_order(&**memory, block, stream).map_err(|RefusedTracked { block, error }| {
            report(memory.context(), block.block(), &error);
            self.count.fetch_add(1, Relaxed);
            self.frees().push(DeferredFree { memory: memory.clone(), block, stream, cause: error.clone() });
            error
        })
    }

    /// Tries each free once more; those refused again stay.
    #[inline]
    pub(crate) fn retry(&self) {
        if self.len() > 0 {
            self.retry_all();
        }
    }

    /// Tries each free once more. Where `patience` is [`Duration::MAX`], streams that ended with nothing ordered after
    /// them are put in order first, if it takes a wait for all work of the device.
    pub(crate) fn retry_within(&self, patience: Duration) {
        if self.len() > 0 {
            let contexts: Vec<_> = self.frees().iter().map(|free| free.memory.context().clone()).collect();
            contexts.iter().for_each(|context| context.order_ended(patience));
            self.retry_all();
        }
    }

    #[cold]
    fn retry_all(&self) {
        let frees = std::mem::take(&mut *self.frees());
        for free in frees {
            match free.retry() {
                None => drop(self.count.fetch_sub(1, Relaxed)),
                Some(refused) => self.frees().push(refused),
            }
        }
    }
}

impl DeferredFree {
    /// Tries the free once more and returns it if it is refused again.
    fn retry(self) -> Option<Self> {
        if !self.can_be_tried() {
            return Some(self);
        }
        let Self { memory, block, stream, .. } = self;
        let refused = free_in_order(&*memory, *block, stream).err();
        refused.map(|RefusedTracked { block, error }| Self { memory, block, stream, cause: error })
    }

    /// Frees the block once its uses are over, which are waited for where the driver fails to order anything after them.
    fn wait_and_free(self) -> Result<()> {
        if !self.can_be_tried() {
            return Err(self.cause);
        }
        let Self { memory, block, .. } = self;
        let block = block.into_block(memory.context())?;
        let stream = memory.context().lasting(block.stream())?;
        let Err(Refused { block, .. }) = memory.deallocate(block, stream) else { return Ok(()) };
        // Memory that orders each free itself takes one on a stream that has run.
        memory.context().has_run(stream, Duration::MAX)?;
        memory.deallocate(block, stream)?;
        Ok(())
    }

    fn describe(&self) -> WaitingFree {
        let block = self.block.block();
        WaitingFree { tag: block.tag(), bytes: block.granted(), stream: self.stream, cause: self.cause.clone() }
    }

    /// Returns whether the free may be taken: nothing is freed while a stream that orders it is captured, or on a lost
    /// device. Checked before the free is tried, so that observers are not told of one that cannot be made.
    fn can_be_tried(&self) -> bool {
        let context = self.memory.context();
        let captured = |stream| {
            let checked = context.check_stream(stream);
            matches!(checked, Err(Error::StreamMisuse { why: StreamMisuse::Capturing, .. }))
        };
        context.driver().last_error(context.device()).is_none()
            && !captured(self.stream)
            && !captured(self.block.block().stream())
    }
}

/// Makes each free for the last time: where the driver fails to order it, the uses of its block are waited for. Logs the blocks that
/// are leaked all the same.
impl Drop for DeferredFrees {
    fn drop(&mut self) {
        self.retry_within(Duration::MAX);
        let left = std::mem::take(self.frees.get_mut().unwrap_or_else(PoisonError::into_inner));
        for free in left {
            let WaitingFree { tag, bytes, stream, .. } = free.describe();
            let (device, ptr) = (stream.device(), free.block.ptr());
            if let Err(cause) = free.wait_and_free() {
                tracing::error!(device = %device, ptr = %ptr, bytes = %bytes, tag = %tag,
                    "a block that could never be freed is leaked: {cause}");
            }
        }
    }
}

/// Frees a block in the order of `stream`, or of the context's heir if that has ended.
fn free_in_order(memory: &dyn DeviceMemoryResource, block: TrackedBlock, stream: Stream) -> Result<(), RefusedTracked> {
    match block.free(memory, stream) {
        Err(RefusedTracked { block, error: Error::StreamMisuse { why: StreamMisuse::Ended, .. } }) => {
            match memory.context().heir_of(stream) {
                Ok(heir) => block.free(memory, heir),
                Err(error) => Err(RefusedTracked { block, error }),
            }
        }
        result => result,
    }
}

/// Logs that a free is deferred, and has the device report a failure of the driver.
#[cold]
fn report(context: &DeviceContext, block: &DeviceBlock, error: &Error) {
    tracing::warn!(device = %context.device(), ptr = %block.ptr(), bytes = %block.granted(), tag = %block.tag(),
        "a block could not be freed and is kept: {error}");
    if let Error::Driver(error) | Error::CreateFailed(error) = error {
        context.fault().record(*error);
    }
}
