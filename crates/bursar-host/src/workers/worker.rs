//! One worker: a thread on a node, and the requests that wait for it.

use super::pin::{self, NodeBinding, SlabSpec};
use super::request::SlabRequest;
use crate::memory::{Slab, StrandedSlabs};
use crate::thread::join;
use crate::{Errno, HostError, System, Topology};
use bursar_core::NumaNode;
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A request on its way. Dropping it answers that the workers have been closed, if nobody has answered before.
#[derive(Debug)]
pub(crate) struct QueuedRequest {
    pub(crate) request: Arc<SlabRequest>,
    pub(crate) spec: SlabSpec,
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        self.request.deliver(Err(HostError::Closed));
    }
}

/// What all workers of a pool work with.
#[derive(Debug)]
pub(crate) struct WorkerEnvironment {
    pub(crate) system: Arc<dyn System>,
    pub(crate) topology: Topology,
    pub(crate) stranded: Arc<StrandedSlabs>,
}

/// The worker of one node. Its thread is started with the first request, and replaced when it panics.
#[derive(Debug)]
pub(crate) struct Worker {
    node: NumaNode,
    environment: Arc<WorkerEnvironment>,
    queue: Mutex<Queue>,
    ready: Condvar,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    requests: VecDeque<QueuedRequest>,
    /// The thread that serves, and those that it replaced.
    threads: Vec<JoinHandle<()>>,
    has_thread: bool,
}

impl Worker {
    pub(crate) fn new(node: NumaNode, environment: &Arc<WorkerEnvironment>) -> Arc<Self> {
        let (queue, ready, closed) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        Arc::new(Self { node, environment: environment.clone(), queue, ready, closed })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, and starts the thread if there is none.
    pub(crate) fn send(self: &Arc<Self>, queued: QueuedRequest) {
        let mut queue = self.queue();
        match self.ensure_thread(&mut queue) {
            Ok(()) => {
                queue.requests.push_back(queued);
                drop(queue);
                self.ready.notify_one();
            }
            Err(error) => {
                drop(queue);
                queued.request.deliver(Err(error));
            }
        }
    }

    /// Sees to it that a thread serves the queue.
    fn ensure_thread(self: &Arc<Self>, queue: &mut Queue) -> Result<(), HostError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(HostError::Closed);
        }
        if queue.has_thread {
            return Ok(());
        }
        let name = self.node.index().map_or_else(|| "any".to_owned(), |index| index.to_string());
        let worker = self.clone();
        let thread = std::thread::Builder::new().name(format!("numa-worker-{name}")).spawn(move || worker.run());
        let thread = thread.map_err(|error| HostError::WorkerNotStarted { node: self.node, why: Errno::of(&error) })?;
        queue.threads.push(thread);
        queue.has_thread = true;
        Ok(())
    }

    fn next(&self) -> Option<QueuedRequest> {
        let mut queue = self.queue();
        loop {
            if self.closed.load(Ordering::SeqCst) {
                return None;
            }
            match queue.requests.pop_front() {
                None => queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner),
                queued => return queued,
            }
        }
    }

    /// The thread: serves until the worker is closed, or until a request makes it panic. Then that request fails, and
    /// another thread takes over.
    fn run(self: &Arc<Self>) {
        let mut binding = None;
        while let Some(queued) = self.next() {
            let made =
                catch_unwind(AssertUnwindSafe(|| self.make(&queued, binding.get_or_insert_with(|| self.binding()))));
            let message = match made {
                Ok(answer) => {
                    queued.request.deliver(answer);
                    continue;
                }
                Err(panic) => message(&*panic),
            };
            queued.request.deliver(Err(HostError::WorkerPanicked { node: self.node, message }));
            return self.replace_thread();
        }
    }

    fn binding(&self) -> NodeBinding {
        NodeBinding::take(&*self.environment.system, &self.environment.topology, self.node)
    }

    fn make(&self, queued: &QueuedRequest, binding: &NodeBinding) -> Result<Slab, HostError> {
        let checkpoint = |step| {
            if self.closed.load(Ordering::SeqCst) { Err(HostError::Closed) } else { queued.request.check(step) }
        };
        pin::pin(&queued.spec, binding, &*self.environment.system, &self.environment.stranded, &checkpoint)
    }

    /// This thread ends; if anybody waits, another one starts. Where it cannot, those who wait are told.
    fn replace_thread(self: &Arc<Self>) {
        let mut queue = self.queue();
        queue.has_thread = false;
        if queue.requests.is_empty() {
            return;
        }
        if let Err(error) = self.ensure_thread(&mut queue) {
            let requests = std::mem::take(&mut queue.requests);
            drop(queue);
            requests.into_iter().for_each(|queued| queued.request.deliver(Err(error.clone())));
        }
    }

    /// Ends it: requests that wait are refused, the one in hand stops at its next step, and the thread is waited for.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let mut queue = self.queue();
        let (requests, threads) = (std::mem::take(&mut queue.requests), std::mem::take(&mut queue.threads));
        drop(queue);
        self.ready.notify_all();
        drop(requests);
        threads.into_iter().for_each(|thread| join(Some(thread)));
    }
}

/// What a panic says.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
