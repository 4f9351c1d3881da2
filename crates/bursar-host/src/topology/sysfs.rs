//! Reads the kernel's files.

use super::{GpuPlace, HugePages, Node, Topology};
use crate::{HostError, IndexSet};
use bursar_core::{Bytes, NumaNode, PciAddress};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The PCI classes of display controllers and processing accelerators.
const GPU_CLASSES: [u32; 2] = [0x03, 0x12];

/// The PCI vendor of NVIDIA.
const NVIDIA: &str = "0x10de";

/// The files of one machine.
pub(super) struct Reader<'a> {
    root: &'a Path,
}

impl<'a> Reader<'a> {
    pub(super) fn new(root: &'a Path) -> Self {
        Self { root }
    }

    pub(super) fn topology(&self) -> Result<Topology, HostError> {
        let online = self.list("sys/devices/system/cpu/online")?;
        let allowed = self.allowed("Cpus_allowed_list")?;
        let cpus = match (online, allowed) {
            (Some(online), Some(allowed)) => online.and(&allowed),
            (online, allowed) => online.or(allowed).unwrap_or_default(),
        };
        let mems = self.allowed("Mems_allowed_list")?;
        let indices = self.list("sys/devices/system/node/online")?.unwrap_or_default();
        let nodes = indices.iter().map(|index| self.node(index, &indices, &cpus, mems.as_ref()));
        Ok(Topology { nodes: nodes.collect::<Result<_, _>>()?, cores: self.cores(&cpus)?, gpus: self.gpus()?, cpus })
    }

    fn node(&self, index: u32, all: &IndexSet, usable: &IndexSet, mems: Option<&IndexSet>) -> Result<Node, HostError> {
        let folder = format!("sys/devices/system/node/node{index}");
        let cpus = self.list(&format!("{folder}/cpulist"))?.unwrap_or_default();
        Ok(Node {
            index,
            cpus: cpus.and(usable),
            has_cpus: !cpus.is_empty(),
            memory: self.memory(&format!("{folder}/meminfo"))?,
            memory_allowed: mems.is_none_or(|mems| mems.contains(index)),
            distances: self.distances(&format!("{folder}/distance"), all)?,
            huge_pages: self.huge_pages(&format!("{folder}/hugepages"))?,
        })
    }

    /// Reads the memory of a node: `Node 0 MemTotal:  131072 kB`, among other lines.
    fn memory(&self, path: &str) -> Result<Bytes, HostError> {
        let Some(text) = self.text(path)? else { return Ok(Bytes::ZERO) };
        let total = text.lines().find_map(|line| {
            let mut words = line.split_whitespace().skip_while(|word| *word != "MemTotal:").skip(1);
            words.next()?.parse().ok().map(|kib: u64| Bytes(kib.saturating_mul(1024)))
        });
        total.ok_or_else(|| self.wrong(path, "it has no MemTotal"))
    }

    /// Reads the distances: one number for each online node, in their order.
    fn distances(&self, path: &str, all: &IndexSet) -> Result<Vec<(u32, u32)>, HostError> {
        let Some(text) = self.text(path)? else { return Ok(Vec::new()) };
        let numbers: Option<Vec<u32>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
        match numbers {
            Some(numbers) if numbers.len() == all.len() => Ok(all.iter().zip(numbers).collect()),
            Some(numbers) => Err(self.wrong(path, &format!("{} distances for {} nodes", numbers.len(), all.len()))),
            None => Err(self.wrong(path, "a distance is not a number")),
        }
    }

    fn huge_pages(&self, folder: &str) -> Result<Vec<HugePages>, HostError> {
        let mut found = Vec::new();
        for name in self.names(folder)? {
            let Some(kib) = name.strip_prefix("hugepages-").and_then(|name| name.strip_suffix("kB")) else { continue };
            let Ok(kib) = kib.parse() else { continue };
            let count = |file: &str| self.number(&format!("{folder}/{name}/{file}"));
            let (total, free) = (count("nr_hugepages")?, count("free_hugepages")?);
            found.push(HugePages { size: Bytes::kib(kib), total: total.unwrap_or(0), free: free.unwrap_or(0) });
        }
        Ok(found)
    }

    /// Returns the usable CPUs by core. A CPU whose siblings are not reported is a core of its own.
    fn cores(&self, cpus: &IndexSet) -> Result<Vec<IndexSet>, HostError> {
        let (mut cores, mut seen) = (Vec::new(), IndexSet::default());
        for cpu in cpus.iter() {
            if seen.contains(cpu) {
                continue;
            }
            let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            let siblings = match self.list(&format!("{folder}/core_cpus_list"))? {
                None => self.list(&format!("{folder}/thread_siblings_list"))?,
                siblings => siblings,
            };
            let mut core = siblings.unwrap_or_default().and(cpus);
            core.extend([cpu]);
            seen.extend(core.iter());
            cores.push(core);
        }
        Ok(cores)
    }

    fn gpus(&self) -> Result<Vec<GpuPlace>, HostError> {
        let folder = "sys/bus/pci/devices";
        let mut gpus = Vec::new();
        for name in self.names(folder)? {
            let Some(pci) = pci_address(&name) else { continue };
            let file = |file: &str| self.text(&format!("{folder}/{name}/{file}"));
            let class = file("class")?.and_then(|class| u32::from_str_radix(class.trim().strip_prefix("0x")?, 16).ok());
            let is_gpu = class.is_some_and(|class| GPU_CLASSES.contains(&(class >> 16)));
            if is_gpu && file("vendor")?.is_some_and(|vendor| vendor.trim() == NVIDIA) {
                // A device whose node is unknown reports -1.
                let node = file("numa_node")?.and_then(|node| node.trim().parse().ok());
                gpus.push(GpuPlace { pci, node: node.map_or(NumaNode::UNKNOWN, NumaNode::new) });
            }
        }
        gpus.sort_by_key(|gpu| gpu.pci);
        Ok(gpus)
    }

    /// Reads the CPUs or nodes that this process may use, by the kernel's name for the list.
    fn allowed(&self, name: &str) -> Result<Option<IndexSet>, HostError> {
        let path = "proc/self/status";
        let Some(text) = self.text(path)? else { return Ok(None) };
        let Some(list) = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')) else {
            return Ok(None);
        };
        list.parse().map(Some).map_err(|error| self.wrong(path, &format!("{name}: {error}")))
    }

    fn list(&self, path: &str) -> Result<Option<IndexSet>, HostError> {
        let text = self.text(path)?;
        text.map(|text| text.parse().map_err(|error| self.wrong(path, &format!("{error}")))).transpose()
    }

    fn number(&self, path: &str) -> Result<Option<u64>, HostError> {
        let text = self.text(path)?;
        text.map(|text| text.trim().parse().map_err(|_| self.wrong(path, "it is not a number"))).transpose()
    }

    /// Reads a file; none where it does not exist, or where this process may not read it.
    fn text(&self, path: &str) -> Result<Option<String>, HostError> {
        match std::fs::read_to_string(self.root.join(path)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(None),
            Err(error) => Err(self.wrong(path, &error.to_string())),
        }
    }

    fn names(&self, folder: &str) -> Result<BTreeSet<String>, HostError> {
        match std::fs::read_dir(self.root.join(folder)) {
            Ok(entries) => {
                Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                Ok(BTreeSet::new())
            }
            Err(error) => Err(self.wrong(folder, &error.to_string())),
        }
    }

    fn wrong(&self, path: &str, why: &str) -> HostError {
        HostError::Topology { path: PathBuf::from(self.root).join(path), why: why.to_owned() }
    }
}

/// Parses `0000:4e:00.0`. Functions other than the first are not devices of their own.
fn pci_address(name: &str) -> Option<PciAddress> {
    let (domain, rest) = name.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let device = rest.strip_suffix(".0")?;
    let hex = |text| u32::from_str_radix(text, 16).ok();
    Some(PciAddress { domain: hex(domain)?, bus: hex(bus)?.try_into().ok()?, device: hex(device)?.try_into().ok()? })
}
