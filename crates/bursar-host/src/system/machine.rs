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

    fn populate(&self, region: &Region, part: Range<usize>) -> Result<(), Errno> {
        let (start, bytes) = region.part(part);
        loop {
            // SAFETY: the part is mapped, and populating leaves contents alone.
            match unsafe { calls::advise(start, bytes, libc::MADV_POPULATE_WRITE) } {
                Err(Errno(libc::EINTR | libc::EAGAIN)) => std::thread::yield_now(),
                result => return result,
            }
        }
    }

    fn locate(&self, addresses: &[usize]) -> Result<Vec<i32>, Errno> {
        calls::locate(addresses)
    }
}
