//! The seam to the operating system: every call that placing memory needs, each of which may be refused.

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

/// The operating system, as far as placing memory needs it. [`Machine`](crate::Machine) is the real one; tests wrap it and
/// refuse calls.
///
/// ```
/// use bursar::host::{Machine, System};
///
/// let machine = Machine::default();
/// let region = machine.reserve(1 << 20)?;
/// machine.populate(&region, 0..region.len())?;
/// assert_eq!(machine.mapped(), 1 << 20);
/// drop(region);
/// assert_eq!(machine.mapped(), 0);
/// # Ok::<(), bursar::host::Errno>(())
/// ```
pub trait System: fmt::Debug + Send + Sync + 'static {
    /// Returns the limits on memory.
    fn limits(&self) -> Vec<MemoryLimit>;

    /// Returns the limit on locked memory of this process.
    fn locked_memory(&self) -> LockedMemory;

    /// Restricts the calling thread to these CPUs.
    fn run_on(&self, cpus: &IndexSet) -> Result<(), Errno>;

    /// Returns the CPUs that the calling thread may run on.
    fn runs_on(&self) -> Result<IndexSet, Errno>;

    /// Reserves addresses without memory behind them, a multiple of pages.
    fn reserve(&self, bytes: usize) -> Result<Region, Errno>;

    /// Makes a node the preferred one for the pages of a region.
    fn bind(&self, region: &Region, node: u32) -> Result<(), Errno>;

    /// Asks for huge pages.
    fn advise_huge(&self, region: &Region) -> Result<(), Errno>;

    /// Puts memory behind a part of the region, which nobody has been given yet, as if it had been written to.
    fn populate(&self, region: &Region, part: Range<usize>) -> Result<(), Errno>;

    /// Returns the nodes of the pages at these addresses; a negative number is the reason why the kernel does not know.
    fn locate(&self, addresses: &[usize]) -> Result<Vec<i32>, Errno>;
}

/// The locked memory of a process, and its limit.
///
/// ```
/// use bursar::Bytes;
/// use bursar::host::LockedMemory;
///
/// let usual = LockedMemory { limit: Bytes::kib(64), locked: Bytes::ZERO, is_privileged: false };
/// assert!(!usual.covers(Bytes::mib(1)));
/// assert!(LockedMemory { is_privileged: true, ..usual }.covers(Bytes::mib(1)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedMemory {
    /// The soft limit, `RLIMIT_MEMLOCK`.
    pub limit: Bytes,
    /// The bytes it has locked and pinned, as the kernel counts them.
    pub locked: Bytes,
    /// True if the limit does not apply, because the process has `CAP_IPC_LOCK`.
    pub is_privileged: bool,
}

impl LockedMemory {
    /// Returns whether `more` bytes may be locked.
    pub const fn covers(&self, more: Bytes) -> bool {
        self.is_privileged || self.locked.saturating_add(more).get() <= self.limit.get()
    }
}
