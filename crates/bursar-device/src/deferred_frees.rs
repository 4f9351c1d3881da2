//! Frees of blocks in stream order, and those that were refused, to be tried again.

use bursar_core::{
    DeviceBlock, DeviceContext, DeviceMemoryResource, Error, RefusedTracked, Result, Stream, StreamMisuse, TrackedBlock,
};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

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

/// A block, and the stream whose order its free follows.
#[derive(Debug)]
struct DeferredFree {
    memory: Arc<dyn DeviceMemoryResource>,
    block: Box<TrackedBlock>,
    stream: Stream,
}

impl DeferredFrees {
    /// Returns the number of frees that were refused and not made since.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Frees a block in the order of `stream`. If that is refused, the free is deferred and the refusal returned.
    pub(crate) fn free(
        &self,
        memory: &Arc<dyn DeviceMemoryResource>,
        block: TrackedBlock,
        stream: Stream,
    ) -> Result<()> {
        free_in_order(&**memory, block, stream).map_err(|RefusedTracked { block, error }| {
            report(memory.context(), block.block(), &error);
            self.put(DeferredFree { memory: memory.clone(), block, stream });
            error
        })
    }

    fn put(&self, free: DeferredFree) {
        let mut frees = self.frees.lock().unwrap_or_else(PoisonError::into_inner);
        frees.push(free);
        self.count.store(frees.len(), Relaxed);
    }

    /// Tries each free once more; those refused again stay.
    #[inline]
    pub(crate) fn retry(&self) {
        if self.len() > 0 {
            self.retry_all();
        }
    }

    #[cold]
    fn retry_all(&self) {
        let frees = {
            let mut frees = self.frees.lock().unwrap_or_else(PoisonError::into_inner);
            self.count.store(0, Relaxed);
            std::mem::take(&mut *frees)
        };
        for free in frees {
            if !free.can_be_tried() {
                self.put(free);
                continue;
            }
            let DeferredFree { memory, block, stream } = free;
            if let Err(RefusedTracked { block, .. }) = free_in_order(&*memory, *block, stream) {
                self.put(DeferredFree { memory, block, stream });
            }
        }
    }
}

impl DeferredFree {
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

/// Tries each free for the last time and logs the blocks that are leaked.
impl Drop for DeferredFrees {
    fn drop(&mut self) {
        self.retry();
        for DeferredFree { block, .. } in self.frees.get_mut().unwrap_or_else(PoisonError::into_inner) {
            let block = block.block();
            tracing::error!(device = %block.device(), ptr = %block.ptr(), bytes = %block.granted(), tag = %block.tag(),
                "a block that could never be freed is leaked");
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
