//! What the machine is made of, as the kernel tells it: nodes, their CPUs and memory, and where GPUs sit.
//!
//! Everything is read below a root folder, so that the files of any machine can be looked at on any other. Nothing is
//! guessed: a GPU whose node nobody reports is on an unknown one.

mod cpu_share;
mod sysfs;

use crate::{HostError, IndexSet};
use bursar_core::{Bytes, NumaNode, PciAddress};
use std::path::Path;

/// The nodes of a machine, the CPUs of this process, and the GPUs.
///
/// ```
/// use bursar_host::Topology;
///
/// let here = Topology::here()?;
/// assert!(!here.cpus().is_empty(), "this runs somewhere");
/// # Ok::<(), bursar_host::HostError>(())
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
/// use bursar_host::Topology;
///
/// for node in Topology::here()?.nodes() {
///     println!("node {}: CPUs {}, {}", node.index, node.cpus, node.memory);
/// }
/// # Ok::<(), bursar_host::HostError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// The kernel's number for it.
    pub index: u32,
    /// Its CPUs that are online and that this process may use.
    pub cpus: IndexSet,
    /// Whether it has CPUs at all, usable or not.
    pub has_cpus: bool,
    /// All of its memory.
    pub memory: Bytes,
    /// Whether this process may have memory of it.
    pub memory_allowed: bool,
    /// How far it is to each node, as the firmware says: 10 is here, and more is further.
    pub distances: Vec<(u32, u32)>,
    /// Huge pages that were set aside for it.
    pub huge_pages: Vec<HugePages>,
}

/// Huge pages of one size that were set aside on a node.
///
/// ```
/// use bursar_host::Topology;
///
/// let here = Topology::here()?;
/// let free: u64 = here.nodes().iter().flat_map(|node| &node.huge_pages).map(|pages| pages.free).sum();
/// println!("{free} huge pages are set aside and free");
/// # Ok::<(), bursar_host::HostError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HugePages {
    /// How large each is.
    pub size: Bytes,
    /// How many there are.
    pub total: u64,
    /// How many nobody has.
    pub free: u64,
}

/// Where a GPU sits.
///
/// ```
/// use bursar_host::Topology;
///
/// let here = Topology::here()?;
/// for gpu in here.gpus() {
///     println!("{} is on node {}: CPUs {}", gpu.pci, gpu.node, here.cpus_of_gpu(gpu.pci));
/// }
/// # Ok::<(), bursar_host::HostError>(())
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
    /// This machine.
    pub fn here() -> Result<Self, HostError> {
        Self::read(Path::new("/"))
    }

    /// The machine whose `proc` and `sys` lie in a folder. A file that is missing says nothing: a kernel without NUMA has
    /// no nodes. One that makes no sense is an error.
    pub fn read(root: &Path) -> Result<Self, HostError> {
        sysfs::Reader::new(root).topology()
    }

    /// The same machine for someone who may use only some of its CPUs.
    pub fn restricted_to(mut self, allowed: &IndexSet) -> Self {
        self.cpus = self.cpus.and(allowed);
        self.nodes.iter_mut().for_each(|node| node.cpus = node.cpus.and(allowed));
        self.cores.iter_mut().for_each(|core| *core = core.and(allowed));
        self.cores.retain(|core| !core.is_empty());
        self
    }

    /// The nodes that are online, by number.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A node by its number.
    pub fn node(&self, index: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.index == index)
    }

    /// The CPUs that are online and that this process may use.
    pub fn cpus(&self) -> &IndexSet {
        &self.cpus
    }

    /// Those CPUs by core: the siblings of one core together.
    pub fn cores(&self) -> &[IndexSet] {
        &self.cores
    }

    /// The GPUs of the machine, by address, whoever may use them.
    pub fn gpus(&self) -> &[GpuPlace] {
        &self.gpus
    }

    /// The node that a PCI address reports.
    pub fn node_of(&self, pci: PciAddress) -> NumaNode {
        self.gpus.iter().find(|gpu| gpu.pci == pci).map_or(NumaNode::UNKNOWN, |gpu| gpu.node)
    }

    /// The node whose CPUs are nearest to a node and may be used: itself if it has any.
    pub fn cpus_near(&self, index: u32) -> Option<&Node> {
        self.nearest(index, |node| !node.cpus.is_empty())
    }

    /// The node whose memory is nearest to a node and may be had: itself if it has any. Memory of another node is taken
    /// only where that one has CPUs, if there is such a node: memory without CPUs is a GPU's, or slower.
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
    /// How far it is to another node; the greatest number where nobody says.
    pub fn distance_to(&self, index: u32) -> u32 {
        self.distances.iter().find(|(to, _)| *to == index).map_or(u32::MAX, |(_, distance)| *distance)
    }
}
