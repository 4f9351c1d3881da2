//! Streams on lease.

use super::{PooledStream, StreamPool};
use bursar_core::{DeviceContext, Stream};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A stream of a [`StreamPool`] that goes back when this is dropped. Whatever takes a [`Stream`] takes a borrowed
/// lease.
///
/// Giving it back waits for nothing: the next holder's work runs after this one's, as it is the same stream. Memory
/// that was allocated on it may outlive the lease.
///
/// ```
/// use bursar::sim::Sim;
/// use bursar::{DevicePool, Stack, leaf, tag};
///
/// let gpus = DevicePool::open(Sim::immediate(), &Stack::new().over(leaf::Async))?;
/// let gpu = gpus.round_robin();
/// let lease = gpu.streams().lease()?;
/// let stream = *lease;
///
/// let buffer = gpu.buffer::<u8>(64, &lease, tag!("scratch"))?;
/// drop(lease);
/// assert_eq!(buffer.stream(), stream);
/// assert_eq!(gpu.streams().lease()?.number(), stream.number());
/// # Ok::<(), bursar::Error>(())
/// ```
#[must_use = "a lease ends when it is dropped"]
pub struct StreamLease {
    pool: StreamPool,
    pooled: PooledStream,
}

impl StreamLease {
    pub(super) const fn new(pool: StreamPool, pooled: PooledStream) -> Self {
        Self { pool, pooled }
    }

    /// Returns the stream's priority.
    pub const fn priority(&self) -> i32 {
        self.pooled.priority
    }

    /// Returns the context of the stream's device.
    #[inline]
    pub(crate) fn context(&self) -> &Arc<DeviceContext> {
        self.pool.context()
    }

    /// Returns the stream.
    #[inline]
    pub fn stream(&self) -> Stream {
        self.pooled.stream
    }
}

impl Deref for StreamLease {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.pooled.stream
    }
}

impl From<&StreamLease> for Stream {
    fn from(lease: &StreamLease) -> Self {
        lease.pooled.stream
    }
}

impl fmt::Debug for StreamLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PooledStream { stream, priority } = &self.pooled;
        f.debug_struct("StreamLease").field("stream", stream).field("priority", priority).finish_non_exhaustive()
    }
}

impl Drop for StreamLease {
    fn drop(&mut self) {
        self.pool.give_back(self.pooled);
    }
}
