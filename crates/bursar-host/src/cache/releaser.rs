//! The thread that releases pinned memory, which takes as long as the device works.

use super::in_flight::Lane;
use crate::memory::Piece;
use crate::thread::join;
use bursar_core::Bytes;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest that a wait takes to notice that it is not wanted any more.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// A thread, started when it is first needed, that drops pieces, all there are at a time: the first waits for the device,
/// and the others then need not.
#[derive(Debug, Default)]
pub(crate) struct Releaser {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The pieces of pools that are gone, on streams that could not be waited for.
    stranded: Mutex<Vec<Lane>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pieces: Vec<Piece>,
    /// The number of batches submitted, and the number of those released.
    submitted: u64,
    released: u64,
    closed: bool,
}

impl Releaser {
    /// Submits pieces for release. Where no thread can be started, they are released here.
    pub(crate) fn submit(&self, pieces: Vec<Piece>) {
        if pieces.is_empty() || !self.has_thread() {
            return drop(pieces);
        }
        let mut state = self.shared.state();
        state.pieces.extend(pieces);
        state.submitted += 1;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Waits for streams and releases the pieces that they may have been using. Those of a stream that cannot be waited for
    /// are kept, and tried again with the next. Returns the bytes that are kept.
    pub(super) fn settle(&self, lanes: Vec<Lane>) -> Bytes {
        let mut tried = std::mem::take(&mut *self.stranded());
        tried.extend(lanes);
        let (mut reusable, mut left) = (Vec::new(), Vec::new());
        for lane in tried {
            match lane.settle() {
                Ok(pieces) => reusable.extend(pieces),
                Err(lane) => left.push(lane),
            }
        }
        self.submit(reusable);
        let mut stranded = self.stranded();
        stranded.extend(left);
        Bytes(stranded.iter().map(Lane::bytes).sum())
    }

    /// Tries again to release the pieces that are kept. Returns the bytes of those that still are.
    pub(crate) fn retry_stranded(&self) -> Bytes {
        let left = self.settle(Vec::new());
        self.flush();
        left
    }

    fn stranded(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.stranded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_thread(&self) -> bool {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = self.shared.clone();
            *thread = std::thread::Builder::new().name("pinned-release".to_owned()).spawn(move || shared.run()).ok();
        }
        thread.is_some()
    }

    /// Waits until everything submitted so far is released.
    pub(crate) fn flush(&self) {
        let mut state = self.shared.state();
        let upto = state.submitted;
        while state.released < upto {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the number of batches that are released so far.
    pub(crate) fn released(&self) -> u64 {
        self.shared.state().released
    }

    /// Waits as [`flush`](Self::flush) does, unless `go_on` fails, which is asked every few milliseconds.
    pub(crate) fn flush_while<E>(&self, go_on: impl Fn() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.shared.state();
        let upto = state.submitted;
        while state.released < upto {
            state = self.shared.changed.wait_timeout(state, ASK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
            go_on()?;
        }
        Ok(())
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.state();
        loop {
            if !state.pieces.is_empty() {
                let (pieces, upto) = (std::mem::take(&mut state.pieces), state.submitted);
                drop(state);
                if catch_unwind(AssertUnwindSafe(|| drop(pieces))).is_err() {
                    tracing::error!("a driver panicked over memory that was given back");
                }
                state = self.state();
                state.released = upto;
                self.changed.notify_all();
            } else if state.closed {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for Releaser {
    fn drop(&mut self) {
        self.settle(Vec::new());
        self.stranded().drain(..).for_each(Lane::leak);
        self.shared.state().closed = true;
        self.shared.changed.notify_all();
        join(self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}
