//! The seam to the operating system: every call that placing memory takes, each of which may be refused.

mod calls;
mod limits;
mod machine;
mod region;

pub use limits::MemoryLimit;
pub use machine::Machine;
pub use region::Region;

use crate::{Errno, IndexSet};
use bursar_core::Bytes;
use std::fmt;
use std::ops::Range;

/// What is asked of the operating system. [`Machine`](crate::Machine) is the real one; tests wrap it and refuse what they
/// like.
///
/// ```
/// use bursar_host::{Machine, System};
///
/// let machine = Machine::default();
/// let region = machine.reserve(1 << 20)?;
/// machine.populate(&region, 0..region.len())?;
/// assert_eq!(machine.mapped(), 1 << 20);
/// drop(region);
/// assert_eq!(machine.mapped(), 0);
/// # Ok::<(), bursar_host::Errno>(())
/// ```
pub trait System: fmt::Debug + Send + Sync + 'static {
    /// How much memory there is to be had, and who says so.
    fn limits(&self) -> Vec<MemoryLimit>;

    /// What this process may lock.
    fn locked_memory(&self) -> LockedMemory;

    /// Lets the calling thread run on these CPUs only.
    fn run_on(&self, cpus: &IndexSet) -> Result<(), Errno>;

    /// Where the calling thread may run.
    fn runs_on(&self) -> Result<IndexSet, Errno>;

    /// Addresses with no memory behind them yet, a multiple of pages.
    fn reserve(&self, bytes: usize) -> Result<Region, Errno>;

    /// Has pages of the region come from a node, as long as there are any.
    fn bind(&self, region: &Region, node: u32) -> Result<(), Errno>;

    /// Asks for huge pages.
    fn advise_huge(&self, region: &Region) -> Result<(), Errno>;

    /// Puts memory behind a part of the region, as if it had been written to. An old kernel answers `EINVAL`.
    fn populate(&self, region: &Region, part: Range<usize>) -> Result<(), Errno>;

    /// On which nodes the pages at some addresses are; a negative number is the reason why the kernel does not say.
    fn locate(&self, addresses: &[usize]) -> Result<Vec<i32>, Errno>;
}

/// What a process may lock in memory.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_host::LockedMemory;
///
/// let usual = LockedMemory { limit: Bytes::kib(64), locked: Bytes::ZERO, is_privileged: false };
/// assert!(!usual.covers(Bytes::mib(1)));
/// assert!(LockedMemory { is_privileged: true, ..usual }.covers(Bytes::mib(1)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedMemory {
    /// The soft limit, `RLIMIT_MEMLOCK`.
    pub limit: Bytes,
    /// What it has locked and pinned, as far as the kernel counts it.
    pub locked: Bytes,
    /// Whether the limit is not for it, because it has `CAP_IPC_LOCK`.
    pub is_privileged: bool,
}

impl LockedMemory {
    /// Whether so much more may be locked.
    pub const fn covers(&self, more: Bytes) -> bool {
        self.is_privileged || self.locked.saturating_add(more).get() <= self.limit.get()
    }
}
