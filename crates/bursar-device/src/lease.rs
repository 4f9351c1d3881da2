//! A stream for a while.

use crate::{StreamPool, Work};
use bursar_core::Stream;
use std::fmt;
use std::ops::Deref;

/// A stream of a [`StreamPool`] that goes back when this is dropped. Whatever takes a [`Stream`] takes a borrowed lease.
///
/// Giving it back waits for nothing: the next holder's work runs after this one's, as it is the same stream. Memory that
/// was allocated on it may outlive the lease.
///
/// ```
/// use bursar_core::{Stack, leaf, tag};
/// use bursar_device::DevicePool;
/// use bursar_sim::Sim;
///
/// let gpus = DevicePool::open(Sim::immediate(), &Stack::new().over(leaf::Async))?;
/// let gpu = gpus.round_robin();
/// let lease = gpu.streams().lease()?;
/// let (id, stream) = (lease.id(), *lease);
///
/// let buffer = gpu.buffer::<u8>(64, &lease, tag!("scratch"))?;
/// drop(lease);
/// assert_eq!(buffer.stream(), stream);
/// assert_eq!(gpu.streams().lease()?.id(), id);
/// # Ok::<(), bursar_core::Error>(())
/// ```
#[must_use = "a lease ends when it is dropped"]
pub struct StreamLease {
    pool: StreamPool,
    id: u32,
    stream: Stream,
}

impl StreamLease {
    pub(crate) fn new(pool: StreamPool, id: u32, stream: Stream) -> Self {
        Self { pool, id, stream }
    }

    /// Its number in the pool.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Submits work: whatever buffers it uses, it says so through the [`Work`] it is given, which orders it after their
    /// uses on other streams. The uses count when this returns, also by an error or a panic, because something may have
    /// been launched by then. The answer is that of `submit`.
    ///
    /// ```
    /// use bursar_core::{DeviceId, Stack, leaf, tag};
    /// use bursar_device::Gpu;
    /// use bursar_sim::Sim;
    ///
    /// let gpu = Gpu::open(Sim::seeded(3), DeviceId(0), &Stack::new().over(leaf::Async))?;
    /// let (a, b) = (gpu.streams().lease()?, gpu.streams().lease()?);
    ///
    /// let mut weights = gpu.buffer::<f32>(1024, &a, tag!("weights"))?;
    /// a.submit(|work| work.fill(&mut weights, 1.0))?;
    /// let ones = b.submit(|work| work.read_back(&weights))?;
    /// drop(weights);
    /// assert_eq!(ones.wait()?, [1.0; 1024]);
    /// # Ok::<(), bursar_core::Error>(())
    /// ```
    #[inline]
    pub fn submit<R>(&self, submit: impl FnOnce(&mut Work<'_>) -> R) -> R {
        submit(&mut Work::new(self.pool.context(), self.stream))
    }

    /// The stream.
    pub fn stream(&self) -> Stream {
        self.stream
    }
}

impl Deref for StreamLease {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.stream
    }
}

impl From<&StreamLease> for Stream {
    fn from(lease: &StreamLease) -> Self {
        lease.stream
    }
}

impl fmt::Debug for StreamLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamLease").field("id", &self.id).field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Drop for StreamLease {
    fn drop(&mut self) {
        self.pool.give_back(self.id);
    }
}
