//! A bounded number of streams of one device.

mod expected_bytes;
mod lease;

pub use lease::StreamLease;

use crate::deferred_frees::DeferredFrees;
use bursar_core::{Bytes, DeviceContext, DeviceMemoryResource, Error, MIN_ALIGN, Result, Stream, TrackedBlock, tag};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number and the kind of the streams that a [`StreamPool`] may create.
///
/// ```
/// use bursar_device::StreamOptions;
///
/// let few = StreamOptions { max_streams: 4, ..StreamOptions::default() };
/// assert_eq!(few.priority, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// The most streams there may be, at least one; 16 by default.
    pub max_streams: usize,
    /// The priority of each, within the device's range: lower numbers are more urgent.
    pub priority: i32,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { max_streams: 16, priority: 0 }
    }
}

/// A bounded number of streams of one device, created when they are needed. Clones share them.
///
/// A stream can be [acquired](Self::acquire) permanently, or [leased](Self::lease) for a while. Each has a number in
/// the pool, from 1 on, which stays resolvable for the pool's life; 0 is the device's default stream. The streams
/// themselves live as long as the device's context.
///
/// A stream that somebody else made takes no slot here: it is adopted by
/// [`DeviceContext::adopt_stream`](bursar_core::DeviceContext::adopt_stream), whose caller drops the adoption before
/// the stream is destroyed.
///
/// ```
/// use bursar_core::{DeviceContext, DeviceId, Error};
/// use bursar_device::{StreamOptions, StreamPool};
/// use bursar_sim::Sim;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let options = StreamOptions { max_streams: 2, ..StreamOptions::default() };
/// let pool = StreamPool::with_options(context, options)?;
///
/// let kept = pool.acquire()?;
/// let lease = pool.lease()?;
/// assert_ne!(kept, *lease);
/// assert_eq!(pool.acquire(), Err(Error::Capacity { max: 2 }));
///
/// drop(lease);
/// assert_eq!((pool.created(), pool.acquired(), pool.leased(), pool.idle()), (2, 1, 0, 1));
/// assert_eq!(pool.resolve(1), Some(kept));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct StreamPool {
    shared: Arc<Shared>,
}

struct Shared {
    context: Arc<DeviceContext>,
    options: StreamOptions,
    bytes_per_stream: Bytes,
    state: Mutex<State>,
    frees: Arc<DeferredFrees>,
}

/// Every stream in `streams` is acquired, leased or idle; its number is its index there, counted from one.
#[derive(Default)]
struct State {
    streams: Vec<Stream>,
    idle: VecDeque<u32>,
    leased: usize,
    reserved: usize,
}

/// The way in which a stream is taken out of the pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Acquire,
    Lease,
}

impl StreamPool {
    /// Makes a pool of at most sixteen streams of the device's default priority.
    pub fn new(context: Arc<DeviceContext>) -> Self {
        Self::make(context, StreamOptions::default())
    }

    /// Makes a pool as `options` say; no streams at all, or a priority outside the device's range, is an error.
    pub fn with_options(context: Arc<DeviceContext>, options: StreamOptions) -> Result<Self> {
        if options.max_streams == 0 {
            return Err(Error::InvalidValue { what: "a pool has at least one stream" });
        }
        if !context.facts().stream_priorities.contains(&options.priority) {
            return Err(Error::InvalidValue { what: "the priority is outside the device's range" });
        }
        Ok(Self::make(context, options))
    }

    fn make(context: Arc<DeviceContext>, options: StreamOptions) -> Self {
        Self {
            shared: Arc::new(Shared {
                context,
                options,
                bytes_per_stream: expected_bytes::per_stream(),
                state: Mutex::default(),
                frees: Arc::default(),
            }),
        }
    }

    /// Returns the path by which the blocks of [`prime`](Self::prime) are freed, and those of buffers of the handles
    /// that the pool belongs to.
    pub(crate) fn frees(&self) -> &Arc<DeferredFrees> {
        &self.shared.frees
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a stream for the caller to keep: nobody is given it again. It is a new one where there is room,
    /// otherwise one that a lease gave back; [`Error::Capacity`] if there is neither, [`Error::CreateFailed`] if the
    /// driver fails.
    pub fn acquire(&self) -> Result<Stream> {
        self.take(Mode::Acquire).map(|(_, stream)| stream)
    }

    /// Returns a stream until the lease is dropped: one that was given back, the longest idle first, or else a new one.
    /// Work of the last holder that has not run yet runs first, since it is the same stream.
    pub fn lease(&self) -> Result<StreamLease> {
        self.take(Mode::Lease).map(|(id, stream)| StreamLease::new(self.clone(), id, stream))
    }

    fn take(&self, mode: Mode) -> Result<(u32, Stream)> {
        let StreamOptions { max_streams, priority } = self.shared.options;
        let slot = {
            let mut state = self.state();
            let has_room = state.streams.len() + state.reserved < max_streams;
            if (mode == Mode::Lease || !has_room)
                && let Some(id) = state.idle.pop_front()
            {
                state.leased += usize::from(mode == Mode::Lease);
                return Ok((id, state.streams[id as usize - 1]));
            }
            if !has_room {
                return Err(Error::Capacity { max: max_streams });
            }
            ReservedSlot::new(self, &mut state)
        };
        let stream = self.shared.context.create_stream(priority)?;
        Ok((slot.enter(stream, mode), stream))
    }

    /// Takes a leased stream back.
    fn give_back(&self, id: u32) {
        let mut state = self.state();
        state.leased -= 1;
        state.idle.push_back(id);
    }

    /// Returns the stream with a number: 0 is the default stream, the others are `1..=created()`.
    pub fn resolve(&self, id: u32) -> Option<Stream> {
        match id.checked_sub(1) {
            Some(index) => self.state().streams.get(index as usize).copied(),
            None => Some(self.shared.context.default_stream()),
        }
    }

    /// Returns the number of a stream of this pool, or of the device's default stream.
    pub fn id_of(&self, stream: Stream) -> Option<u32> {
        if stream == self.shared.context.default_stream() {
            return Some(0);
        }
        let index = self.state().streams.iter().position(|known| *known == stream)?;
        Some(index as u32 + 1)
    }

    /// Returns the device's context.
    #[inline]
    pub fn context(&self) -> &Arc<DeviceContext> {
        &self.shared.context
    }

    /// Returns the most streams there may be.
    pub fn max_streams(&self) -> usize {
        self.shared.options.max_streams
    }

    /// Returns the number of streams there are.
    pub fn created(&self) -> usize {
        self.state().streams.len()
    }

    /// Returns the number of streams that were acquired.
    pub fn acquired(&self) -> usize {
        let state = self.state();
        state.streams.len() - state.idle.len() - state.leased
    }

    /// Returns the number of streams that are on lease.
    pub fn leased(&self) -> usize {
        self.state().leased
    }

    /// Returns the number of streams that wait for the next holder.
    pub fn idle(&self) -> usize {
        self.state().idle.len()
    }

    /// Returns how much memory a stream is expected to need: `BURSAR_POOL_MB_PER_STREAM` when the pool was made, in
    /// MiB, or 256 MiB.
    pub fn bytes_per_stream(&self) -> Bytes {
        self.shared.bytes_per_stream
    }

    /// Returns how much memory `arms` that use `streams` each are expected to need, or the largest size if that does
    /// not fit.
    pub fn planned_pool_bytes(&self, arms: u64, streams: u64) -> Bytes {
        self.bytes_per_stream().saturating_mul(arms).saturating_mul(streams)
    }

    /// Warms the memory of a stream: allocates and frees [`bytes_per_stream`](Self::bytes_per_stream) on it, so that a
    /// pool has them cached. If the free is refused, that is the error, and the block is kept and tried again by the
    /// next call, or when the pool is dropped.
    pub fn prime(&self, memory: &Arc<dyn DeviceMemoryResource>, stream: impl Into<Stream>) -> Result<()> {
        if !Arc::ptr_eq(memory.context(), self.context()) {
            return Err(Error::InvalidValue { what: "the memory belongs to another context" });
        }
        self.shared.frees.retry();
        let (stream, bytes) = (stream.into(), self.bytes_per_stream().get());
        let block = memory.allocate(bytes, MIN_ALIGN, stream, tag!("prime"))?;
        self.shared.frees.free(memory, TrackedBlock::new(&**memory, block), stream)
    }

    /// Returns the number of blocks whose free was refused, those of buffers of the same device included.
    pub fn deferred_frees(&self) -> usize {
        self.shared.frees.len()
    }
}

impl fmt::Debug for StreamPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamPool")
            .field("device", &self.shared.context.device())
            .field("options", &self.shared.options)
            .field("created", &self.created())
            .field("leased", &self.leased())
            .field("idle", &self.idle())
            .finish_non_exhaustive()
    }
}

/// Room for one stream while the driver is asked for it; given up unless a stream enters.
struct ReservedSlot<'a> {
    pool: &'a StreamPool,
}

impl<'a> ReservedSlot<'a> {
    fn new(pool: &'a StreamPool, state: &mut State) -> Self {
        state.reserved += 1;
        Self { pool }
    }

    /// Enters a stream and returns its number. The slot turns into the stream at once, so that nobody counts both.
    fn enter(self, stream: Stream, mode: Mode) -> u32 {
        let mut state = self.pool.state();
        std::mem::forget(self);
        state.reserved -= 1;
        state.leased += usize::from(mode == Mode::Lease);
        state.streams.push(stream);
        state.streams.len() as u32
    }
}

impl Drop for ReservedSlot<'_> {
    fn drop(&mut self) {
        self.pool.state().reserved -= 1;
    }
}
