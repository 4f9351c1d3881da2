//! One device.

use crate::sites::Sites;
use crate::{DeviceBuffer, Leak, StreamPool, Work};
use bursar_core::{
    AllocTag, Build, Bytes, DeviceContext, DeviceFacts, DeviceId, DeviceMemoryResource, Driver, Error, Link,
    MemoryInfo, RawContext, Result, Stream, TrackedBlock,
};
use bytemuck::Pod;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long frees that have not run are waited for when a device is closed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

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
    /// Where blocks were allocated, if somebody wants to know.
    sites: OnceLock<Sites>,
    /// Whether what is left when the device is closed was reported already.
    reported: AtomicBool,
}

impl Gpu {
    /// Opens a device of `driver` and builds `stack` for it.
    pub fn open(driver: Arc<dyn Driver>, device: DeviceId, stack: &impl Build) -> Result<Self> {
        let context = DeviceContext::open(driver, device)?;
        let memory = Arc::new(stack.build(&context)?);
        let (sites, reported) = (OnceLock::new(), AtomicBool::new(false));
        let streams = StreamPool::new(context.clone());
        Ok(Self { shared: Arc::new(Shared { streams, context, memory, sites, reported }) })
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
    /// written; one of no elements takes no memory. Where there is no room, the [`Error::Shortage`] says who has it.
    #[track_caller]
    pub fn buffer<T: Pod>(&self, len: usize, stream: impl Into<Stream>, tag: AllocTag) -> Result<DeviceBuffer<T>> {
        let _call = self.context().here();
        self.shared.streams.retry_stranded();
        let caller = Location::caller();
        let _here = self.shared.sites.get().map(|_| Sites::enter(caller));
        DeviceBuffer::allocate(self.clone(), len, stream.into(), tag).map_err(|error| {
            let requested = (len as u64).saturating_mul(size_of::<T>() as u64);
            self.explain(error, Bytes(requested))
        })
    }

    #[cold]
    fn explain(&self, error: Error, requested: Bytes) -> Error {
        let mut explained = self.context().explain(error, requested);
        if let Error::Shortage(shortage) = &mut explained {
            shortage.held = shortage.held.max(Some(self.memory().bytes_outstanding()));
        }
        explained
    }

    /// A buffer that holds a copy of `values`.
    #[track_caller]
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

    /// Submits work to a stream that is not on lease: an acquired, an adopted or the default one. See
    /// [`StreamLease::submit`](crate::StreamLease::submit).
    pub fn submit<R>(&self, stream: impl Into<Stream>, submit: impl FnOnce(&mut Work<'_>) -> R) -> R {
        submit(&mut Work::new(self.context(), stream.into()))
    }

    /// Remembers from now on where in the program each buffer was allocated, for the report of what is
    /// [still held](Self::still_held). Without this, nothing is remembered and nothing is paid.
    pub fn record_sites(&self) -> Result<()> {
        let sites = self.shared.sites.get_or_init(Sites::default);
        self.context().sink().subscribe(&sites.observer())
    }

    /// What of its memory is held at this moment, by whom and, where that was [recorded](Self::record_sites), from where.
    /// Frees that have not run are waited for first, but no longer than `patience`. None where nothing is held.
    pub fn still_held(&self, patience: Duration) -> Option<Leak> {
        self.shared.still_held(patience).unwrap_or_else(|_| Some(self.shared.leak()))
    }

    /// As [`still_held`](Self::still_held), and says so in the log, once.
    pub(crate) fn report_leak(&self, patience: Duration) -> Option<Leak> {
        let leak = self.still_held(patience);
        self.shared.tell(leak.as_ref());
        leak
    }

    /// How many blocks of buffers that are gone could not be given back yet, because their stream took no free: it is
    /// being captured into a graph, or the driver failed. They stay counted, and every new buffer tries them again.
    pub fn stranded(&self) -> usize {
        self.shared.streams.stranded()
    }

    pub(crate) fn give_back(&self, block: TrackedBlock, stream: Stream) {
        // What cannot be freed now is kept and was reported.
        let _kept = self.shared.streams.give_back_block(&self.shared.memory, block, stream);
    }
}

impl Shared {
    /// What is held once the frees that are pending have run, or why that cannot be known.
    fn still_held(&self, patience: Duration) -> Result<Option<Leak>> {
        self.streams.retry_stranded();
        if self.memory.bytes_outstanding() > Bytes::ZERO {
            self.memory.reap_blocking(patience)?;
        }
        Ok((self.memory.bytes_outstanding() > Bytes::ZERO).then(|| self.leak()))
    }

    fn leak(&self) -> Leak {
        let (device, held) = (self.context.device(), self.memory.bytes_outstanding());
        let sites = self.sites.get().map(Sites::live).unwrap_or_default();
        Leak::new(device, held, self.context.sink().holders(device), sites)
    }

    fn tell(&self, leak: Option<&Leak>) {
        if let Some(leak) = leak
            && !self.reported.swap(true, Relaxed)
        {
            tracing::warn!(device = %leak.device, held = %leak.held, "memory is still held: {leak}");
        }
    }
}

impl Drop for Shared {
    /// With the last handle of the device gone, what is held can never be freed.
    fn drop(&mut self) {
        match self.still_held(PATIENCE) {
            Ok(leak) => self.tell(leak.as_ref()),
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
