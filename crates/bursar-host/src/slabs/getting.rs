//! A buffer of a pool, to be waited for.

use super::{Shelf, class};
use crate::workers::Making;
use crate::{HostError, PinnedBuffer};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A buffer that a pool has, or that is being made for it: [wait](Self::wait) for it or poll it. Dropping it gives the
/// request up.
///
/// ```
/// use bursar_core::{DeviceContext, DeviceId};
/// use bursar_host::{NumaWorkerPool, PinnedOptions, PinnedPool};
/// use bursar_sim::Sim;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let pool = PinnedPool::new(NumaWorkerPool::global()?, &context, PinnedOptions::default());
/// let soon = pool.get_async(4096);
/// assert_eq!(soon.wait()?.len(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a request is given up when this is dropped"]
pub struct Getting {
    state: State,
}

enum State {
    Hit(PinnedBuffer),
    Growing { making: Making, shelf: Arc<Shelf>, len: usize },
    Refused(HostError),
    Over,
}

impl Getting {
    pub(super) fn hit(buffer: PinnedBuffer) -> Self {
        Self { state: State::Hit(buffer) }
    }

    pub(super) fn growing(making: Making, shelf: &Arc<Shelf>, len: usize) -> Self {
        Self { state: State::Growing { making, shelf: shelf.clone(), len } }
    }

    pub(super) fn refused(error: HostError) -> Self {
        Self { state: State::Refused(error) }
    }

    /// Waits for the buffer, at most until the deadline.
    pub fn wait(self) -> Result<PinnedBuffer, HostError> {
        match self.state {
            State::Hit(buffer) => Ok(buffer),
            State::Growing { making, shelf, len } => stocked(&shelf, len, making.wait()?),
            State::Refused(error) => Err(error),
            State::Over => Err(HostError::GivenUp),
        }
    }
}

/// The first piece of a slab whose others are kept.
fn stocked(shelf: &Arc<Shelf>, len: usize, slab: crate::sys::Slab) -> Result<PinnedBuffer, HostError> {
    Shelf::stock(shelf, slab, class(len), Some(len)).ok_or(HostError::TooLarge { requested: len as u64 })
}

impl Future for Getting {
    type Output = Result<PinnedBuffer, HostError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Growing { making, shelf, len } = &mut self.state {
            let Poll::Ready(made) = making.poll(context) else { return Poll::Pending };
            let answer = made.and_then(|slab| stocked(shelf, *len, slab));
            self.state = State::Over;
            return Poll::Ready(answer);
        }
        Poll::Ready(Self { state: std::mem::replace(&mut self.state, State::Over) }.wait())
    }
}

impl fmt::Debug for Getting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Hit(_) => "Getting(Hit)",
            State::Growing { .. } => "Getting(Growing)",
            State::Refused(_) => "Getting(Refused)",
            State::Over => "Getting(Over)",
        })
    }
}
