//! A bounded number of streams of one device.

use crate::stranded::Stranded;
use crate::{StreamLease, priming};
use bursar_core::{Bytes, DeviceContext, DeviceMemoryResource, Error, MIN_ALIGN, Result, Stream, TrackedBlock, tag};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many streams a [`StreamPool`] may make, and of what kind.
///
/// ```
/// use bursar_device::StreamOptions;
///
/// let few = StreamOptions { max_streams: 4, ..StreamOptions::default() };
/// assert_eq!(few.priority, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// The most streams there may be; at least one, 16 unless something else is said.
    pub max_streams: usize,
    /// The priority of each, within the device's range: lower numbers are more urgent.
    pub priority: i32,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { max_streams: 16, priority: 0 }
    }
}

/// Streams of one device, created when they are needed, at most so many. Clones share them.
///
/// A stream can be [acquired](Self::acquire), for good, or [leased](Self::lease), for a while. Each has a number in the
/// pool, from 1 on, which stays resolvable for the pool's life; 0 is the device's default stream. The streams themselves
/// live as long as the device's context.
///
/// A stream that somebody else made takes no place here: it is adopted by
/// [`DeviceContext::adopt_stream`](bursar_core::DeviceContext::adopt_stream), whose caller drops the adoption before the
/// stream is destroyed.
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
    stranded: Stranded,
}

/// Every stream in `streams` is acquired, leased or idle; its number is its place there, counted from one.
#[derive(Default)]
struct State {
    streams: Vec<Stream>,
    idle: VecDeque<u32>,
    leased: usize,
    reserved: usize,
}

/// For whom a stream is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drawn {
    Acquired,
    Leased,
}

impl StreamPool {
    /// At most sixteen streams of the device's default priority.
    pub fn new(context: Arc<DeviceContext>) -> Self {
        Self::make(context, StreamOptions::default())
    }

    /// A pool as `options` say; none at all, or a priority outside the device's range, is an error.
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
                bytes_per_stream: priming::bytes_per_stream(),
                state: Mutex::default(),
                stranded: Stranded::default(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream for the caller to keep: nobody is given it again. A new one where there is room, otherwise one that a
    /// lease gave back; [`Error::Capacity`] if there is neither, [`Error::CreateFailed`] if the driver fails.
    pub fn acquire(&self) -> Result<Stream> {
        self.draw(Drawn::Acquired).map(|(_, stream)| stream)
    }

    /// A stream until the lease is dropped: one that was given back, the longest idle first, or else a new one. Work of
    /// the last holder that has not run yet runs first, since it is the same stream.
    pub fn lease(&self) -> Result<StreamLease> {
        self.draw(Drawn::Leased).map(|(id, stream)| StreamLease::new(self.clone(), id, stream))
    }

    fn draw(&self, drawn: Drawn) -> Result<(u32, Stream)> {
        let StreamOptions { max_streams, priority } = self.shared.options;
        let place = {
            let mut state = self.state();
            let has_room = state.streams.len() + state.reserved < max_streams;
            if (drawn == Drawn::Leased || !has_room)
                && let Some(id) = state.idle.pop_front()
            {
                state.leased += usize::from(drawn == Drawn::Leased);
                return Ok((id, state.streams[id as usize - 1]));
            }
            if !has_room {
                return Err(Error::Capacity { max: max_streams });
            }
            Place::reserve(self, &mut state)
        };
        let stream = self.shared.context.create_stream(priority)?;
        Ok((place.enter(stream, drawn), stream))
    }

    pub(crate) fn give_back(&self, id: u32) {
        let mut state = self.state();
        state.leased -= 1;
        state.idle.push_back(id);
    }

    /// The stream with a number: 0 is the default stream, the others are `1..=created()`.
    pub fn resolve(&self, id: u32) -> Option<Stream> {
        match id.checked_sub(1) {
            Some(place) => self.state().streams.get(place as usize).copied(),
            None => Some(self.shared.context.default_stream()),
        }
    }

    /// The number of a stream of this pool, or of the device's default stream.
    pub fn id_of(&self, stream: Stream) -> Option<u32> {
        if stream == self.shared.context.default_stream() {
            return Some(0);
        }
        let place = self.state().streams.iter().position(|known| *known == stream)?;
        Some(place as u32 + 1)
    }

    /// The device's context.
    pub fn context(&self) -> &Arc<DeviceContext> {
        &self.shared.context
    }

    /// The most streams there may be.
    pub fn max_streams(&self) -> usize {
        self.shared.options.max_streams
    }

    /// How many streams there are.
    pub fn created(&self) -> usize {
        self.state().streams.len()
    }

    /// How many of them were acquired.
    pub fn acquired(&self) -> usize {
        let state = self.state();
        state.streams.len() - state.idle.len() - state.leased
    }

    /// How many of them are on lease.
    pub fn leased(&self) -> usize {
        self.state().leased
    }

    /// How many of them wait for the next holder.
    pub fn idle(&self) -> usize {
        self.state().idle.len()
    }

    /// How much memory a stream is expected to need: `BURSAR_POOL_MB_PER_STREAM` when the pool was made, in MiB, or
    /// 256 MiB.
    pub fn bytes_per_stream(&self) -> Bytes {
        self.shared.bytes_per_stream
    }

    /// What `arms` that use `streams` each are expected to need, or the largest size if that does not fit.
    pub fn planned_pool_bytes(&self, arms: u64, streams: u64) -> Bytes {
        self.bytes_per_stream().saturating_mul(arms).saturating_mul(streams)
    }

    /// Warms the memory of a stream: allocates and frees [`bytes_per_stream`](Self::bytes_per_stream) on it, so that a
    /// pool has them at hand. If the free is refused, which is then the answer, the block is kept and tried again by the
    /// next call, or when the pool is let go.
    pub fn prime(&self, memory: &Arc<dyn DeviceMemoryResource>, stream: impl Into<Stream>) -> Result<()> {
        if !Arc::ptr_eq(memory.context(), self.context()) {
            return Err(Error::InvalidValue { what: "the memory belongs to another context" });
        }
        self.retry_stranded();
        let (stream, bytes) = (stream.into(), self.bytes_per_stream().get());
        let block = memory.allocate(bytes, MIN_ALIGN, stream, tag!("prime"))?;
        self.give_back_block(memory, TrackedBlock::new(&**memory, block), stream)
    }

    /// How many blocks could not be given back yet, by [`prime`](Self::prime) or by buffers that are gone.
    pub fn stranded(&self) -> usize {
        self.shared.stranded.len()
    }

    #[inline]
    pub(crate) fn retry_stranded(&self) {
        self.shared.stranded.retry();
    }

    /// Gives a block of this context back in the order of `stream`, or keeps it and answers why.
    pub(crate) fn give_back_block(
        &self,
        memory: &Arc<dyn DeviceMemoryResource>,
        block: TrackedBlock,
        stream: Stream,
    ) -> Result<()> {
        self.shared.stranded.give_back(memory, block, stream)
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
struct Place<'a> {
    pool: &'a StreamPool,
}

impl<'a> Place<'a> {
    fn reserve(pool: &'a StreamPool, state: &mut State) -> Self {
        state.reserved += 1;
        Self { pool }
    }

    /// Enters a stream and answers its number. The place turns into the stream at once, so that nobody counts both.
    fn enter(self, stream: Stream, drawn: Drawn) -> u32 {
        let mut state = self.pool.state();
        std::mem::forget(self);
        state.reserved -= 1;
        state.leased += usize::from(drawn == Drawn::Leased);
        state.streams.push(stream);
        state.streams.len() as u32
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.pool.state().reserved -= 1;
    }
}
