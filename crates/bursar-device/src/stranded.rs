//! Blocks that could not be given back yet.

use bursar_core::{DeviceBlock, DeviceContext, DeviceMemoryResource, Error, Refused, Stream, StreamMisuse};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// What nobody else can hold any more, because its buffer is gone and its memory would not take it: a stream that is
/// being captured into a graph takes no free, for instance. Kept, counted by the memory, and tried again.
#[derive(Debug, Default)]
pub(crate) struct Stranded {
    count: AtomicUsize,
    blocks: Mutex<Vec<(DeviceBlock, Stream)>>,
}

impl Stranded {
    pub(crate) fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Gives a block back in the order of `stream`, and keeps it if that fails.
    pub(crate) fn give_back(&self, memory: &dyn DeviceMemoryResource, block: DeviceBlock, stream: Stream) {
        if let Err(refused) = free(memory, block, stream) {
            self.keep(memory.context(), refused, stream);
        }
    }

    #[cold]
    fn keep(&self, context: &DeviceContext, refused: Refused, stream: Stream) {
        let Refused { block, error } = refused;
        tracing::warn!(device = %context.device(), ptr = %block.ptr(), bytes = %block.granted(), tag = %block.tag(),
            "a block could not be freed and is kept: {error}");
        if let Error::Driver(error) = error {
            context.fault().record(error);
        }
        self.put(block, stream);
    }

    fn put(&self, block: DeviceBlock, stream: Stream) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.push((block, stream));
        self.count.store(blocks.len(), Relaxed);
    }

    /// Tries each block once more; those refused again stay.
    #[inline]
    pub(crate) fn retry(&self, memory: &dyn DeviceMemoryResource) {
        if self.len() > 0 {
            self.retry_all(memory);
        }
    }

    #[cold]
    fn retry_all(&self, memory: &dyn DeviceMemoryResource) {
        let blocks = {
            let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
            self.count.store(0, Relaxed);
            std::mem::take(&mut *blocks)
        };
        for (block, stream) in blocks {
            if let Err(refused) = free(memory, block, stream) {
                self.put(refused.block, stream);
            }
        }
    }

    /// Tries for the last time and says what is leaked.
    pub(crate) fn give_up(&self, memory: &dyn DeviceMemoryResource) {
        self.retry(memory);
        for (block, _) in self.blocks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            tracing::error!(device = %block.device(), ptr = %block.ptr(), bytes = %block.granted(), tag = %block.tag(),
                "a block that could never be freed is leaked");
        }
    }
}

/// Frees a block in the order of `stream`, after what its own stream was given. An adopted stream that has ended cannot
/// be ordered after any more: whoever chose another one has seen to it.
fn free(memory: &dyn DeviceMemoryResource, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
    if stream != block.stream() {
        match memory.context().order(block.stream(), stream) {
            Ok(()) | Err(Error::StreamMisuse { why: StreamMisuse::Ended, .. }) => {}
            Err(error) => return Err(Refused { block, error }),
        }
    }
    memory.deallocate(block, stream)
}
