//! A worker: a few threads on a node, and their queue of requests.
//!
//! Several requests are served at once, so that memory is put behind one while the driver pins another.

use super::environment::WorkerEnvironment;
use super::pin::{self, NodeBinding, SlabSpec};
use super::request::SlabRequest;
use crate::memory::Slab;
use crate::thread::join;
use crate::{Errno, HostError};
use bursar_core::NumaNode;
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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

/// The most threads of a worker: one has its memory pinned by the driver, which does that for one at a time, and the others
/// put memory behind what is pinned next.
const MOST_THREADS: usize = 4;

/// The worker of one node. A thread is started when a request finds none that is idle, and replaced when it panics.
#[derive(Debug)]
pub(crate) struct Worker {
    node: NumaNode,
    environment: Arc<WorkerEnvironment>,
    queue: Mutex<Queue>,
    ready: Condvar,
    closed: AtomicBool,
    /// The number of requests that are being served.
    served: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    requests: VecDeque<QueuedRequest>,
    /// The threads that serve the queue, and those that they replaced.
    threads: Vec<JoinHandle<()>>,
    /// The number of threads that serve the queue, and of them those that wait for a request.
    serving: usize,
    idle: usize,
}

impl Worker {
    pub(crate) fn new(node: NumaNode, environment: &Arc<WorkerEnvironment>) -> Arc<Self> {
        let (queue, ready, closed) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        Arc::new(Self { node, environment: environment.clone(), queue, ready, closed, served: AtomicUsize::new(0) })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, and starts a thread if none is idle.
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

    /// Starts a thread that serves the queue, if there is none for one more request. Where it cannot be started, those that
    /// there are do its work.
    fn ensure_thread(self: &Arc<Self>, queue: &mut Queue) -> Result<(), HostError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(HostError::Closed);
        }
        if queue.idle > queue.requests.len() || queue.serving == MOST_THREADS {
            return Ok(());
        }
        let name = self.node.index().map_or_else(|| "any".to_owned(), |index| index.to_string());
        let worker = self.clone();
        match std::thread::Builder::new().name(format!("numa-worker-{name}")).spawn(move || worker.run()) {
            Ok(thread) => {
                queue.threads.push(thread);
                queue.serving += 1;
                Ok(())
            }
            Err(_) if queue.serving > 0 => Ok(()),
            Err(error) => Err(HostError::WorkerNotStarted { node: self.node, why: Errno::of(&error) }),
        }
    }

    fn next(&self) -> Option<QueuedRequest> {
        let mut queue = self.queue();
        loop {
            if self.closed.load(Ordering::SeqCst) {
                return None;
            }
            match queue.requests.pop_front() {
                None => {
                    queue.idle += 1;
                    queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    queue.idle -= 1;
                }
                queued => return queued,
            }
        }
    }

    /// Serves requests until the worker is closed, or until a request makes the thread panic. That request then fails, and
    /// another thread takes over.
    fn run(self: &Arc<Self>) {
        let mut binding = None;
        while let Some(queued) = self.next() {
            let made = catch_unwind(AssertUnwindSafe(|| {
                let _served = Served::new(&self.served);
                self.make(&queued, binding.get_or_insert_with(|| self.binding()))
            }));
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
        // Those that are served at once share the CPUs.
        let threads = binding.cpus().div_ceil(self.served.load(Ordering::SeqCst).max(1));
        pin::pin(&queued.spec, binding, threads, &self.environment, &checkpoint)
    }

    /// Ends this thread, and starts another if requests wait. Where that fails, they fail too.
    fn replace_thread(self: &Arc<Self>) {
        let mut queue = self.queue();
        queue.serving -= 1;
        if queue.requests.is_empty() {
            return;
        }
        if let Err(error) = self.ensure_thread(&mut queue) {
            let requests = std::mem::take(&mut queue.requests);
            drop(queue);
            requests.into_iter().for_each(|queued| queued.request.deliver(Err(error.clone())));
        }
    }

    /// Closes the worker: requests that wait are refused, those in progress stop at their next step, and the threads are
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

/// One of the requests that are being served, until this is dropped.
struct Served<'a>(&'a AtomicUsize);

impl<'a> Served<'a> {
    fn new(served: &'a AtomicUsize) -> Self {
        served.fetch_add(1, Ordering::SeqCst);
        Self(served)
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
