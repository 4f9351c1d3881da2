//! Requests for a buffer of a pool.

use super::class;
use crate::cache::PieceCache;
use crate::memory::Slab;
use crate::workers::PendingSlab;
use crate::{HostError, PinnedBuffer};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A request for a buffer of a pool: [wait](Self::wait) for it or poll it. Dropping it gives the request up.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::device::DeviceContext;
/// use bursar::host::{NumaWorkerPool, PinnedOptions, PinnedPool};
/// use bursar::sim::Sim;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let pool = PinnedPool::new(NumaWorkerPool::global()?, &context, PinnedOptions::default());
/// let soon = pool.get_async(4096);
/// assert_eq!(soon.wait()?.len(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a request is given up when this is dropped"]
pub struct GetRequest {
    state: State,
}

enum State {
    Hit(PinnedBuffer),
    Growing { pending: PendingSlab, cache: Arc<PieceCache>, len: usize },
    Refused(HostError),
    Taken,
}

impl GetRequest {
    pub(super) fn hit(buffer: PinnedBuffer) -> Self {
        Self { state: State::Hit(buffer) }
    }

    pub(super) fn growing(pending: PendingSlab, cache: &Arc<PieceCache>, len: usize) -> Self {
        Self { state: State::Growing { pending, cache: cache.clone(), len } }
    }

    pub(super) fn refused(error: HostError) -> Self {
        Self { state: State::Refused(error) }
    }

    /// Waits for the buffer, at most until the deadline.
    pub fn wait(self) -> Result<PinnedBuffer, HostError> {
        match self.state {
            State::Hit(buffer) => Ok(buffer),
            State::Growing { pending, cache, len } => insert_and_take(&cache, len, pending.wait()?),
            State::Refused(error) => Err(error),
            State::Taken => Err(HostError::GivenUp),
        }
    }
}

/// Adds a slab to the cache, and returns its first piece as a buffer.
fn insert_and_take(cache: &Arc<PieceCache>, len: usize, slab: Slab) -> Result<PinnedBuffer, HostError> {
    PieceCache::insert_slab(cache, slab, class(len), Some(len)).ok_or(HostError::TooLarge { requested: len as u64 })
}

impl Future for GetRequest {
    type Output = Result<PinnedBuffer, HostError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Growing { pending, cache, len } = &mut self.state {
            let Poll::Ready(made) = pending.poll(context) else { return Poll::Pending };
            let result = made.and_then(|slab| insert_and_take(cache, *len, slab));
            self.state = State::Taken;
            return Poll::Ready(result);
        }
        Poll::Ready(Self { state: std::mem::replace(&mut self.state, State::Taken) }.wait())
    }
}

impl fmt::Debug for GetRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Hit(_) => "GetRequest(Hit)",
            State::Growing { .. } => "GetRequest(Growing)",
            State::Refused(_) => "GetRequest(Refused)",
            State::Taken => "GetRequest(Taken)",
        })
    }
}
