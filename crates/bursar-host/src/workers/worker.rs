//! A worker: a thread on a node, and its queue of requests.

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

/// A request in the queue of a worker. If it is dropped without a result, the caller learns that the workers were closed.
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

/// The objects that all workers of a pool share.
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
    /// The thread that serves the queue, and those that it replaced.
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

    /// Starts a thread that serves the queue, if there is none.
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

    /// Serves requests until the worker is closed, or until a request makes the thread panic. That request then fails, and
    /// another thread takes over.
    fn run(self: &Arc<Self>) {
        let mut binding = None;
        while let Some(queued) = self.next() {
            let made =
                catch_unwind(AssertUnwindSafe(|| self.make(&queued, binding.get_or_insert_with(|| self.binding()))));
            let message = match made {
                Ok(result) => {
                    queued.request.deliver(result);
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

    /// Ends this thread, and starts another if requests wait. Where that fails, they fail too.
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

    /// Closes the worker: requests that wait are refused, the one in progress stops at its next step, and the thread is
    /// joined.
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

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
