//! One worker: a thread on a node, and the requests that wait for it.

use crate::place::{self, Stand, Want};
use crate::sys::Stranded;
use crate::ticket::Ticket;
use crate::topology::Topology;
use crate::{Errno, HostError, System};
use bursar_core::NumaNode;
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A request on its way. Dropping it answers that the workers have been closed, if nobody has answered before.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) ticket: Arc<Ticket>,
    pub(crate) want: Want,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.ticket.deliver(Err(HostError::Closed));
    }
}

/// What all workers of a pool work with.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) system: Arc<dyn System>,
    pub(crate) topology: Topology,
    pub(crate) stranded: Arc<Stranded>,
}

/// The worker of one node. Its thread is started with the first request, and replaced when it panics.
#[derive(Debug)]
pub(crate) struct Worker {
    node: NumaNode,
    tools: Arc<Tools>,
    queue: Mutex<Queue>,
    ready: Condvar,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// The thread that serves, and those that it replaced.
    threads: Vec<JoinHandle<()>>,
    is_served: bool,
}

impl Worker {
    pub(crate) fn new(node: NumaNode, tools: &Arc<Tools>) -> Arc<Self> {
        let (queue, ready, closed) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        Arc::new(Self { node, tools: tools.clone(), queue, ready, closed })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, and starts the thread if there is none.
    pub(crate) fn send(self: &Arc<Self>, job: Job) {
        let mut queue = self.queue();
        match self.serve(&mut queue) {
            Ok(()) => {
                queue.jobs.push_back(job);
                drop(queue);
                self.ready.notify_one();
            }
            Err(error) => {
                drop(queue);
                job.ticket.deliver(Err(error));
            }
        }
    }

    /// Sees to it that a thread serves the queue.
    fn serve(self: &Arc<Self>, queue: &mut Queue) -> Result<(), HostError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(HostError::Closed);
        }
        if queue.is_served {
            return Ok(());
        }
        let name = self.node.index().map_or_else(|| "any".to_owned(), |index| index.to_string());
        let worker = self.clone();
        let thread = std::thread::Builder::new().name(format!("numa-worker-{name}")).spawn(move || worker.run());
        let thread = thread.map_err(|error| HostError::WorkerNotStarted { node: self.node, why: Errno::of(&error) })?;
        queue.threads.push(thread);
        queue.is_served = true;
        Ok(())
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.queue();
        loop {
            if self.closed.load(Ordering::SeqCst) {
                return None;
            }
            match queue.jobs.pop_front() {
                None => queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner),
                job => return job,
            }
        }
    }

    /// The thread: serves until the worker is closed, or until a request makes it panic. Then that request fails, and
    /// another thread takes over.
    fn run(self: &Arc<Self>) {
        let mut stand = None;
        while let Some(job) = self.next() {
            let made = catch_unwind(AssertUnwindSafe(|| self.make(&job, stand.get_or_insert_with(|| self.stand()))));
            let message = match made {
                Ok(answer) => {
                    job.ticket.deliver(answer);
                    continue;
                }
                Err(panic) => message(&*panic),
            };
            job.ticket.deliver(Err(HostError::WorkerPanicked { node: self.node, message }));
            return self.hand_over();
        }
    }

    fn stand(&self) -> Stand {
        Stand::take(&*self.tools.system, &self.tools.topology, self.node)
    }

    fn make(&self, job: &Job, stand: &Stand) -> Result<crate::sys::Slab, HostError> {
        let go_on = |step| {
            if self.closed.load(Ordering::SeqCst) { Err(HostError::Closed) } else { job.ticket.check(step) }
        };
        place::pin(&job.want, stand, &*self.tools.system, &self.tools.stranded, &go_on)
    }

    /// This thread ends; if anybody waits, another one starts. Where it cannot, those who wait are told.
    fn hand_over(self: &Arc<Self>) {
        let mut queue = self.queue();
        queue.is_served = false;
        if queue.jobs.is_empty() {
            return;
        }
        if let Err(error) = self.serve(&mut queue) {
            let jobs = std::mem::take(&mut queue.jobs);
            drop(queue);
            jobs.into_iter().for_each(|job| job.ticket.deliver(Err(error.clone())));
        }
    }

    /// Ends it: requests that wait are refused, the one in hand stops at its next step, and the thread is waited for.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let mut queue = self.queue();
        let (jobs, threads) = (std::mem::take(&mut queue.jobs), std::mem::take(&mut queue.threads));
        drop(queue);
        self.ready.notify_all();
        drop(jobs);
        threads.into_iter().for_each(|thread| join(Some(thread)));
    }
}

/// What a panic says.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

/// Waits for a thread, unless it is this one: a pool can be dropped by its own worker.
pub(crate) fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread
        && thread.thread().id() != std::thread::current().id()
        && thread.join().is_err()
    {
        tracing::error!("a thread of the workers panicked outside a request");
    }
}
