//! Wakes those who poll for an answer when their deadline has passed. Those who block need none.

use super::request::SlabRequest;
use crate::thread::join;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

/// One thread, started when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct DeadlineTimer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    clock: Mutex<Clock>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Clock {
    due: BinaryHeap<Reverse<Due>>,
    closed: bool,
}

/// A ticket by its deadline.
#[derive(Debug)]
struct Due(Instant, Weak<SlabRequest>);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl DeadlineTimer {
    /// Has `ticket` woken at its deadline.
    pub(crate) fn set(&self, request: &Arc<SlabRequest>) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = self.shared.clone();
            // Without a thread deadlines pass unnoticed until the worker looks, which it does between steps.
            *thread = std::thread::Builder::new().name("numa-deadlines".to_owned()).spawn(move || shared.run()).ok();
        }
        drop(thread);
        self.shared.clock().due.push(Reverse(Due(request.deadline(), Arc::downgrade(request))));
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut clock = self.clock();
        while !clock.closed {
            let now = Instant::now();
            let next = clock.due.peek().map(|Reverse(Due(at, _))| *at);
            clock = match next {
                None => self.changed.wait(clock).unwrap_or_else(PoisonError::into_inner),
                Some(at) if at > now => {
                    self.changed.wait_timeout(clock, at - now).unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let due = clock.due.pop();
                    drop(clock);
                    if let Some(request) = due.and_then(|Reverse(Due(_, request))| request.upgrade()) {
                        request.wake();
                    }
                    self.clock()
                }
            };
        }
    }
}

impl Drop for DeadlineTimer {
    fn drop(&mut self) {
        self.shared.clock().closed = true;
        self.shared.changed.notify_all();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        join(thread);
    }
}
