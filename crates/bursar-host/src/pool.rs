//! A pool of pinned memory.
//!
//! Slabs are kept, because creating one takes long and releasing one waits for the device. A slab is cut into pieces of one
//! size: a large piece is a slab of its own, small ones share a slab of about 2 MiB. Sizes are exact up to a cache line.

mod get_request;
mod prime_request;

pub use get_request::GetRequest;
pub use prime_request::PrimeRequest;

use crate::cache::PieceCache;
use crate::workers::{PendingSlab, SlabSpec};
use crate::{HostError, NumaWorkerPool, PinnedBuffer, PinnedOptions, PinnedPoolCounts};
use bursar_core::{Bytes, DeviceContext, Error, HasContext, HostMemory, HostStore, Stream};
use std::sync::Arc;
use std::time::Duration;

/// The alignment of pieces: that of cache lines, so that no two threads write to one.
const LINE: usize = 64;
/// The approximate size of a slab that small pieces share.
const SHARED: usize = 2 << 20;

/// A pool of pinned memory near one device.
///
/// [`get`](Self::get) returns a free buffer, without a system call or a driver call, or lets the workers create one.
/// Dropping the buffer returns it to the pool. A buffer that a device may still be using is not reused: moved into a copy,
/// it stays in the [`Transfer`](bursar_core::Transfer) until that has run; [returned on a stream](Self::release_on), it is
/// free once the stream has passed that point, which is checked when somebody needs memory.
///
/// Whole slabs are charged to the [account](PinnedOptions::account). Where no memory is left, free slabs are released first.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::host::{NumaWorkerPool, PinnedOptions, PinnedPool};
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId};
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let pool = PinnedPool::new(NumaWorkerPool::global()?, &context, PinnedOptions::default());
/// let first = pool.get(5 << 20)?;
/// let address = first.as_ptr();
/// drop(first);
/// assert_eq!(pool.get(5 << 20)?.as_ptr(), address, "handed out again");
/// assert_eq!(pool.counts().held, Bytes::mib(5), "and exactly as large as it was asked for");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PinnedPool {
    cache: Arc<PieceCache>,
    workers: Arc<NumaWorkerPool>,
    context: Arc<DeviceContext>,
    options: PinnedOptions,
}

/// A buffer that could not be returned, and the reason.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::device::DeviceContext;
/// use bursar::host::{NumaWorkerPool, PinnedOptions, PinnedPool};
/// use bursar::sim::Sim;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let pool = PinnedPool::new(NumaWorkerPool::global()?, &context, PinnedOptions::default());
/// let stranger = NumaWorkerPool::global()?.pin(&context, 64).wait()?;
/// let refused = pool.release_on(stranger, &context, context.default_stream()).unwrap_err();
/// assert_eq!(refused.buffer.len(), 64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("the buffer was not taken back: {error}")]
pub struct RefusedBuffer {
    /// The buffer, unchanged.
    pub buffer: Box<PinnedBuffer>,
    /// The reason.
    #[source]
    pub error: Error,
}

impl PinnedPool {
    /// Creates an empty pool. Its memory is created by `workers`, near a device, with these options.
    pub fn new(workers: &Arc<NumaWorkerPool>, device: &impl HasContext, options: PinnedOptions) -> Self {
        let context = device.device_context();
        let cache = Arc::new(PieceCache::new(workers.releaser().clone()));
        Self { cache, workers: workers.clone(), context: context.clone(), options }
    }

    /// Creates an empty pool near a device, of the [workers of this process](NumaWorkerPool::global).
    ///
    /// ```
    /// use bursar::DeviceId;
    /// use bursar::device::DeviceContext;
    /// use bursar::host::PinnedPool;
    /// use bursar::sim::Sim;
    ///
    /// let gpu = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    /// let pool = PinnedPool::near(&gpu)?;
    /// assert_eq!(pool.get(1 << 20)?.len(), 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn near(device: &impl HasContext) -> Result<Self, HostError> {
        Self::near_with(device, PinnedOptions::default())
    }

    /// Creates an empty pool as [`near`](Self::near) does, with options.
    pub fn near_with(device: &impl HasContext, options: PinnedOptions) -> Result<Self, HostError> {
        Ok(Self::new(NumaWorkerPool::global()?, device, options))
    }

    /// Returns a buffer of `bytes`: a free one, or a new one, for which it waits.
    #[inline]
    pub fn get(&self, bytes: usize) -> Result<PinnedBuffer, HostError> {
        match PieceCache::take(&self.cache, class(bytes), bytes) {
            Some(buffer) => Ok(buffer),
            None => self.get_async(bytes).wait(),
        }
    }

    /// Returns a free buffer of `bytes`, if there is one.
    #[inline]
    pub fn try_get(&self, bytes: usize) -> Option<PinnedBuffer> {
        PieceCache::take(&self.cache, class(bytes), bytes)
    }

    /// Returns a request for a buffer of `bytes`, which is ready at once if there is a free one.
    pub fn get_async(&self, bytes: usize) -> GetRequest {
        match self.find(bytes) {
            Ok(Some(buffer)) => GetRequest::hit(buffer),
            Ok(None) => GetRequest::growing(self.make(bytes), &self.cache, bytes),
            Err(error) => GetRequest::refused(error),
        }
    }

    /// Returns a buffer that is free now, after querying streams.
    fn find(&self, bytes: usize) -> Result<Option<PinnedBuffer>, HostError> {
        if bytes == 0 {
            return Err(HostError::ZeroBytes);
        }
        if let Some(hit) = self.try_get(bytes) {
            return Ok(Some(hit));
        }
        self.context.collect_transfers(Duration::ZERO);
        self.cache.collect()?;
        Ok(self.try_get(bytes))
    }

    fn make(&self, bytes: usize) -> PendingSlab {
        make(&self.workers, &self.context, &self.options, bytes, Some(self.cache.clone()))
    }

    /// Returns a buffer that work on a stream may still be using: it is reused when the stream has passed everything
    /// submitted to it so far. The stream may be one of any device.
    ///
    /// A buffer of another pool, or a stream that cannot be used, is refused, and the buffer is in the error.
    pub fn release_on(
        &self,
        buffer: PinnedBuffer,
        device: &impl HasContext,
        stream: impl Into<Stream>,
    ) -> Result<(), RefusedBuffer> {
        let (context, stream) = (device.device_context(), stream.into());
        let refuse = |buffer, error| Err(RefusedBuffer { buffer: Box::new(buffer), error });
        if let Err(error) = context.hold(stream).map(drop) {
            return refuse(buffer, error);
        }
        match buffer.into_piece_of(&self.cache) {
            Ok((piece, bin)) => {
                self.cache.put_after(context, stream, piece, bin);
                Ok(())
            }
            Err(buffer) => refuse(buffer, Error::InvalidValue { what: "the buffer is of another pool, or of none" }),
        }
    }

    /// Creates `count` buffers of `bytes` in the background and keeps them. Dropping the request does not stop that. If the
    /// machine or a control group has too little memory for all of them, nothing is created.
    pub fn prime(&self, bytes: usize, count: usize) -> PrimeRequest {
        let slabs = match self.slabs_for(bytes, count) {
            Ok(slabs) => slabs,
            Err(error) => return PrimeRequest::refused(error, &self.cache),
        };
        let (workers, cache) = (Arc::downgrade(&self.workers), self.cache.clone());
        let (context, options) = (self.context.clone(), self.options.clone());
        let next = move || {
            let workers = workers.upgrade().filter(|_| !cache.is_closed())?;
            // Free memory may have been created by this very request, so it is not released to make room for more.
            Some(make(&workers, &context, &options, bytes, None))
        };
        PrimeRequest::start(slabs, next, &self.cache, class(bytes))
    }

    /// Returns the number of slabs for `count` pieces of `bytes`, if there is enough memory for them.
    fn slabs_for(&self, bytes: usize, count: usize) -> Result<usize, HostError> {
        if count == 0 {
            return Ok(0);
        }
        if bytes == 0 {
            return Err(HostError::ZeroBytes);
        }
        let slab = slab_size(class(bytes));
        let slabs = count.div_ceil((slab / class(bytes)).max(1));
        let total = slab.checked_mul(slabs).filter(|total| isize::try_from(*total).is_ok());
        let total = total.ok_or(HostError::TooLarge { requested: u64::MAX })?;
        self.workers.check_limits(Bytes(total as u64))?;
        Ok(slabs)
    }

    /// Releases slabs without used pieces, the largest first, until at most `keep` bytes of them are left. That waits for
    /// the work of the device, so another thread does it. Returns the bytes that are being released.
    pub fn trim(&self, keep: Bytes) -> Bytes {
        self.context.collect_transfers(Duration::ZERO);
        // Pieces on streams that cannot be queried stay.
        let _ = self.cache.collect();
        let (evictable, bytes) = self.cache.take_whole_slabs(keep);
        self.workers.releaser().submit(evictable);
        bytes
    }

    /// Waits until everything trimmed is released.
    pub fn flush(&self) {
        self.workers.releaser().flush();
    }

    /// Returns the memory of the pool at one moment, whatever other threads do.
    pub fn counts(&self) -> PinnedPoolCounts {
        self.cache.counts()
    }
}

/// Lends pinned memory near the device for contents of memory that sleeps. What comes back is kept, so that falling asleep
/// again pins nothing; [`trim`](PinnedPool::trim) releases it.
///
/// ```
/// use bursar::device::{SleepOptions, WakeOptions};
/// use bursar::host::PinnedPool;
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId, Gpu, PagePool, Stack, leaf, tag};
///
/// let gpu = Gpu::open(Sim::immediate(), DeviceId(0), &Stack::new().layer(PagePool::default()).over(leaf::Frames))?;
/// let pinned = PinnedPool::near(&gpu)?;
/// let stream = gpu.streams().lease()?;
/// let weights = gpu.buffer_from(&[1.0f32; 1 << 20], &stream, tag!("weights"))?;
/// for _ in 0..2 {
///     gpu.sleep(&pinned, &SleepOptions::new())?;
///     assert_eq!(pinned.counts().held, Bytes::mib(4), "the second time it is what the first has pinned");
///     gpu.wake(&WakeOptions::new())?;
/// }
/// assert_eq!(weights.to_vec()?, [1.0; 1 << 20]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl HostStore for PinnedPool {
    fn lend(&self, bytes: usize) -> Result<Box<dyn HostMemory>, Error> {
        Ok(Box::new(self.get(bytes)?))
    }
}

/// Requests a slab for pieces of `bytes`. Where no memory is left, the free slabs of `evictable` are released first.
fn make(
    workers: &NumaWorkerPool,
    context: &Arc<DeviceContext>,
    options: &PinnedOptions,
    bytes: usize,
    evictable: Option<Arc<PieceCache>>,
) -> PendingSlab {
    let (context, options) = (context.clone(), options.clone());
    workers.make(slab_size(class(bytes)), |bytes| SlabSpec { context, bytes, options, evictable })
}

impl Drop for PinnedPool {
    /// Free pieces are released by another thread. Pieces that streams may be using are waited for; where that fails, the
    /// workers keep them, and [`NumaWorkerPool::retry_stranded`] tries again. Buffers in use are released when they are dropped.
    fn drop(&mut self) {
        self.context.collect_transfers(Duration::MAX);
        self.cache.close();
    }
}

/// Returns the size of the piece for a request: whole cache lines. A size that overflows is refused when the slab is
/// created.
#[inline]
const fn class(bytes: usize) -> usize {
    match bytes.checked_next_multiple_of(LINE) {
        Some(class) => class,
        None => bytes,
    }
}

/// Returns the size of the slab that pieces of a class are cut from.
const fn slab_size(class: usize) -> usize {
    if class == 0 || class >= SHARED { class } else { SHARED / class * class }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn n7_no_size_is_rounded_by_more_than_a_line_or_a_page(bytes in 1usize..1 << 40) {
            let (class, slab) = (class(bytes), slab_size(class(bytes)));
            prop_assert!(class >= bytes && class < bytes + LINE);
            prop_assert!(slab % class == 0 && slab >= class, "pieces fill the slab");
            prop_assert!(slab <= class.max(SHARED), "and small ones share no more than they need");
            prop_assert!(slab + class > SHARED.min(slab + 1), "but as much as they can");
        }
    }
}
