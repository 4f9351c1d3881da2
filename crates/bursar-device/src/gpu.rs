//! One device.

use crate::{DeviceBuffer, StreamPool};
use bursar_core::{
    AllocTag, Build, DeviceBlock, DeviceContext, DeviceFacts, DeviceId, DeviceMemoryResource, Driver, Link, MemoryInfo,
    RawContext, Result, Stream,
};
use bytemuck::Pod;
use std::fmt;
use std::sync::Arc;

/// One device: its context, its memory and its streams. Clones share them, and keep them alive.
///
/// Whatever stack of layers the memory is made of, here it is one type.
///
/// ```
/// use bursar_core::{DeviceId, Stack, leaf, tag};
/// use bursar_device::Gpu;
/// use bursar_sim::Sim;
///
/// let gpu = Gpu::open(Sim::immediate(), DeviceId(1), &Stack::new().over(leaf::Async))?;
/// let stream = gpu.streams().lease()?;
/// let numbers = gpu.buffer_from(&[1u64, 2, 3], &stream, tag!("numbers"))?;
/// assert_eq!(numbers.to_vec()?, [1, 2, 3]);
/// assert!(gpu.memory_info()?.free < gpu.facts().total);
/// # Ok::<(), bursar_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Gpu {
    shared: Arc<Shared>,
}

struct Shared {
    context: Arc<DeviceContext>,
    memory: Arc<dyn DeviceMemoryResource>,
    streams: StreamPool,
}

impl Gpu {
    /// Opens a device of `driver` and builds `stack` for it.
    pub fn open(driver: Arc<dyn Driver>, device: DeviceId, stack: &impl Build) -> Result<Self> {
        let context = DeviceContext::open(driver, device)?;
        let memory = Arc::new(stack.build(&context)?);
        Ok(Self { shared: Arc::new(Shared { streams: StreamPool::new(context.clone()), context, memory }) })
    }

    /// Its ordinal on the driver.
    pub fn id(&self) -> DeviceId {
        self.shared.context.device()
    }

    /// What does not change about it.
    pub fn facts(&self) -> &DeviceFacts {
        self.shared.context.facts()
    }

    /// What all layers of it share.
    pub fn context(&self) -> &Arc<DeviceContext> {
        &self.shared.context
    }

    /// Its memory.
    pub fn memory(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.shared.memory
    }

    /// Its streams.
    pub fn streams(&self) -> &StreamPool {
        &self.shared.streams
    }

    /// How much of its memory is free right now, whoever holds the rest.
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        let context = &self.shared.context;
        let info = context.driver().memory(context.device());
        info.map_err(|error| context.failed(error))
    }

    /// The raw handle of its primary context, for other libraries in the process.
    pub fn raw_context(&self) -> RawContext {
        self.shared.context.raw_context()
    }

    /// Its links to other devices, as the machine reports them; a device that is not among them is at an unknown
    /// distance.
    pub fn links(&self) -> Result<Vec<Link>> {
        let context = &self.shared.context;
        let links = context.driver().links(context.device());
        links.map_err(|error| context.failed(error))
    }

    /// A buffer of `len` elements that work ordered after this point of `stream` may use. It holds anything until it is
    /// written; one of no elements takes no memory.
    pub fn buffer<T: Pod>(&self, len: usize, stream: impl Into<Stream>, tag: AllocTag) -> Result<DeviceBuffer<T>> {
        self.shared.streams.retry_stranded();
        DeviceBuffer::allocate(self.clone(), len, stream.into(), tag)
    }

    /// A buffer that holds a copy of `values`.
    pub fn buffer_from<T: Pod>(
        &self,
        values: &[T],
        stream: impl Into<Stream>,
        tag: AllocTag,
    ) -> Result<DeviceBuffer<T>> {
        let mut buffer = self.buffer(values.len(), stream, tag)?;
        buffer.write_from_host(values)?;
        Ok(buffer)
    }

    /// How many blocks of buffers that are gone could not be given back yet, because their stream took no free: it is
    /// being captured into a graph, or the driver failed. They stay counted, and every new buffer tries them again.
    pub fn stranded(&self) -> usize {
        self.shared.streams.stranded()
    }

    pub(crate) fn give_back(&self, block: DeviceBlock, stream: Stream) {
        // What cannot be freed now is kept and was reported.
        let _kept = self.shared.streams.give_back_block(&self.shared.memory, block, stream);
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu")
            .field("id", &self.id())
            .field("name", &self.facts().name)
            .field("outstanding", &self.memory().bytes_outstanding())
            .field("streams", self.streams())
            .finish_non_exhaustive()
    }
}
