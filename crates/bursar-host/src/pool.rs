//! A pool of pinned memory.
//!
//! Slabs are kept, because making one takes long and giving one back waits for the device. A slab is cut into pieces of one
//! size: a large piece is a slab of its own, small ones share a slab of about 2 MiB. Sizes are exact up to a cache line.

mod get_request;
mod prime_request;

pub use get_request::GetRequest;
pub use prime_request::PrimeRequest;

use crate::cache::PieceCache;
use crate::workers::{PendingSlab, SlabSpec};
use crate::{HostError, NumaWorkerPool, PinnedBuffer, PinnedOptions, PinnedPoolCounts};
use bursar_core::{Bytes, DeviceContext, Error, Stream};
use std::sync::Arc;

/// Pieces begin and end at cache lines, so that no two threads write to one.
const LINE: usize = 64;
/// Small pieces share a slab of about this size.
const SHARED: usize = 2 << 20;

/// Pinned memory that is kept and handed out again, near one device.
///
/// [`get`](Self::get) hands out a buffer that nobody uses, without a system call or a driver call, or has the workers make
/// one. Dropping the buffer puts it back. One that a device may still be using is not handed out: moved into a copy, it
/// stays in the [`Transfer`](bursar_core::Transfer) until that has run, and [given back on a stream](Self::release_on), it
/// is free when the stream has passed that point, which is asked about when somebody needs memory.
///
/// Whole slabs are charged to the [account](PinnedOptions::account). Where there is no memory left, what nobody uses is
/// given back first.
///
/// ```
/// use bursar_core::{Bytes, DeviceContext, DeviceId};
/// use bursar_host::{NumaWorkerPool, PinnedOptions, PinnedPool};
/// use bursar_sim::Sim;
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

/// A buffer that was not taken back, and why.
///
/// ```
/// use bursar_core::{DeviceContext, DeviceId};
/// use bursar_host::{NumaWorkerPool, PinnedOptions, PinnedPool};
/// use bursar_sim::Sim;
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
    /// The buffer, as it was.
    pub buffer: Box<PinnedBuffer>,
    /// Why it was not taken.
    #[source]
    pub error: Error,
}

impl PinnedPool {
    /// A pool with nothing in it. Its memory is made by `workers`, near the device of `context`, as the options say.
    pub fn new(workers: &Arc<NumaWorkerPool>, context: &Arc<DeviceContext>, options: PinnedOptions) -> Self {
        let cache = Arc::new(PieceCache::new(workers.releaser().clone()));
        Self { cache, workers: workers.clone(), context: context.clone(), options }
    }

    /// A buffer of `bytes`: one that nobody uses, or a new one, which is waited for.
    #[inline]
    pub fn get(&self, bytes: usize) -> Result<PinnedBuffer, HostError> {
        match PieceCache::take(&self.cache, class(bytes), bytes) {
            Some(buffer) => Ok(buffer),
            None => self.get_async(bytes).wait(),
        }
    }

    /// A buffer of `bytes` that nobody uses, if there is one at hand.
    #[inline]
    pub fn try_get(&self, bytes: usize) -> Option<PinnedBuffer> {
        PieceCache::take(&self.cache, class(bytes), bytes)
    }

    /// As [`get`](Self::get), as a future.
    pub fn get_async(&self, bytes: usize) -> GetRequest {
        match self.find(bytes) {
            Ok(Some(buffer)) => GetRequest::hit(buffer),
            Ok(None) => GetRequest::growing(self.make(bytes), &self.cache, bytes),
            Err(error) => GetRequest::refused(error),
        }
    }

    /// A buffer that nobody uses by now: streams are asked how far they have come.
    fn find(&self, bytes: usize) -> Result<Option<PinnedBuffer>, HostError> {
        if bytes == 0 {
            return Err(HostError::ZeroBytes);
        }
        if let Some(hit) = self.try_get(bytes) {
            return Ok(Some(hit));
        }
        self.cache.collect()?;
        Ok(self.try_get(bytes))
    }

    fn make(&self, bytes: usize) -> PendingSlab {
        make(&self.workers, &self.context, &self.options, bytes, Some(self.cache.clone()))
    }

    /// Takes a buffer back that work on a stream may still be using: it is handed out again when the stream has passed
    /// everything it was given by now. The stream may be any device's.
    ///
    /// A buffer of another pool, or a stream that cannot be used, is refused, and the buffer comes back.
    pub fn release_on(
        &self,
        buffer: PinnedBuffer,
        context: &Arc<DeviceContext>,
        stream: Stream,
    ) -> Result<(), RefusedBuffer> {
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

    /// Makes `count` buffers of `bytes` in the background and keeps them. Dropping the answer leaves it at that. What the
    /// machine or a control group has no room for as a whole is refused, and nothing is made.
    pub fn prime(&self, bytes: usize, count: usize) -> PrimeRequest {
        let slabs = match self.slabs_for(bytes, count) {
            Ok(slabs) => slabs,
            Err(error) => return PrimeRequest::refused(error, &self.cache),
        };
        let (workers, cache) = (Arc::downgrade(&self.workers), self.cache.clone());
        let (context, options) = (self.context.clone(), self.options.clone());
        let next = move || {
            let workers = workers.upgrade().filter(|_| !cache.is_closed())?;
            // What is free was asked for, perhaps just now, and does not go to make room for more of it.
            Some(make(&workers, &context, &options, bytes, None))
        };
        PrimeRequest::start(slabs, next, &self.cache, class(bytes))
    }

    /// How many slabs hold `count` pieces for `bytes`, if there is room for them.
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

    /// Gives slabs of which nobody uses any piece back until at most `keep` of them are left, the largest first. That
    /// waits for the work of the device, so another thread does it; answers how much is on its way.
    pub fn trim(&self, keep: Bytes) -> Bytes {
        // What cannot be asked about stays.
        let _ = self.cache.collect();
        let (evictable, bytes) = self.cache.take_whole_slabs(keep);
        self.workers.releaser().submit(evictable);
        bytes
    }

    /// Waits until what was trimmed has really been given back.
    pub fn flush(&self) {
        self.workers.releaser().flush();
    }

    /// How much it holds.
    pub fn counts(&self) -> PinnedPoolCounts {
        self.cache.counts()
    }
}

/// Asks for a slab that holds pieces for `bytes`. Where there is no memory left, what `spare` keeps and nobody uses goes first.
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
    /// What nobody uses is given back by another thread. What streams may be using is waited for, and buffers that are out
    /// are given back when they come.
    fn drop(&mut self) {
        self.cache.close();
    }
}

/// The size that a request is met with: whole cache lines. What overflows is refused when it is made.
#[inline]
const fn class(bytes: usize) -> usize {
    match bytes.checked_next_multiple_of(LINE) {
        Some(class) => class,
        None => bytes,
    }
}

/// The size of the slab that pieces of a class are cut from.
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
