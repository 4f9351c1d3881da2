//! The operating system of this machine.
#![allow(unsafe_code)]

use super::{LockedMemory, MemoryLimit, Region, System, calls, limits};
use crate::{Errno, IndexSet};
use bursar_core::Bytes;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The kernel of this machine.
///
/// ```
/// use bursar::host::{Machine, System};
///
/// assert!(!Machine::default().runs_on()?.is_empty());
/// # Ok::<(), bursar::host::Errno>(())
/// ```
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    mapped: Arc<AtomicUsize>,
}

impl Default for Machine {
    fn default() -> Self {
        Self::with_root("/")
    }
}

impl Machine {
    /// Creates a system that calls this machine's kernel and reads limits from the `proc` and `sys` of a folder.
    pub fn with_root(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), mapped: Arc::default() }
    }

    /// Returns the bytes that it has reserved and that were not released.
    pub fn mapped(&self) -> usize {
        self.mapped.load(Ordering::Relaxed)
    }

    /// Returns the node of the CPU that the calling thread runs on.
    pub fn current_node() -> Result<u32, Errno> {
        calls::current_node()
    }

    /// Returns the size of a page.
    pub fn page() -> usize {
        calls::page()
    }
}

/// The bit of `CAP_IPC_LOCK` in the capability mask.
const IPC_LOCK: u32 = 14;

impl System for Machine {
    fn limits(&self) -> Vec<MemoryLimit> {
        limits::read(&self.root)
    }

    fn locked_memory(&self) -> LockedMemory {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name| status.lines().find_map(|line: &str| line.strip_prefix(name)?.split_whitespace().next());
        let kib = |name| field(name).and_then(|text| text.parse().ok()).unwrap_or(0);
        let capabilities = field("CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0);
        LockedMemory {
            limit: Bytes(calls::locked_memory_limit()),
            locked: Bytes::kib(kib("VmLck:") + kib("VmPin:")),
            is_privileged: capabilities >> IPC_LOCK & 1 == 1,
        }
    }

    fn run_on(&self, cpus: &IndexSet) -> Result<(), Errno> {
        calls::set_affinity(cpus)
    }

    fn runs_on(&self) -> Result<IndexSet, Errno> {
        calls::affinity()
    }

    fn reserve(&self, bytes: usize) -> Result<Region, Errno> {
        Region::map(bytes, &self.mapped)
    }

    fn bind(&self, region: &Region, node: u32) -> Result<(), Errno> {
        calls::prefer_node(region.start(), region.len(), node)
    }

    fn advise_huge(&self, region: &Region) -> Result<(), Errno> {
        // SAFETY: the region is mapped, and the advice is about the size of its pages.
        unsafe { calls::advise(region.start(), region.len(), libc::MADV_HUGEPAGE) }
    }

    /// Writes to each page. A fault takes the lock of one mapping, where `MADV_POPULATE_WRITE` holds that of the whole address
    /// space, behind which helper threads cannot even start: on 16 cores it was nine times as slow.
    fn populate(&self, region: &Region, part: Range<usize>) -> Result<(), Errno> {
        region.touch(part);
        Ok(())
    }

    fn locate(&self, addresses: &[usize]) -> Result<Vec<i32>, Errno> {
        calls::locate(addresses)
    }
}
