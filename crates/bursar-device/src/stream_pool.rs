//! A bounded number of streams of one device.

mod expected_bytes;
mod lease;

pub use lease::StreamLease;

use crate::deferred_frees::DeferredFrees;
use bursar_core::{
    Bytes, DeviceContext, DeviceMemoryResource, Error, MIN_ALIGN, Result, Stream, StreamMisuse, StreamNumber,
    TrackedBlock, tag,
};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The number and the kind of the streams that a [`StreamPool`] may create.
///
/// ```
/// use bursar::stream::StreamOptions;
///
/// let few = StreamOptions { max_streams: 4, ..StreamOptions::default() };
/// assert_eq!(few.priority, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// The most streams there may be, at least one; 16 by default.
    pub max_streams: usize,
    /// The priority of each that none was asked for, within the device's range: lower numbers are more urgent.
    pub priority: i32,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { max_streams: 16, priority: 0 }
    }
}

/// A bounded number of streams of one device, created when they are needed. Clones share them.
///
/// A stream can be [acquired](Self::acquire) permanently, or [leased](Self::lease) for a while. Its
/// [number](Stream::number), by which messages, records and reports name it too, stays
/// [resolvable](Self::resolve) for the pool's life. The streams themselves live as long as the device's context: the
/// next pool of the context has those that were only leased.
///
/// A stream that somebody else made takes no slot here: it is adopted by
/// [`DeviceContext::adopt_stream`](bursar_core::DeviceContext::adopt_stream), whose caller drops the adoption before
/// the stream is destroyed.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::sim::Sim;
/// use bursar::stream::{StreamOptions, StreamPool};
/// use bursar::{DeviceId, Error};
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
/// assert_eq!(pool.resolve(kept.number()), Some(kept));
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

/// A stream of the pool, and the priority it was made with.
#[derive(Clone, Copy)]
struct PooledStream {
    stream: Stream,
    priority: i32,
}

/// Every stream in `streams` is acquired, leased or idle.
#[derive(Default)]
struct State {
    streams: Vec<Stream>,
    /// Those that wait for the next holder, the longest idle first.
    idle: VecDeque<PooledStream>,
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
        check_priority(&context, options.priority)?;
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
        self.acquire_with_priority(self.shared.options.priority)
    }

    /// Returns a stream of a priority to keep, as [`acquire`](Self::acquire) does. A priority outside the device's range
    /// is an error.
    pub fn acquire_with_priority(&self, priority: i32) -> Result<Stream> {
        self.take(Mode::Acquire, priority).map(|pooled| pooled.stream)
    }

    /// Returns a stream until the lease is dropped: one that was given back, the longest idle first, or else a new one.
    /// Work of the last holder that has not run yet runs first, since it is the same stream.
    pub fn lease(&self) -> Result<StreamLease> {
        self.lease_with_priority(self.shared.options.priority)
    }

    /// Returns a stream of a priority until the lease is dropped, as [`lease`](Self::lease) does: one of that priority
    /// that was given back, or else a new one; [`Error::Capacity`] if the pool is full of others. Lower numbers are more
    /// urgent, and a priority outside the device's range
    /// ([`DeviceFacts::stream_priorities`](bursar_core::DeviceFacts::stream_priorities)) is an error.
    ///
    /// ```
    /// use bursar::sim::Sim;
    /// use bursar::{DeviceId, Gpu, Stack, leaf};
    ///
    /// let gpu = Gpu::open(Sim::immediate(), DeviceId(0), &Stack::new().over(leaf::Async))?;
    /// let most_urgent = *gpu.facts().stream_priorities.start();
    /// let decode = gpu.streams().lease_with_priority(most_urgent)?;
    /// let prefill = gpu.streams().lease()?;
    /// assert_eq!((decode.priority(), prefill.priority()), (most_urgent, 0));
    /// assert!(gpu.streams().lease_with_priority(most_urgent - 1).is_err());
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn lease_with_priority(&self, priority: i32) -> Result<StreamLease> {
        self.take(Mode::Lease, priority).map(|pooled| StreamLease::new(self.clone(), pooled))
    }

    /// Takes a stream that is not being captured: one that a lease gave back in the middle of a capture is the last to be taken again
    /// before that has ended.
    fn take(&self, mode: Mode, priority: i32) -> Result<PooledStream> {
        check_priority(&self.shared.context, priority)?;
        let mut captured = Vec::new();
        let taken = loop {
            match self.take_any(mode, priority) {
                Ok(taken) if mode == Mode::Lease && self.is_captured(taken.stream) => captured.push(taken),
                taken => break taken,
            }
        };
        let taken = match taken {
            Err(Error::Capacity { .. }) if !captured.is_empty() => Ok(captured.swap_remove(0)),
            taken => taken,
        };
        captured.into_iter().for_each(|pooled| self.give_back(pooled));
        taken
    }

    fn is_captured(&self, stream: Stream) -> bool {
        let checked = self.shared.context.check_stream(stream);
        matches!(checked, Err(Error::StreamMisuse { why: StreamMisuse::Capturing, .. }))
    }

    fn take_any(&self, mode: Mode, priority: i32) -> Result<PooledStream> {
        let StreamOptions { max_streams, .. } = self.shared.options;
        let slot = {
            let mut state = self.state();
            let has_room = state.streams.len() + state.reserved < max_streams;
            if (mode == Mode::Lease || !has_room)
                && let Some(pooled) = state.take_idle(priority)
            {
                state.leased += usize::from(mode == Mode::Lease);
                return Ok(pooled);
            }
            if !has_room {
                return Err(Error::Capacity { max: max_streams });
            }
            ReservedSlot::new(self, &mut state)
        };
        let stream = self.shared.context.take_stream(priority)?;
        slot.enter(stream, mode);
        Ok(PooledStream { stream, priority })
    }

    /// Takes a leased stream back.
    fn give_back(&self, pooled: PooledStream) {
        let mut state = self.state();
        state.leased -= 1;
        state.idle.push_back(pooled);
    }

    /// Returns the stream of this pool with a number; that of the default stream is 0. Streams of the context that are
    /// not the pool's are not among them.
    ///
    /// ```
    /// # use bursar::DeviceId;
    /// # use bursar::device::DeviceContext;
    /// # use bursar::error::StreamNumber;
    /// # use bursar::stream::StreamPool;
    /// # let context = DeviceContext::open(bursar::sim::Sim::immediate(), DeviceId(0))?;
    /// let pool = StreamPool::new(context);
    /// let lease = pool.lease()?;
    /// assert_eq!(pool.resolve(lease.number()), Some(*lease));
    /// assert!(pool.resolve(StreamNumber(0)).is_some_and(|stream| stream.is_default()));
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn resolve(&self, number: StreamNumber) -> Option<Stream> {
        let default = self.shared.context.default_stream();
        if number == default.number() {
            return Some(default);
        }
        self.state().streams.iter().copied().find(|stream| stream.number() == number)
    }

    /// Returns whether a stream is of this pool, or the device's default stream.
    pub fn contains(&self, stream: impl Into<Stream>) -> bool {
        let stream = stream.into();
        self.resolve(stream.number()) == Some(stream)
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

fn check_priority(context: &DeviceContext, priority: i32) -> Result<()> {
    match context.facts().stream_priorities.contains(&priority) {
        true => Ok(()),
        false => Err(Error::InvalidValue { what: "the priority is outside the device's range" }),
    }
}

impl State {
    /// Takes out the stream of a priority that is idle the longest.
    fn take_idle(&mut self, priority: i32) -> Option<PooledStream> {
        let at = self.idle.iter().position(|pooled| pooled.priority == priority)?;
        self.idle.remove(at)
    }
}

/// Returns the streams that were not acquired to the context, whose next pool uses them: nobody has them on lease. No
/// handle is left that shared them, so dropped transfers are waited for: their memory may be what keeps the context
/// alive.
impl Drop for Shared {
    fn drop(&mut self) {
        self.context.collect_transfers(Duration::MAX);
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for PooledStream { stream, priority } in state.idle.drain(..) {
            if let Err(error) = self.context.return_stream(stream, priority) {
                tracing::warn!(device = %self.context.device(), "{stream} could not be returned: {error}");
            }
        }
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

    /// Enters a stream. The slot turns into the stream at once, so that nobody counts both.
    fn enter(self, stream: Stream, mode: Mode) {
        let mut state = self.pool.state();
        std::mem::forget(self);
        state.reserved -= 1;
        state.leased += usize::from(mode == Mode::Lease);
        state.streams.push(stream);
    }
}

impl Drop for ReservedSlot<'_> {
    fn drop(&mut self) {
        self.pool.state().reserved -= 1;
    }
}
