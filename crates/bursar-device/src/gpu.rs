//! One device.

mod held;
mod options;
mod sleep;

pub use options::GpuOptions;
pub use sleep::{SleepOptions, WakeOptions};

use crate::StreamPool;
use crate::deferred_frees::DeferredFrees;
use crate::handle_memory::{HandleMemory, HandlesUnder};
use crate::live_blocks::{AllocationScope, LiveBlocks};
use bursar_core::{
    Build, Bytes, DeviceContext, DeviceFacts, DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt as _, Driver,
    Error, HasContext, Layer, Link, MIN_ALIGN, MemoryInfo, RawContext, Result, Stream, TrackedBlock,
};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One device: its context, its memory and its streams. Clones share them, and keep them alive.
///
/// Whatever stack of layers the memory is made of, here it is one type.
///
/// ```
/// use bursar::sim::Sim;
/// use bursar::{DeviceId, Gpu, Stack, leaf, tag};
///
/// let gpu = Gpu::open(Sim::immediate(), DeviceId(1), &Stack::new().over(leaf::Async))?;
/// let stream = gpu.streams().lease()?;
/// let numbers = gpu.buffer_from(&[1u64, 2, 3], &stream, tag!("numbers"))?;
/// assert_eq!(numbers.to_vec()?, [1, 2, 3]);
/// assert!(gpu.memory_info()?.free < gpu.facts().total);
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Clone)]
pub struct Gpu {
    shared: Arc<Shared>,
}

struct Shared {
    context: Arc<DeviceContext>,
    memory: Arc<dyn DeviceMemoryResource>,
    streams: StreamPool,
    /// The frees of blocks whose buffers are gone; the pool of streams makes its own through it too.
    frees: Arc<DeferredFrees>,
    /// The count of what this handle holds, where others use the same memory.
    counted: Option<Arc<HandleMemory>>,
    /// The handles under this one.
    under: Arc<HandlesUnder>,
    live: LiveBlocks,
    /// True once memory that is still held was logged.
    has_reported: AtomicBool,
}

impl HasContext for Gpu {
    fn device_context(&self) -> &Arc<DeviceContext> {
        self.context()
    }
}

impl Gpu {
    /// Opens a device of `driver` and builds `stack` for it.
    pub fn open(driver: Arc<dyn Driver>, device: DeviceId, stack: &impl Build) -> Result<Self> {
        Self::options().open(driver, device, stack)
    }

    /// Builds `stack` for a device that is open: the one that a reservation was made on, for instance, which the stack
    /// then draws.
    ///
    /// ```
    /// use bursar::device::DeviceContext;
    /// use bursar::sim::Sim;
    /// use bursar::{DeviceId, Gpu, Stack, leaf, tag};
    /// use std::sync::Arc;
    ///
    /// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    /// let gpu = Gpu::with_context(&context, &Stack::new().over(leaf::Async))?;
    /// assert!(Arc::ptr_eq(gpu.context(), &context));
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn with_context(context: &Arc<DeviceContext>, stack: &impl Build) -> Result<Self> {
        Self::options().with_context(context, stack)
    }

    /// Makes a handle of the device that `memory` is of. The memory may be used by others too: the handle reports
    /// what is allocated through it. Observers hear of what happens to it if it was built from a
    /// [`Stack`](bursar_core::Stack), or is an [`ObservedResource`](bursar_core::ObservedResource) for another reason.
    ///
    /// ```
    /// use bursar::device::DeviceContext;
    /// use bursar::memory::{Build, Holder};
    /// use bursar::sim::Sim;
    /// use bursar::{Bytes, DeviceId, Gpu, Stack, leaf, tag};
    /// use std::sync::Arc;
    ///
    /// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    /// let memory = Arc::new(Stack::new().over(leaf::Async).build(&context)?);
    /// let gpu = Gpu::with_resource(memory.clone());
    /// let stream = gpu.streams().lease()?;
    /// let buffer = gpu.buffer::<u8>(4096, &stream, tag!("through the handle"))?;
    /// assert_eq!(memory.bytes_outstanding(), Bytes(4096));
    /// # drop(buffer);
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn with_resource(memory: impl DeviceMemoryResource) -> Self {
        let streams = StreamPool::new(memory.context().clone());
        Self::of_resource(Arc::new(memory), streams)
    }

    /// Returns options to open a device with; see [`GpuOptions`].
    pub fn options() -> GpuOptions {
        GpuOptions::default()
    }

    /// Makes a handle of a resource that others may use too.
    fn of_resource(memory: Arc<dyn DeviceMemoryResource>, streams: StreamPool) -> Self {
        let live = LiveBlocks::default();
        let counted = Arc::new(HandleMemory::new(memory, live.clone(), None));
        Self::assemble(counted.clone(), streams, Some(counted), live)
    }

    /// Makes a handle with the streams of this one, and other memory of the same device.
    pub(crate) fn with_memory(&self, memory: impl DeviceMemoryResource) -> Self {
        Self::of_resource(Arc::new(memory), self.streams().clone())
    }

    /// Makes a handle of a resource that it has to itself.
    fn of_own(memory: impl DeviceMemoryResource, streams: StreamPool) -> Self {
        Self::assemble(Arc::new(memory), streams, None, LiveBlocks::default())
    }

    fn assemble(
        memory: Arc<dyn DeviceMemoryResource>,
        streams: StreamPool,
        counted: Option<Arc<HandleMemory>>,
        live: LiveBlocks,
    ) -> Self {
        let (context, frees) = (memory.context().clone(), streams.frees().clone());
        let (under, has_reported) = (Arc::default(), AtomicBool::new(false));
        let shared = Shared { context, memory, streams, frees, counted, under, live, has_reported };
        Self { shared: Arc::new(shared) }
    }

    /// Makes a handle under a limit, or any other layer, over this handle's memory: the same device, streams and pool.
    /// What is allocated through it counts for the layer, and for whatever limits lie below.
    ///
    /// A buffer is freed through the handle that allocated it. Each handle reports what was allocated through it:
    /// closing this one, or dropping it, says nothing of what those under it hold, and leaves them as they are.
    ///
    /// ```
    /// use bursar::sim::Sim;
    /// use bursar::{Bytes, DeviceId, Gpu, PagePool, Quota, Stack, leaf, tag};
    ///
    /// let gpu = Gpu::open(Sim::immediate(), DeviceId(0), &Stack::new().layer(PagePool::default()).over(leaf::Frames))?;
    /// let (small, large) = (Quota::of(Bytes::mib(1)), Quota::of(Bytes::gib(8)));
    /// let (draft, model) = (gpu.under(&small)?, gpu.under(&large)?);
    /// let stream = gpu.streams().lease()?;
    ///
    /// let weights = model.buffer::<u8>(64 << 20, &stream, tag!("weights"))?;
    /// assert!(draft.buffer::<u8>(2 << 20, &stream, tag!("weights")).unwrap_err().is_capacity());
    /// assert_eq!((large.used(), small.used()), (Bytes::mib(64), Bytes::ZERO));
    /// drop(weights);
    /// assert_eq!(large.used(), Bytes::ZERO);
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn under<L>(&self, layer: &L) -> Result<Self>
    where
        L: Layer<Arc<dyn DeviceMemoryResource>>,
        L::Output: DeviceMemoryResource,
    {
        let Shared { memory, streams, live, under, .. } = &*self.shared;
        let counted = Arc::new(HandleMemory::new(memory.clone(), live.clone(), Some(under.clone())));
        let layered = layer.layer(counted.clone())?;
        Ok(Self::assemble(Arc::new(layered), streams.clone(), Some(counted), live.clone()))
    }

    /// Returns the device's ordinal on the driver.
    pub fn id(&self) -> DeviceId {
        self.shared.context.device()
    }

    /// Returns the facts about the device that do not change.
    pub fn facts(&self) -> &DeviceFacts {
        self.shared.context.facts()
    }

    /// Returns the context that all layers of the device share.
    pub fn context(&self) -> &Arc<DeviceContext> {
        &self.shared.context
    }

    /// Returns the memory of this handle. A block is freed through the handle that it was allocated through.
    pub fn memory(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.shared.memory
    }

    /// Returns the device's streams.
    pub fn streams(&self) -> &StreamPool {
        &self.shared.streams
    }

    /// Returns how much of the device's memory is free right now, whoever holds the rest.
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        let context = &self.shared.context;
        let info = context.driver().memory(context.device());
        info.map_err(|error| context.failed(error))
    }

    /// Returns the raw handle of the device's primary context, for other libraries in the process.
    pub fn raw_context(&self) -> RawContext {
        self.shared.context.raw_context()
    }

    /// Returns the links to other devices that the machine reports; a device that is not among them is at an unknown
    /// distance.
    pub fn links(&self) -> Result<Vec<Link>> {
        let context = &self.shared.context;
        let links = context.driver().links(context.device());
        links.map_err(|error| context.failed(error))
    }

    /// Explains a refusal of `requested` bytes, with what the device's memory holds.
    #[cold]
    pub(crate) fn explain(&self, error: Error, requested: Bytes) -> Error {
        self.memory().explain(error, requested, MIN_ALIGN)
    }

    /// Records from now on where in the program each buffer was allocated, through this handle and those under it or
    /// above it, for the report of what is [still held](Self::still_held). Without this, nothing is recorded and it
    /// costs nothing.
    pub fn record_sites(&self) -> Result<()> {
        self.shared.live.record_sites(self.context())
    }

    /// Attributes what this thread allocates to `location` until the result is dropped, if sites are recorded.
    #[inline]
    pub(crate) fn enter_site(&self, location: &'static Location<'static>) -> Option<AllocationScope> {
        self.shared.live.has_sites().then(|| AllocationScope::enter(location))
    }

    /// Returns the number of blocks whose buffer is gone and whose free was refused, because their stream is being
    /// captured into a graph, or the driver failed: through this handle and those that share its streams. They stay
    /// counted, and every new buffer tries them again.
    pub fn deferred_frees(&self) -> usize {
        self.shared.frees.len()
    }

    /// Tries the frees again that were refused.
    #[inline]
    pub(crate) fn retry_frees(&self) {
        self.shared.frees.retry();
    }

    /// Frees the block of a buffer in the order of `stream`.
    pub(crate) fn free(&self, block: TrackedBlock, stream: Stream) {
        // A free that is refused is deferred and was reported.
        let _deferred = self.shared.frees.free(&self.shared.memory, block, stream);
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

/// The context of a GPU, for those who need no more than the device.
impl From<&Gpu> for Arc<DeviceContext> {
    fn from(gpu: &Gpu) -> Self {
        gpu.context().clone()
    }
}
