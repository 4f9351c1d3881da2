//! Growth in the background: slabs that put themselves on the shelf when they are made.

use super::Shelf;
use crate::HostError;
use crate::workers::Making;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Memory that a pool is being given in the background. Dropping this leaves it at that; [`wait`](Self::wait) says how it
/// went.
///
/// ```
/// use bursar_core::{Bytes, DeviceContext, DeviceId};
/// use bursar_host::{NumaWorkerPool, PinnedOptions, PinnedPool};
/// use bursar_sim::Sim;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let pool = PinnedPool::new(NumaWorkerPool::global()?, &context, PinnedOptions::default());
/// pool.prime(4 << 20, 2).wait()?;
/// assert_eq!(pool.counts().free, Bytes::mib(8));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Priming {
    parts: Vec<Arc<Part>>,
}

/// One slab of it. The worker that has made it wakes this, which puts the slab on the shelf, in the worker's thread.
struct Part {
    state: Mutex<State>,
    done: Condvar,
    shelf: Arc<Shelf>,
    class: usize,
}

enum State {
    Making(Making),
    /// Taken out to be polled; a wake meanwhile has it polled again.
    Polled {
        again: bool,
    },
    Done(Result<(), HostError>),
}

impl Priming {
    pub(super) fn start(makings: impl Iterator<Item = Making>, shelf: &Arc<Shelf>, class: usize) -> Self {
        let part = |making| {
            let part =
                Part { state: Mutex::new(State::Making(making)), done: Condvar::new(), shelf: shelf.clone(), class };
            let part = Arc::new(part);
            part.look();
            part
        };
        Self { parts: makings.map(part).collect() }
    }

    /// Waits until all of it is there; the first failure is the answer, and what could be made is kept.
    pub fn wait(self) -> Result<(), HostError> {
        self.parts.iter().map(|part| part.wait()).fold(Ok(()), Result::and)
    }
}

impl Part {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the request, and puts the slab on the shelf if it is made.
    fn look(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut state = self.state();
        loop {
            let mut making = match std::mem::replace(&mut *state, State::Polled { again: false }) {
                State::Making(making) => making,
                State::Polled { .. } => return *state = State::Polled { again: true },
                done => return *state = done,
            };
            drop(state);
            let polled = making.poll(&Context::from_waker(&waker));
            let next = match polled {
                Poll::Ready(made) => {
                    State::Done(made.map(|slab| drop(Shelf::stock(&self.shelf, slab, self.class, None))))
                }
                Poll::Pending => State::Making(making),
            };
            state = self.state();
            let again = matches!(*state, State::Polled { again: true });
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
            if let State::Done(answer) = &*state {
                return answer.clone();
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Wake for Part {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

impl fmt::Debug for Priming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Priming").field("slabs", &self.parts.len()).finish()
    }
}
