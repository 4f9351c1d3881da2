//! The topology of a machine: NUMA nodes, their CPUs and memory, and the nodes of GPUs.
//!
//! Everything is read below a root folder, so that the files of any machine can be read on any other. Nothing is guessed: a
//! GPU whose node is not reported is on an unknown one.

mod cpu_share;
mod sysfs;

use crate::{HostError, IndexSet};
use bursar_core::{Bytes, NumaNode, PciAddress};
use std::path::Path;

/// The nodes of a machine, the CPUs of this process, and the GPUs.
///
/// ```
/// use bursar::host::Topology;
///
/// let here = Topology::here()?;
/// assert!(!here.cpus().is_empty(), "this runs somewhere");
/// # Ok::<(), bursar::host::HostError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<Node>,
    cpus: IndexSet,
    cores: Vec<IndexSet>,
    gpus: Vec<GpuPlace>,
}

/// A NUMA node.
///
/// ```
/// use bursar::host::Topology;
///
/// for node in Topology::here()?.nodes() {
///     println!("node {}: CPUs {}, {}", node.index, node.cpus, node.memory);
/// }
/// # Ok::<(), bursar::host::HostError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// The number of the node.
    pub index: u32,
    /// Its CPUs that are online and that this process may use.
    pub cpus: IndexSet,
    /// True if it has CPUs at all, usable or not.
    pub has_cpus: bool,
    /// All of its memory.
    pub memory: Bytes,
    /// True if this process may allocate memory on it.
    pub memory_allowed: bool,
    /// The distance to each node, as the firmware reports it: 10 is the node itself, and more is further.
    pub distances: Vec<(u32, u32)>,
    /// The huge pages that are reserved on it.
    pub huge_pages: Vec<HugePages>,
}

/// The huge pages of one size that are reserved on a node.
///
/// ```
/// use bursar::host::Topology;
///
/// let here = Topology::here()?;
/// let free: u64 = here.nodes().iter().flat_map(|node| &node.huge_pages).map(|pages| pages.free).sum();
/// println!("{free} huge pages are set aside and free");
/// # Ok::<(), bursar::host::HostError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HugePages {
    /// The size of a page.
    pub size: Bytes,
    /// The number of pages.
    pub total: u64,
    /// The number of free pages.
    pub free: u64,
}

/// The PCI address of a GPU, and its node.
///
/// ```
/// use bursar::host::Topology;
///
/// let here = Topology::here()?;
/// for gpu in here.gpus() {
///     println!("{} is on node {}: CPUs {}", gpu.pci, gpu.node, here.cpus_of_gpu(gpu.pci));
/// }
/// # Ok::<(), bursar::host::HostError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuPlace {
    /// Its address.
    pub pci: PciAddress,
    /// The node that its address reports.
    pub node: NumaNode,
}

impl Topology {
    /// Reads the topology of this machine.
    pub fn here() -> Result<Self, HostError> {
        Self::read(Path::new("/"))
    }

    /// Reads the topology of the machine whose `proc` and `sys` are in a folder. A missing file means that there is nothing:
    /// a kernel without NUMA has no nodes. A malformed file is an error.
    pub fn read(root: &Path) -> Result<Self, HostError> {
        sysfs::Reader::new(root).topology()
    }

    /// Returns the topology for a process that may use only some of the CPUs.
    pub fn restricted_to(mut self, allowed: &IndexSet) -> Self {
        self.cpus = self.cpus.and(allowed);
        self.nodes.iter_mut().for_each(|node| node.cpus = node.cpus.and(allowed));
        self.cores.iter_mut().for_each(|core| *core = core.and(allowed));
        self.cores.retain(|core| !core.is_empty());
        self
    }

    /// Returns the online nodes, by number.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns a node by its number.
    pub fn node(&self, index: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.index == index)
    }

    /// Returns the CPUs that are online and that this process may use.
    pub fn cpus(&self) -> &IndexSet {
        &self.cpus
    }

    /// Returns those CPUs by core: the siblings of one core together.
    pub fn cores(&self) -> &[IndexSet] {
        &self.cores
    }

    /// Returns all GPUs of the machine, by address.
    pub fn gpus(&self) -> &[GpuPlace] {
        &self.gpus
    }

    /// Returns the node that a PCI address reports.
    pub fn node_of(&self, pci: PciAddress) -> NumaNode {
        self.gpus.iter().find(|gpu| gpu.pci == pci).map_or(NumaNode::UNKNOWN, |gpu| gpu.node)
    }

    /// Returns the node with usable CPUs that is nearest to a node: itself if it has any.
    pub fn cpus_near(&self, index: u32) -> Option<&Node> {
        self.nearest(index, |node| !node.cpus.is_empty())
    }

    /// Returns the node with usable memory that is nearest to a node: itself if it has any. Otherwise a node that also has
    /// CPUs is chosen, if there is one: memory without CPUs belongs to a GPU, or is slower.
    pub fn memory_near(&self, index: u32) -> Option<&Node> {
        let has_memory = |node: &Node| node.memory > Bytes::ZERO && node.memory_allowed;
        self.nearest(index, |node| has_memory(node) && (node.has_cpus || node.index == index))
            .or_else(|| self.nearest(index, has_memory))
    }

    fn nearest(&self, index: u32, is_wanted: impl Fn(&Node) -> bool) -> Option<&Node> {
        let from = self.node(index)?;
        let wanted = self.nodes.iter().filter(|node| is_wanted(node));
        wanted.min_by_key(|node| (node.index != index, from.distance_to(node.index), node.index))
    }
}

impl Node {
    /// Returns the distance to another node; the greatest number where it is not reported.
    pub fn distance_to(&self, index: u32) -> u32 {
        self.distances.iter().find(|(to, _)| *to == index).map_or(u32::MAX, |(_, distance)| *distance)
    }
}
