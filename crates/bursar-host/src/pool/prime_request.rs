//! Growth of a pool in the background.

use crate::HostError;
use crate::cache::PieceCache;
use crate::workers::PendingSlab;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// A request for memory that a pool gets in the background. Dropping it does not stop that; [`wait`](Self::wait) returns the
/// outcome.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::host::{NumaWorkerPool, PinnedOptions, PinnedPool};
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId};
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let pool = PinnedPool::new(NumaWorkerPool::global()?, &context, PinnedOptions::default());
/// pool.prime(4 << 20, 2).wait()?;
/// assert_eq!(pool.counts().free, Bytes::mib(8));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PrimeRequest {
    task: Arc<PrimeTask>,
}

/// The slabs of a request, created one after another: one worker creates them, so more at a time would only wait. When the
/// worker has finished one, it wakes this, which adds the slab to the cache and requests the next, on the worker's thread.
struct PrimeTask {
    state: Mutex<State>,
    done: Condvar,
    cache: Arc<PieceCache>,
    class: usize,
    /// Requests one more slab; `None` where the workers or the pool are gone.
    next: Box<dyn Fn() -> Option<PendingSlab> + Send + Sync>,
}

enum State {
    PendingSlab {
        pending: PendingSlab,
        /// The number of slabs to be created after it.
        left: usize,
    },
    /// Taken out to be polled; if it is woken meanwhile, it is polled again.
    Polled {
        again: bool,
    },
    Done(Result<(), HostError>),
}

impl PrimeRequest {
    /// Creates `slabs` slabs, each cut into pieces of `class`.
    pub(super) fn start(
        slabs: usize,
        next: impl Fn() -> Option<PendingSlab> + Send + Sync + 'static,
        cache: &Arc<PieceCache>,
        class: usize,
    ) -> Self {
        let task = Self::with(State::Done(Ok(())), next, cache, class);
        *task.state() = task.make(slabs);
        task.advance();
        Self { task }
    }

    /// Returns a request that failed at once.
    pub(super) fn refused(error: HostError, cache: &Arc<PieceCache>) -> Self {
        Self { task: Self::with(State::Done(Err(error)), || None, cache, 0) }
    }

    fn with(
        state: State,
        next: impl Fn() -> Option<PendingSlab> + Send + Sync + 'static,
        cache: &Arc<PieceCache>,
        class: usize,
    ) -> Arc<PrimeTask> {
        let (state, done, next) = (Mutex::new(state), Condvar::new(), Box::new(next));
        Arc::new(PrimeTask { state, done, cache: cache.clone(), class, next })
    }

    /// Waits until all of it is there. Returns the first failure; nothing is created after it, and earlier slabs are kept.
    pub fn wait(self) -> Result<(), HostError> {
        self.task.wait()
    }
}

impl PrimeTask {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests the next of `slabs` slabs.
    fn make(&self, slabs: usize) -> State {
        match slabs.checked_sub(1) {
            None => State::Done(Ok(())),
            Some(left) => (self.next)()
                .map_or(State::Done(Err(HostError::Closed)), |pending| State::PendingSlab { pending, left }),
        }
    }

    /// Polls the slab. If it is ready, adds it to the cache and goes on with the next.
    fn advance(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut state = self.state();
        loop {
            let (mut pending, left) = match std::mem::replace(&mut *state, State::Polled { again: false }) {
                State::PendingSlab { pending, left } => (pending, left),
                State::Polled { .. } => return *state = State::Polled { again: true },
                done => return *state = done,
            };
            drop(state);
            let (next, is_new) = match pending.poll(&Context::from_waker(&waker)) {
                Poll::Pending => (State::PendingSlab { pending, left }, false),
                Poll::Ready(Err(error)) => (State::Done(Err(error)), false),
                Poll::Ready(Ok(slab)) => {
                    drop(PieceCache::insert_slab(&self.cache, slab, self.class, None));
                    (self.make(left), true)
                }
            };
            state = self.state();
            let again = is_new || matches!(*state, State::Polled { again: true });
            let is_done = matches!(next, State::Done(_));
            *state = next;
            if is_done {
                self.done.notify_all();
            }
            if !again || is_done {
                return;
            }
        }
    }

    fn wait(&self) -> Result<(), HostError> {
        let mut state = self.state();
        loop {
            if let State::Done(result) = &*state {
                return result.clone();
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Wake for PrimeTask {
    fn wake(self: Arc<Self>) {
        self.advance();
    }
}

impl fmt::Debug for PrimeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Priming").field("class", &self.task.class).finish_non_exhaustive()
    }
}
