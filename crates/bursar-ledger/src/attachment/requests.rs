//! The callbacks that meet requests of other processes, and the thread that runs them.
//!
//! The listener takes a request and starts a thread for it, which ends with it: a sleep takes seconds, and meanwhile the
//! listener has futures to wake and memory to give back.

use super::{Attachment, LockWait};
use crate::book::{ProcessRequest, RequestKey};
use crate::remote::{RemoteEnd, RemoteReport, RemoteRequest};
use bursar_core::{Error, Result};
use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The interval between tries to say how a request ended, where the lock is not available.
const RETRY_EVERY: Duration = Duration::from_millis(20);

pub(crate) type RequestCallback = dyn Fn(RemoteRequest) -> Result<RemoteReport> + Send + Sync;

thread_local! {
    /// The attachment and the request that this thread runs callbacks for.
    static SERVING: Cell<Option<(usize, RequestKey)>> = const { Cell::new(None) };
}

/// The callbacks of this process.
#[derive(Default)]
pub(crate) struct Requests {
    /// Locked for moments, with nothing else locked.
    state: Mutex<RequestsState>,
}

#[derive(Default)]
struct RequestsState {
    next: u64,
    callbacks: Vec<(u64, Arc<RequestCallback>)>,
    /// The request that is being met.
    serving: Option<RequestKey>,
}

impl Requests {
    fn state(&self) -> MutexGuard<'_, RequestsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").finish_non_exhaustive()
    }
}

impl Attachment {
    /// Registers a callback and returns its number. From the first on, this process takes requests.
    pub(crate) fn register_requests(&self, callback: Arc<RequestCallback>) -> u64 {
        let mut state = self.requests.state();
        state.next += 1;
        let number = state.next;
        state.callbacks.push((number, callback));
        if !self.is_forked() {
            self.book.set_listens(true);
        }
        number
    }

    /// Removes a callback; with the last of them, this process takes no requests any more.
    pub(crate) fn unregister_requests(&self, number: u64) {
        let mut state = self.requests.state();
        state.callbacks.retain(|(other, _)| *other != number);
        if state.callbacks.is_empty() && !self.is_forked() {
            self.book.set_listens(false);
            // A request that was made meanwhile is answered by the listener.
            drop(state);
            self.wakeups.wake_listener(&self.book);
        }
    }

    /// Returns whether this thread meets a request that nobody waits for any more, so that a wait may end.
    pub(crate) fn is_given_up(&self) -> bool {
        SERVING.get().is_some_and(|(of, key)| of == self.address() && self.book.is_withdrawn(key))
    }

    /// Returns the same after looking whether who asked is alive, which takes the lock.
    pub(crate) fn is_given_up_now(&self) -> bool {
        if self.is_serving() && !self.is_given_up() {
            // Where the lock is not available, whoever has it sees the dead, and the next look finds what was entered then.
            let _outcome = self.with_lock(LockWait::poll(self), |locked| locked.reclaim_dead_processes());
        }
        self.is_given_up()
    }

    /// Returns whether this thread meets a request of another process.
    pub(crate) fn is_serving(&self) -> bool {
        SERVING.get().is_some_and(|(of, _)| of == self.address())
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Takes the request that was made of this process, if there is one, and starts a thread that meets it. Returns whether
    /// the lock was not available, so that this has to be tried again.
    pub(super) fn serve_request(self: &Arc<Self>) -> bool {
        let serving = self.requests.state().serving;
        if serving.is_some_and(|key| self.book.is_withdrawn(key)) {
            // The thread that meets it may wait in the queue.
            self.book.wake_own_waiters();
        }
        if !self.book.is_asked() {
            return false;
        }
        let taken = match self.with_lock(LockWait::poll(self), |locked| locked.take_request()) {
            Ok(Some(taken)) => taken,
            Ok(None) => return false,
            Err(why) => return why.is_lock_unavailable(),
        };
        let (key, request) = taken;
        self.requests.state().serving = Some(key);
        let mut served = Some(Arc::clone(self));
        let serve = move || {
            if let Some(attachment) = served.take() {
                attachment.serve(key, request);
            }
            false
        };
        if !self.process().kernel().spawn(Box::new(serve)) {
            self.end_request(key, &RemoteEnd::NoThread);
        }
        false
    }

    /// Meets a request, on a thread of its own.
    fn serve(&self, key: RequestKey, request: ProcessRequest) {
        SERVING.set(Some((self.address(), key)));
        let callbacks: Vec<_> = self.requests.state().callbacks.iter().map(|(_, callback)| callback.clone()).collect();
        let end = match self.run_callbacks(&callbacks, request.into()) {
            _ if callbacks.is_empty() => RemoteEnd::NotListening,
            Ok(report) => RemoteEnd::Done(report),
            Err(_) if self.book.is_withdrawn(key) => RemoteEnd::Withdrawn,
            Err(error) => RemoteEnd::Failed(error),
        };
        SERVING.set(None);
        self.end_request(key, &end);
    }

    /// Runs the callbacks one after the other. Where one cannot sleep, those that could wake again.
    fn run_callbacks(&self, callbacks: &[Arc<RequestCallback>], request: RemoteRequest) -> Result<RemoteReport> {
        let mut sum = RemoteReport { was_so: true, ..RemoteReport::default() };
        let mut asleep: Vec<&Arc<RequestCallback>> = Vec::new();
        for callback in callbacks {
            let met = self.reclaimers.catch_panic("a callback that sleeps and wakes", || callback(request));
            match met.unwrap_or(Err(Error::InvalidValue { what: "a callback that sleeps and wakes panicked" })) {
                Ok(report) => {
                    sum = sum.and(report);
                    asleep.extend((!report.was_so).then_some(callback));
                }
                Err(error) => {
                    if let RemoteRequest::Sleep { patience, .. } = request {
                        let again = RemoteRequest::Wake { patience };
                        // The first failure is the cause.
                        asleep.iter().for_each(|woken| {
                            drop(self.reclaimers.catch_panic("a callback that wakes", || woken(again)));
                        });
                    }
                    return Err(error);
                }
            }
        }
        Ok(sum)
    }

    /// Says how a request ended. Whoever asked waits for it, so the lock is waited for however long that takes.
    fn end_request(&self, key: RequestKey, end: &RemoteEnd) {
        let end = end.in_words();
        while self
            .with_lock(LockWait::Usual, |locked| locked.end_request(key, &end))
            .is_err_and(|why| why.is_lock_unavailable())
        {
            self.process().kernel().sleep(RETRY_EVERY);
        }
        self.requests.state().serving = None;
    }
}
