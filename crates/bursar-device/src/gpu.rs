//! One device.

use crate::allocation_sites::{AllocationScope, AllocationSites};
use crate::deferred_frees::DeferredFrees;
use crate::{Leak, StreamPool};
use bursar_core::{
    Build, Bytes, DeviceContext, DeviceFacts, DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt as _, Driver,
    Error, Link, MIN_ALIGN, MemoryInfo, RawContext, Result, Stream, TrackedBlock,
};
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The longest time to wait, when a device is closed, for frees that have not run.
pub(crate) const CLOSING_PATIENCE: Duration = Duration::from_secs(1);

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
    /// The frees of blocks whose buffers are gone; the pool of streams makes its own through it too.
    frees: Arc<DeferredFrees>,
    /// The places where blocks were allocated, once somebody has asked for them.
    sites: OnceLock<AllocationSites>,
    /// True once memory that is still held was logged.
    has_reported: AtomicBool,
}

impl Gpu {
    /// Opens a device of `driver` and builds `stack` for it.
    pub fn open(driver: Arc<dyn Driver>, device: DeviceId, stack: &impl Build) -> Result<Self> {
        let context = DeviceContext::open(driver, device)?;
        let memory = Arc::new(stack.build(&context)?);
        let frees = Arc::new(DeferredFrees::default());
        let streams = StreamPool::freeing_through(context.clone(), frees.clone());
        let (sites, has_reported) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Self { shared: Arc::new(Shared { context, memory, streams, frees, sites, has_reported }) })
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

    /// Returns the device's memory.
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

    /// Records from now on where in the program each buffer was allocated, for the report of what is
    /// [still held](Self::still_held). Without this, nothing is recorded and it costs nothing.
    pub fn record_sites(&self) -> Result<()> {
        let sites = self.shared.sites.get_or_init(AllocationSites::default);
        self.context().sink().subscribe(&sites.observer())
    }

    /// Attributes what this thread allocates to `location` until the result is dropped, if sites are recorded.
    #[inline]
    pub(crate) fn enter_site(&self, location: &'static Location<'static>) -> Option<AllocationScope> {
        self.shared.sites.get().map(|_| AllocationScope::enter(location))
    }

    /// Returns what of the device's memory is held at this moment, by whom and, where that was
    /// [recorded](Self::record_sites), from where; `None` where nothing is held. Frees that have not run are waited for
    /// first, but no longer than `patience`.
    pub fn still_held(&self, patience: Duration) -> Option<Leak> {
        self.shared.still_held(patience).unwrap_or_else(|_| Some(self.shared.leak()))
    }

    /// Returns what is [still held](Self::still_held) and logs it, once.
    pub(crate) fn report_leak(&self, patience: Duration) -> Option<Leak> {
        let leak = self.still_held(patience);
        self.shared.log(leak.as_ref());
        leak
    }

    /// Returns the number of blocks whose buffer is gone and whose free was refused, because their stream is being
    /// captured into a graph, or the driver failed. They stay counted, and every new buffer tries them again.
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

impl Shared {
    /// Returns what is held once the frees that are pending have run, or why that cannot be known.
    fn still_held(&self, patience: Duration) -> Result<Option<Leak>> {
        self.frees.retry();
        if self.memory.bytes_outstanding() > Bytes::ZERO {
            self.memory.reap_blocking(patience)?;
        }
        Ok((self.memory.bytes_outstanding() > Bytes::ZERO).then(|| self.leak()))
    }

    fn leak(&self) -> Leak {
        let (device, held) = (self.context.device(), self.memory.bytes_outstanding());
        let sites = self.sites.get().map(AllocationSites::live).unwrap_or_default();
        Leak::new(device, held, self.context.sink().holders(device), sites)
    }

    fn log(&self, leak: Option<&Leak>) {
        if let Some(leak) = leak
            && !self.has_reported.swap(true, Relaxed)
        {
            tracing::warn!(device = %leak.device, held = %leak.held, "memory is still held: {leak}");
        }
    }
}

impl Drop for Shared {
    /// Logs what is still held: with the last handle of the device gone, it can never be freed.
    fn drop(&mut self) {
        match self.still_held(CLOSING_PATIENCE) {
            Ok(leak) => self.log(leak.as_ref()),
            Err(error) => tracing::warn!(device = %self.context.device(), "{error}"),
        }
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
