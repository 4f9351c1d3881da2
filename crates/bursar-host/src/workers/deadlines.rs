//! The timer that wakes tasks which poll a request when its deadline has passed. Threads that block need none.

use super::request::SlabRequest;
use crate::thread::join;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

/// A timer thread, started when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct DeadlineTimer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    timers: Mutex<Timers>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Timers {
    due: BinaryHeap<Reverse<Deadline>>,
    closed: bool,
}

/// A request, ordered by its deadline.
#[derive(Debug)]
struct Deadline(Instant, Weak<SlabRequest>);

impl PartialEq for Deadline {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Deadline {}

impl PartialOrd for Deadline {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Deadline {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl DeadlineTimer {
    /// Wakes the task of `request` at its deadline.
    pub(crate) fn set(&self, request: &Arc<SlabRequest>) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = self.shared.clone();
            // Without a thread, deadlines are noticed only by the worker, which checks them between steps.
            *thread = std::thread::Builder::new().name("numa-deadlines".to_owned()).spawn(move || shared.run()).ok();
        }
        drop(thread);
        self.shared.timers().due.push(Reverse(Deadline(request.deadline(), Arc::downgrade(request))));
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn timers(&self) -> MutexGuard<'_, Timers> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut timers = self.timers();
        while !timers.closed {
            let now = Instant::now();
            let next = timers.due.peek().map(|Reverse(Deadline(at, _))| *at);
            timers = match next {
                None => self.changed.wait(timers).unwrap_or_else(PoisonError::into_inner),
                Some(at) if at > now => {
                    self.changed.wait_timeout(timers, at - now).unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let due = timers.due.pop();
                    drop(timers);
                    if let Some(request) = due.and_then(|Reverse(Deadline(_, request))| request.upgrade()) {
                        request.wake();
                    }
                    self.timers()
                }
            };
        }
    }
}

impl Drop for DeadlineTimer {
    fn drop(&mut self) {
        self.shared.timers().closed = true;
        self.shared.changed.notify_all();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        join(thread);
    }
}
