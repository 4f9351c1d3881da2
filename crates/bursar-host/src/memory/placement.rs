//! The placement of memory: what was requested of the kernel, and where the pages are.

use crate::{Errno, Machine, StepOutcome, System};
use bursar_core::NumaNode;
use std::collections::BTreeMap;
use std::fmt;

/// The number of pages up to which the kernel is asked about each; of more, evenly spread ones are chosen.
const ASKED_MAX: usize = 2048;

/// The placement of a buffer: the steps that were requested, the outcome of each, and the nodes of its pages.
///
/// Steps that fail are recorded here, and the request goes on: memory on another node is slower, not wrong.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::device::{DeviceContext, NumaNode};
/// use bursar::host::NumaWorkerPool;
/// use bursar::sim::Sim;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let buffer = NumaWorkerPool::global()?.pin(&context, 4096).wait()?;
/// let placement = buffer.placement();
/// assert_eq!(placement.node, NumaNode::UNKNOWN, "the simulated device reports none");
/// println!("{placement}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placement {
    /// The node that was requested: the one that the GPU's PCI address reports, unless the options name another.
    pub node: NumaNode,
    /// The node that memory was requested from: a near one, where that node has no memory to give.
    pub memory_node: NumaNode,
    /// The pinning of the worker to CPUs of the node, or of the nearest one that has any, as the kernel confirmed.
    pub worker_pinned: StepOutcome,
    /// The memory policy that prefers the node.
    pub bound: StepOutcome,
    /// The advice to use huge pages.
    pub huge_pages: StepOutcome,
    /// The kernel's report of where the pages are.
    pub verified: StepOutcome,
    /// The number of pages that the kernel was asked about: all, or evenly spread ones of a large buffer.
    pub pages_asked: usize,
    /// The number of those on the node that memory was requested from or, where that is unknown, on the node that has most.
    pub pages_on_node: usize,
    /// The other nodes that pages are on, each with the number of pages there: where that node had no room for them.
    pub pages_elsewhere: Vec<(NumaNode, usize)>,
    /// The number of threads that touched the memory.
    pub threads: usize,
}

impl Placement {
    pub(crate) const fn unknown() -> Self {
        Self {
            node: NumaNode::UNKNOWN,
            memory_node: NumaNode::UNKNOWN,
            worker_pinned: StepOutcome::NotAsked,
            bound: StepOutcome::NotAsked,
            huge_pages: StepOutcome::NotAsked,
            verified: StepOutcome::NotAsked,
            pages_asked: 0,
            pages_on_node: 0,
            pages_elsewhere: Vec::new(),
            threads: 0,
        }
    }

    /// Returns whether the kernel confirmed that every page it was asked about is on its node.
    pub fn is_verified(&self) -> bool {
        self.verified.is_done() && self.pages_on_node == self.pages_asked
    }

    /// Asks the kernel where the pages of a range are.
    pub(crate) fn verify(&mut self, system: &dyn System, address: usize, bytes: usize, page: usize) {
        match locate(system, address, bytes, page) {
            Ok(nodes) => {
                self.verified = StepOutcome::Done;
                self.pages_asked = nodes.len();
                self.pages_on_node = count_on(&nodes, self.memory_node);
                self.pages_elsewhere = count_elsewhere(&nodes, self.memory_node);
            }
            Err(why) => self.verified = StepOutcome::Refused(why),
        }
    }
}

/// Returns the nodes of the pages of a range, or of evenly spread ones if there are many. An error applies to all of them.
fn locate(system: &dyn System, address: usize, bytes: usize, page: usize) -> Result<Vec<i32>, Errno> {
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let first = address - address % page;
    let pages = (address + bytes - first).div_ceil(page);
    let stride = pages.div_ceil(ASKED_MAX).max(1);
    let asked: Vec<usize> = (0..pages).step_by(stride).map(|at| first + at * page).collect();
    let nodes = system.locate(&asked)?;
    match nodes.first() {
        // The kernel knows nothing about memory that the driver mapped itself.
        Some(&first) if first < 0 && nodes.iter().all(|node| *node < 0) => Err(Errno(-first)),
        _ => Ok(nodes),
    }
}

fn count_on(nodes: &[i32], node: NumaNode) -> usize {
    let on = |wanted: i32| nodes.iter().filter(|node| **node == wanted).count();
    match node.index() {
        Some(index) => i32::try_from(index).map_or(0, on),
        None => nodes.iter().filter(|node| **node >= 0).max().map_or(0, |last| (0..=*last).map(on).max().unwrap_or(0)),
    }
}

/// Counts the pages on every node but the given one; none where that is unknown, since then no node is another.
fn count_elsewhere(nodes: &[i32], node: NumaNode) -> Vec<(NumaNode, usize)> {
    let mut counts = BTreeMap::new();
    if node != NumaNode::UNKNOWN {
        let known = nodes.iter().filter_map(|node| u32::try_from(*node).ok()).map(NumaNode::new);
        known.filter(|on| *on != node).for_each(|on| *counts.entry(on).or_default() += 1);
    }
    counts.into_iter().collect()
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.node)?;
        if self.memory_node != self.node {
            write!(f, " (memory of node {})", self.memory_node)?;
        }
        match self.verified {
            StepOutcome::Done => write!(f, ": {} of {} pages there", self.pages_on_node, self.pages_asked)?,
            other => write!(f, ": where the pages are was {other}")?,
        }
        self.pages_elsewhere.iter().try_for_each(|(node, pages)| write!(f, ", {pages} on node {node}"))?;
        let steps =
            [("pinning the worker", self.worker_pinned), ("mbind", self.bound), ("huge pages", self.huge_pages)];
        steps.iter().filter(|(_, went)| went.has_failed()).try_for_each(|(step, went)| write!(f, "; {step}: {went}"))
    }
}

/// Asks the kernel where the pages of some memory are. Returns the number of pages it was asked about, and the number of
/// those on `node` or, where that is unknown, on the node that has most.
///
/// ```
/// use bursar::device::NumaNode;
/// use bursar::host::{Machine, pages_on_node};
///
/// let memory = vec![1u8; 1 << 16];
/// if let Ok((asked, there)) = pages_on_node(&Machine::default(), &memory, NumaNode::UNKNOWN) {
///     assert!(asked >= 16 && there <= asked);
/// }
/// ```
pub fn pages_on_node(system: &dyn System, memory: &[u8], node: NumaNode) -> Result<(usize, usize), Errno> {
    let nodes = locate(system, memory.as_ptr().addr(), memory.len(), Machine::page())?;
    Ok((nodes.len(), count_on(&nodes, node)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n4_pages_are_counted_on_the_node_that_was_asked_and_never_guessed() {
        let nodes = [0, 0, 1, -2, 0];
        assert_eq!(count_on(&nodes, NumaNode::new(0)), 3);
        assert_eq!(count_on(&nodes, NumaNode::new(1)), 1);
        assert_eq!(count_on(&nodes, NumaNode::new(7)), 0);
        assert_eq!(count_on(&nodes, NumaNode::UNKNOWN), 3);
        assert_eq!(count_on(&[-2, -14], NumaNode::UNKNOWN), 0);
    }

    #[test]
    fn n4_pages_on_other_nodes_are_named_with_their_nodes() {
        let nodes = [3, 1, 3, 0, 1, 1, -2];
        assert_eq!(count_elsewhere(&nodes, NumaNode::UNKNOWN), []);
        let mut placement = Placement { node: NumaNode::new(3), memory_node: NumaNode::new(3), ..Placement::unknown() };
        placement.verified = StepOutcome::Done;
        (placement.pages_asked, placement.pages_on_node) = (7, count_on(&nodes, NumaNode::new(3)));
        placement.pages_elsewhere = count_elsewhere(&nodes, NumaNode::new(3));
        assert_eq!(placement.pages_elsewhere, [(NumaNode::new(0), 1), (NumaNode::new(1), 3)]);
        assert_eq!(placement.to_string(), "node 3: 2 of 7 pages there, 1 on node 0, 3 on node 1");
    }
}
