//! Machines made of files, as such machines are documented to have them.

use bursar_host::{HostError, IndexSet, Topology};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that is removed with its contents.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("bursar-host-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The files of a machine.
#[derive(Debug)]
pub(crate) struct Tree {
    folder: Folder,
    nodes: Vec<u32>,
}

impl Tree {
    /// Creates a machine with these CPUs online, all of which this process may use.
    pub(crate) fn with_cpus(online: &str) -> Self {
        let tree = Self { folder: Folder::new(), nodes: Vec::new() };
        tree.write("sys/devices/system/cpu/online", online).allowed(online)
    }

    pub(crate) fn write(self, path: &str, text: &str) -> Self {
        self.folder.write(path, format!("{text}\n"));
        self
    }

    /// Sets the CPUs and nodes that this process may use.
    pub(crate) fn allowed(self, cpus: &str) -> Self {
        let status = format!("Name:\tworker\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}");
        self.write("proc/self/status", &status)
    }

    pub(crate) fn allowed_with_memory_of(self, cpus: &str, nodes: &str) -> Self {
        let status = format!("Name:\tworker\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{nodes}");
        self.write("proc/self/status", &status)
    }

    /// Adds a node with these CPUs and this many GiB, at these distances from the nodes that are online.
    pub(crate) fn node(mut self, index: u32, cpus: &str, gib: u64, distances: &str) -> Self {
        self.nodes.push(index);
        let online: IndexSet = self.nodes.iter().copied().collect();
        let folder = format!("sys/devices/system/node/node{index}");
        let meminfo = format!("Node {index} MemTotal:  {} kB\nNode {index} MemFree:   1024 kB", gib << 20);
        self.write("sys/devices/system/node/online", &online.to_string())
            .write(&format!("{folder}/cpulist"), cpus)
            .write(&format!("{folder}/meminfo"), &meminfo)
            .write(&format!("{folder}/distance"), distances)
    }

    /// Adds cores whose two siblings are `distance` apart.
    pub(crate) fn siblings(self, cores: std::ops::Range<u32>, distance: u32) -> Self {
        let write = |tree: Self, cpu: u32, core: u32| {
            let file = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            tree.write(&file, &format!("{core},{}", core + distance))
        };
        cores.fold(self, |tree, core| write(write(tree, core, core), core + distance, core))
    }

    /// Adds a GPU at a PCI address, on a node, or on -1 where it is unknown.
    pub(crate) fn gpu(self, address: &str, node: i32) -> Self {
        let folder = format!("sys/bus/pci/devices/{address}");
        self.write(&format!("{folder}/vendor"), "0x10de")
            .write(&format!("{folder}/class"), "0x030200")
            .write(&format!("{folder}/numa_node"), &node.to_string())
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn read(&self) -> Result<Topology, HostError> {
        Topology::read(self.path())
    }

    #[track_caller]
    pub(crate) fn topology(&self) -> Topology {
        self.read().expect("files that make sense")
    }
}
