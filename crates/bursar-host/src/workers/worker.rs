//! A worker: a thread on a node, and its queue of requests.

use super::pin::{self, NodeBinding, SlabSpec};
use super::request::SlabRequest;
use crate::cache::Releaser;
use crate::memory::{Slab, StrandedSlabs};
use crate::thread::join;
use crate::{Errno, HostError, System, Topology};
use bursar_core::NumaNode;
use std::any::Any;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A request in the queue of a worker. What it holds of the caller's goes before its answer, because the caller who has that may
/// be the last to use the device; then it is counted as met.
#[derive(Debug)]
struct QueuedRequest {
    spec: SlabSpec,
    answer: Answer,
    _met: CountedOnDrop,
}

/// The answer to a request. If it is dropped without a result, the caller learns that the workers were closed.
#[derive(Debug)]
struct Answer(Arc<SlabRequest>);

impl Answer {
    fn deliver(self, result: Result<Slab, HostError>) {
        self.0.deliver(result);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.deliver(Err(HostError::Closed));
    }
}

/// The numbers of requests that a worker was sent, and that it is done with.
#[derive(Debug, Default)]
struct RequestCounts {
    counts: Mutex<(u64, u64)>,
    met: Condvar,
}

impl RequestCounts {
    fn counts(&self) -> MutexGuard<'_, (u64, u64)> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request that was sent, and that is met when the result is dropped.
    fn sent(self: &Arc<Self>) -> CountedOnDrop {
        self.counts().0 += 1;
        CountedOnDrop(self.clone())
    }

    /// Waits until as many are met as were sent so far. They are met in the order in which they were sent.
    fn wait(&self) {
        let mut counts = self.counts();
        let upto = counts.0;
        while counts.1 < upto {
            counts = self.met.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Counts a request as met when it is dropped.
#[derive(Debug)]
struct CountedOnDrop(Arc<RequestCounts>);

impl Drop for CountedOnDrop {
    fn drop(&mut self) {
        self.0.counts().1 += 1;
        self.0.met.notify_all();
    }
}

/// The objects that all workers of a pool share.
#[derive(Debug)]
pub(crate) struct WorkerEnvironment {
    pub(crate) system: Arc<dyn System>,
    pub(crate) topology: Topology,
    pub(crate) stranded: Arc<StrandedSlabs>,
    pub(crate) releaser: Arc<Releaser>,
}

/// The worker of one node. Its thread is started with the first request, and replaced when it panics.
#[derive(Debug)]
pub(crate) struct Worker {
    node: NumaNode,
    environment: Arc<WorkerEnvironment>,
    queue: Mutex<Queue>,
    ready: Condvar,
    closed: AtomicBool,
    counts: Arc<RequestCounts>,
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
        Arc::new(Self { node, environment: environment.clone(), queue, ready, closed, counts: Arc::default() })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, and starts the thread if there is none.
    pub(crate) fn send(self: &Arc<Self>, request: Arc<SlabRequest>, spec: SlabSpec) {
        let answer = Answer(request);
        let mut queue = self.queue();
        match self.ensure_thread(&mut queue) {
            Ok(()) => {
                queue.requests.push_back(QueuedRequest { spec, answer, _met: self.counts.sent() });
                drop(queue);
                self.ready.notify_one();
            }
            Err(error) => {
                drop((queue, spec));
                answer.deliver(Err(error));
            }
        }
    }

    /// Waits until the requests sent so far are met or given up, and nothing of them is held here. Returns at once where the worker
    /// itself asks, for a task that it wakes.
    pub(crate) fn flush(&self) {
        let here = std::thread::current().id();
        if !self.queue().threads.iter().any(|thread| thread.thread().id() == here) {
            self.counts.wait();
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
            if self.serve(queued, &mut binding).is_break() {
                return self.replace_thread();
            }
        }
    }

    /// Serves a request; breaks if it made the thread panic.
    fn serve(&self, queued: QueuedRequest, binding: &mut Option<NodeBinding>) -> ControlFlow<()> {
        // Dropped in the reverse order, so that the request is met after it has been answered.
        let QueuedRequest { _met, answer, spec } = queued;
        let make = || {
            let spec = spec;
            self.make(&answer.0, &spec, binding.get_or_insert_with(|| self.binding()))
        };
        let (result, flow) = match catch_unwind(AssertUnwindSafe(make)) {
            Ok(result) => (result, ControlFlow::Continue(())),
            Err(panic) => {
                let message = message(&*panic);
                (Err(HostError::WorkerPanicked { node: self.node, message }), ControlFlow::Break(()))
            }
        };
        // A task that waits for it is woken here, and its panic is not the worker's.
        if catch_unwind(AssertUnwindSafe(|| answer.deliver(result))).is_err() {
            tracing::error!(node = %self.node, "a task that waited for pinned memory panicked when it was woken");
        }
        flow
    }

    fn binding(&self) -> NodeBinding {
        NodeBinding::take(&*self.environment.system, &self.environment.topology, self.node)
    }

    fn make(&self, request: &SlabRequest, spec: &SlabSpec, binding: &NodeBinding) -> Result<Slab, HostError> {
        let checkpoint = |step| {
            if self.closed.load(Ordering::SeqCst) { Err(HostError::Closed) } else { request.check(step) }
        };
        pin::pin(spec, binding, &self.environment, &checkpoint)
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
            for QueuedRequest { _met, answer, spec } in requests {
                drop(spec);
                answer.deliver(Err(error.clone()));
            }
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
