//! The worker threads of a process, and requests to them.

mod deadlines;
mod pin;
mod request;
mod worker;

pub(crate) use pin::SlabSpec;

use crate::cache::Releaser;
use crate::memory::Slab;
use crate::{HostError, Machine, PinnedBuffer, PinnedOptions, System, Topology, default_patience};
use bursar_core::{Bytes, DeviceContext, HasContext, NumaNode};
use deadlines::DeadlineTimer;
use request::SlabRequest;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use worker::{Worker, WorkerEnvironment};

/// Worker threads that pin memory, one for each NUMA node, started when first needed and named `numa-worker-N`.
///
/// A request goes to the node that its GPU's PCI address reports. Where none is reported, a worker that is not pinned,
/// `numa-worker-any`, meets it, and the [placement](crate::Placement) says so. Dropping the pool refuses requests that wait,
/// stops those in progress at their next step, and waits for every thread; buffers live on.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::device::DeviceContext;
/// use bursar::host::{HostError, NumaWorkerPool};
/// use bursar::sim::Sim;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let workers = NumaWorkerPool::global()?;
/// let buffer = workers.pin(&context, 1 << 20).wait()?;
/// assert_eq!(buffer.len(), 1 << 20);
/// assert_eq!(workers.pin(&context, 0).wait().unwrap_err(), HostError::ZeroBytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NumaWorkerPool {
    environment: Arc<WorkerEnvironment>,
    workers: Mutex<BTreeMap<NumaNode, Arc<Worker>>>,
    timer: Arc<DeadlineTimer>,
}

impl NumaWorkerPool {
    /// Returns the workers of this process, on this machine. They are never closed, so that nothing is called during exit.
    pub fn global() -> Result<&'static Arc<Self>, HostError> {
        static GLOBAL: OnceLock<Arc<NumaWorkerPool>> = OnceLock::new();
        match GLOBAL.get() {
            Some(pool) => Ok(pool),
            None => Self::here().map(|pool| GLOBAL.get_or_init(|| pool)),
        }
    }

    /// Creates workers on this machine.
    pub fn here() -> Result<Arc<Self>, HostError> {
        Ok(Self::new(Topology::here()?, Arc::new(Machine::default())))
    }

    /// Creates workers on the given machine and system.
    pub fn new(topology: Topology, system: Arc<dyn System>) -> Arc<Self> {
        let (stranded, releaser) = (Arc::default(), Arc::default());
        let environment = Arc::new(WorkerEnvironment { system, topology, stranded, releaser });
        Arc::new(Self { environment, workers: Mutex::default(), timer: Arc::default() })
    }

    /// Returns the machine they work on.
    pub fn topology(&self) -> &Topology {
        &self.environment.topology
    }

    /// Returns the node that requests for a device go to: the one that `sys` reports for its PCI address, or else the
    /// driver.
    pub fn node_of(&self, context: &DeviceContext) -> NumaNode {
        let facts = context.facts();
        match facts.pci.map(|pci| self.environment.topology.node_of(pci)) {
            Some(node) if node != NumaNode::UNKNOWN => node,
            _ => facts.numa_node,
        }
    }

    /// Pins `bytes` near a device.
    pub fn pin(&self, device: &impl HasContext, bytes: usize) -> PinRequest {
        self.pin_with(device, bytes, &PinnedOptions::default())
    }

    /// Pins `bytes` near a device, with options.
    pub fn pin_with(&self, device: &impl HasContext, bytes: usize, options: &PinnedOptions) -> PinRequest {
        let context = device.device_context();
        let pending = self.make(bytes, |bytes| SlabSpec {
            context: context.clone(),
            bytes,
            options: options.clone(),
            evictable: None,
        });
        PinRequest { len: bytes, pending }
    }

    /// Requests a slab of `bytes`, rounded up to pages.
    pub(crate) fn make(&self, bytes: usize, spec: impl FnOnce(usize) -> SlabSpec) -> PendingSlab {
        let request = match pages(bytes) {
            Ok(bytes) => self.ask(spec(bytes)),
            Err(error) => SlabRequest::refused(error),
        };
        PendingSlab { request, timer: self.timer.clone(), is_set: false }
    }

    /// Checks that the machine and its control groups have `requested` bytes left.
    pub(crate) fn check_limits(&self, requested: Bytes) -> Result<(), HostError> {
        pin::check_limits(&*self.environment.system, requested)
    }

    fn ask(&self, spec: SlabSpec) -> Arc<SlabRequest> {
        let requested = Bytes(spec.bytes as u64);
        let patience = spec.options.patience.unwrap_or_else(|| default_patience(requested));
        let node = spec.options.node.unwrap_or_else(|| self.node_of(&spec.context));
        let request = SlabRequest::new(requested, patience);
        self.worker(node).send(request.clone(), spec);
        request
    }

    fn worker(&self, node: NumaNode) -> Arc<Worker> {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.entry(node).or_insert_with(|| Worker::new(node, &self.environment)).clone()
    }

    pub(crate) fn system(&self) -> &Arc<dyn System> {
        &self.environment.system
    }

    pub(crate) fn releaser(&self) -> &Arc<Releaser> {
        &self.environment.releaser
    }

    /// Waits until what was asked for so far is made or refused, and what pools and requests have given up is released: both is
    /// done by threads of the workers, which have a part in the device until then. What a driver failed to release stays.
    ///
    /// ```
    /// use bursar::DeviceId;
    /// use bursar::device::DeviceContext;
    /// use bursar::host::{NumaWorkerPool, PinnedPool};
    /// use bursar::sim::Sim;
    ///
    /// let sim = Sim::immediate();
    /// let context = DeviceContext::open(sim.clone(), DeviceId(0))?;
    /// let pool = PinnedPool::near(&context)?;
    /// drop(pool.get(4096)?);
    /// drop((pool, context));
    /// NumaWorkerPool::global()?.flush();
    /// assert!(sim.leaks().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush(&self) {
        let workers = || self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        // Growth in the background asks for one more slab if it does not see yet that its pool is gone.
        for _ in 0..2 {
            let all: Vec<_> = workers().values().cloned().collect();
            all.iter().for_each(|worker| worker.flush());
        }
        self.releaser().flush();
    }

    /// Tries once more to release memory that drivers have failed to release, and that of dropped pools whose streams could not
    /// be waited for. Returns the bytes that remain.
    pub fn retry_stranded(&self) -> Bytes {
        let in_flight = self.releaser().retry_stranded();
        self.environment.stranded.retry().saturating_add(in_flight)
    }
}

/// Rounds up to whole pages.
pub(crate) fn pages(bytes: usize) -> Result<usize, HostError> {
    match bytes {
        0 => Err(HostError::ZeroBytes),
        // No allocation is larger than half the address space.
        _ => (bytes.checked_next_multiple_of(Machine::page()).filter(|bytes| isize::try_from(*bytes).is_ok()))
            .ok_or(HostError::TooLarge { requested: bytes as u64 }),
    }
}

impl Drop for NumaWorkerPool {
    fn drop(&mut self) {
        let workers = std::mem::take(self.workers.get_mut().unwrap_or_else(PoisonError::into_inner));
        workers.values().for_each(|worker| worker.close());
    }
}

/// A slab that is being created. Dropping it gives the request up.
pub(crate) struct PendingSlab {
    request: Arc<SlabRequest>,
    timer: Arc<DeadlineTimer>,
    is_set: bool,
}

impl PendingSlab {
    pub(crate) fn wait(self) -> Result<Slab, HostError> {
        self.request.wait()
    }

    pub(crate) fn poll(&mut self, context: &Context<'_>) -> Poll<Result<Slab, HostError>> {
        let polled = self.request.poll(context.waker());
        if polled.is_pending() && !std::mem::replace(&mut self.is_set, true) {
            self.timer.set(&self.request);
        }
        polled
    }
}

impl Drop for PendingSlab {
    fn drop(&mut self) {
        drop(self.request.close());
    }
}

/// A request for pinned memory: [wait](Self::wait) for it, or poll it as a future, with any executor or none. Dropping it
/// gives the request up at any step, and everything taken until then is released.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::device::DeviceContext;
/// use bursar::host::NumaWorkerPool;
/// use bursar::sim::Sim;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let workers = NumaWorkerPool::global()?;
/// drop(workers.pin(&context, 1 << 30));
/// let soon = workers.pin(&context, 4096);
/// assert_eq!(soon.wait()?.len(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a request is given up when this is dropped"]
pub struct PinRequest {
    len: usize,
    pending: PendingSlab,
}

impl PinRequest {
    /// Waits for the memory, at most until the deadline.
    pub fn wait(self) -> Result<PinnedBuffer, HostError> {
        let len = self.len;
        self.pending.wait().map(|slab| PinnedBuffer::alone(slab, len))
    }
}

impl Future for PinRequest {
    type Output = Result<PinnedBuffer, HostError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let len = self.len;
        self.pending.poll(context).map(|made| made.map(|slab| PinnedBuffer::alone(slab, len)))
    }
}

impl fmt::Debug for PinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinning").field("len", &self.len).finish_non_exhaustive()
    }
}
