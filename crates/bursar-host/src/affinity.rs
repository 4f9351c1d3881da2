//! The calling thread and the NUMA nodes: where it runs, and how it is kept near a device.

use crate::{HostError, IndexSet, Machine, NumaWorkerPool, System};
use bursar_core::{HasContext, NumaNode};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// Returns the node of the CPU that the calling thread runs on; unknown where the kernel does not say.
///
/// A thread that may run on several nodes can be on another one when this returns; [`pin_thread_near`] keeps it on one.
///
/// ```
/// let node = bursar::host::current_node();
/// println!("running on node {node}");
/// ```
pub fn current_node() -> NumaNode {
    Machine::current_node().map_or(NumaNode::UNKNOWN, NumaNode::new)
}

/// Restricts the calling thread to the CPUs near a device until the guard is dropped: those of the node that its PCI address
/// reports, or of the nearest one that has any. Threads that it starts meanwhile are restricted too, and stay so.
///
/// Where nobody reports the device's node, the thread is left as it is, and [`ThreadPin::node`] says so. An error means that
/// the kernel refused.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::device::DeviceContext;
/// use bursar::sim::Sim;
///
/// let gpu = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// {
///     let near = bursar::host::pin_thread_near(&gpu)?;
///     println!("this thread runs near the GPU, on node {}", near.node());
/// }
/// println!("and now wherever it may");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn pin_thread_near(device: &impl HasContext) -> Result<ThreadPin, HostError> {
    NumaWorkerPool::global()?.pin_thread_near(device)
}

/// Restricts the calling thread to the CPUs of a node, or of the nearest one that has any, until the guard is dropped.
///
/// ```
/// use bursar::device::NumaNode;
/// use bursar::host::{current_node, pin_thread_to};
///
/// let here = current_node();
/// let pin = pin_thread_to(here)?;
/// assert_eq!(pin.node() == NumaNode::UNKNOWN, pin.cpus().is_empty());
/// // A thread that is to stay there for good gives the guard up.
/// pin.keep();
/// # Ok::<(), bursar::host::HostError>(())
/// ```
pub fn pin_thread_to(node: NumaNode) -> Result<ThreadPin, HostError> {
    NumaWorkerPool::global()?.pin_thread_to(node)
}

impl NumaWorkerPool {
    /// Restricts the calling thread to the CPUs near a device, as [`pin_thread_near`] does, on the machine of these workers.
    pub fn pin_thread_near(&self, device: &impl HasContext) -> Result<ThreadPin, HostError> {
        self.pin_thread_to(self.node_of(device.device_context()))
    }

    /// Restricts the calling thread to the CPUs of a node, as [`pin_thread_to`] does, on the machine of these workers.
    pub fn pin_thread_to(&self, node: NumaNode) -> Result<ThreadPin, HostError> {
        let system = self.system().clone();
        let Some(near) = node.index().and_then(|index| self.topology().cpus_near(index)) else {
            let (node, cpus) = (NumaNode::UNKNOWN, IndexSet::default());
            return Ok(ThreadPin { system, before: None, node, cpus, _same_thread: PhantomData });
        };
        let refused = |why| HostError::ThreadNotPinned { node, why };
        let before = system.runs_on().map_err(refused)?;
        // A thread that may run on some of them only stays with those.
        let cpus = Some(near.cpus.and(&before)).filter(|both| !both.is_empty()).unwrap_or_else(|| near.cpus.clone());
        system.run_on(&cpus).map_err(refused)?;
        let node = NumaNode::new(near.index);
        Ok(ThreadPin { system, before: Some(before), node, cpus, _same_thread: PhantomData })
    }
}

/// A restriction of the calling thread to the CPUs of a node. Dropping it lets the thread run again wherever it could
/// before; of several, the last one made is dropped first.
///
/// ```
/// use bursar::device::NumaNode;
/// use bursar::host::pin_thread_to;
///
/// let nowhere = pin_thread_to(NumaNode::UNKNOWN)?;
/// assert_eq!(nowhere.node(), NumaNode::UNKNOWN);
/// assert!(nowhere.cpus().is_empty(), "left as it was");
/// # Ok::<(), bursar::host::HostError>(())
/// ```
#[must_use = "the thread is let go when this is dropped"]
pub struct ThreadPin {
    system: Arc<dyn System>,
    /// The CPUs that the thread could run on before; none if nothing was changed.
    before: Option<IndexSet>,
    node: NumaNode,
    cpus: IndexSet,
    /// It is about the thread that made it, and cannot leave it.
    _same_thread: PhantomData<*const ()>,
}

impl ThreadPin {
    /// Returns the node whose CPUs the thread runs on: the one that was asked for, or the nearest one with CPUs; unknown if the
    /// thread was left as it was.
    pub const fn node(&self) -> NumaNode {
        self.node
    }

    /// Returns those CPUs; none if the thread was left as it was.
    pub const fn cpus(&self) -> &IndexSet {
        &self.cpus
    }

    /// Leaves the thread where it is.
    pub fn keep(mut self) {
        self.before = None;
    }
}

impl Drop for ThreadPin {
    fn drop(&mut self) {
        if let Some(before) = self.before.take()
            && let Err(why) = self.system.run_on(&before)
        {
            tracing::warn!(%why, cpus = %self.cpus, "a thread stays on these CPUs: it could not be let go");
        }
    }
}

impl fmt::Debug for ThreadPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadPin(node {}, CPUs {})", self.node, self.cpus)
    }
}
