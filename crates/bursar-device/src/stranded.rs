//! Blocks that could not be given back yet.

use bursar_core::{
    DeviceBlock, DeviceContext, DeviceMemoryResource, Error, RefusedTracked, Result, Stream, StreamMisuse, TrackedBlock,
};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// What nobody else can hold any more, because its buffer is gone and its memory would not take it: a stream that is
/// being captured into a graph takes no free, for instance. Kept, counted by the memory, and tried again.
///
/// What was to be freed on an adopted stream whose adoption has ended does not wait for it: it is freed on the
/// context's heir of such streams, which comes after their work.
#[derive(Debug, Default)]
pub(crate) struct Stranded {
    count: AtomicUsize,
    kept: Mutex<Vec<Kept>>,
}

/// A block, and the stream whose order its free follows.
#[derive(Debug)]
struct Kept {
    memory: Arc<dyn DeviceMemoryResource>,
    block: Box<TrackedBlock>,
    stream: Stream,
}

impl Stranded {
    pub(crate) fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Gives a block back in the order of `stream`, and keeps it if that fails, which is then the answer.
    pub(crate) fn give_back(
        &self,
        memory: &Arc<dyn DeviceMemoryResource>,
        block: TrackedBlock,
        stream: Stream,
    ) -> Result<()> {
        Self::free(&**memory, block, stream).map_err(|RefusedTracked { block, error }| {
            report(memory.context(), block.block(), &error);
            self.put(Kept { memory: memory.clone(), block, stream });
            error
        })
    }

    fn put(&self, kept: Kept) {
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(kept);
        self.count.store(all.len(), Relaxed);
    }

    /// Tries each block once more; those refused again stay.
    #[inline]
    pub(crate) fn retry(&self) {
        if self.len() > 0 {
            self.retry_all();
        }
    }

    #[cold]
    fn retry_all(&self) {
        let all = {
            let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            self.count.store(0, Relaxed);
            std::mem::take(&mut *all)
        };
        for kept in all {
            if !kept.can_be_tried() {
                self.put(kept);
                continue;
            }
            let Kept { memory, block, stream } = kept;
            if let Err(RefusedTracked { block, .. }) = Self::free(&*memory, *block, stream) {
                self.put(Kept { memory, block, stream });
            }
        }
    }

    /// Frees a block in the order of `stream`, or of the context's heir if that has ended.
    fn free(memory: &dyn DeviceMemoryResource, block: TrackedBlock, stream: Stream) -> Result<(), RefusedTracked> {
        match block.free(memory, stream) {
            Err(RefusedTracked { block, error: Error::StreamMisuse { why: StreamMisuse::Ended, .. } }) => {
                match memory.context().heir_of(stream) {
                    Ok(heir) => block.free(memory, heir),
                    Err(error) => Err(RefusedTracked { block, error }),
                }
            }
            answer => answer,
        }
    }
}

impl Kept {
    /// Whether the free may be taken. Asked before it is tried, so that no free is told of which cannot be: nothing is
    /// freed while a stream that orders it is captured, or on a lost device.
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

/// Tries for the last time and says what is leaked.
impl Drop for Stranded {
    fn drop(&mut self) {
        self.retry();
        for Kept { block, .. } in self.kept.get_mut().unwrap_or_else(PoisonError::into_inner) {
            let block = block.block();
            tracing::error!(device = %block.device(), ptr = %block.ptr(), bytes = %block.granted(), tag = %block.tag(),
                "a block that could never be freed is leaked");
        }
    }
}

/// Says that a block is kept, and has the device report a failure of the driver.
#[cold]
fn report(context: &DeviceContext, block: &DeviceBlock, error: &Error) {
    tracing::warn!(device = %context.device(), ptr = %block.ptr(), bytes = %block.granted(), tag = %block.tag(),
        "a block could not be freed and is kept: {error}");
    if let Error::Driver(error) | Error::CreateFailed(error) = error {
        context.fault().record(*error);
    }
}
