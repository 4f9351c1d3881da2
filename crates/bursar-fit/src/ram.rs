//! The machine's memory that is available: what the kernel reports, and what control groups leave of it.
//!
//! The limit is looked for on the whole path: every control group from this program's to the outermost that can be seen is
//! read, version 2 and version 1, and the one that leaves the least counts. A missing file means no limit only where the
//! kernel would not write it.

use crate::{FitError, ProbeError};
use bursar_core::{Bytes, MemoryInfo};
use bursar_ledger::{Ledger, Subject};
use bursar_linux::{SystemMemory, control_groups};
use std::path::{Path, PathBuf};

/// The folder that the machine's memory is read from.
///
/// ```no_run
/// let reading = bursar::fit::Ram::of_this_machine().read()?;
/// println!("{} available, bound by {}", reading.available(), reading.bound());
/// # Ok::<(), bursar::fit::ProbeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ram {
    root: PathBuf,
}

impl Ram {
    /// Returns the machine this program runs on, with the control groups it is in.
    pub fn of_this_machine() -> Self {
        Self::below("/")
    }

    /// Returns the machine whose files lie below `root`: `proc/meminfo`, `proc/self/cgroup`, `proc/self/mountinfo`, and the
    /// control groups where `mountinfo` says they are mounted.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Reads everything that limits what is available.
    pub fn read(&self) -> Result<RamReading, ProbeError> {
        let memory = SystemMemory::read(&self.root)?;
        let mut group_limits = Vec::new();
        for group in control_groups(&self.root)? {
            let limit = |memory: bursar_linux::GroupMemory| GroupLimit {
                folder: group.folder().to_owned(),
                limit: Bytes(memory.limit),
                used: Bytes(memory.used),
            };
            group_limits.extend(group.memory()?.map(limit));
        }
        Ok(RamReading { total: Bytes(memory.total), mem_available: Bytes(memory.available), group_limits })
    }

    /// Opens the ledger of the machine's memory. It is measured by `available`, which returns the bytes that are
    /// available to this program; more than the machine has counts as all of it.
    pub fn open_ledger(
        &self,
        available: impl Fn() -> Result<Bytes, ProbeError> + Send + Sync + 'static,
    ) -> Result<Ledger, FitError> {
        let total = self.read()?.total;
        Ok(Self::measure(Ledger::open(&Subject::host(total))?, total, available))
    }

    /// Returns a ledger of a machine's memory, measured by `available`.
    pub(crate) fn measure(
        ledger: Ledger,
        total: Bytes,
        available: impl Fn() -> Result<Bytes, ProbeError> + Send + Sync + 'static,
    ) -> Ledger {
        ledger.measured_by(move || Ok(MemoryInfo { free: available().map_err(FitError::from)?.min(total), total }))
    }
}

/// The limit of a control group on the memory of this program.
///
/// ```
/// use bursar::Bytes;
/// use bursar::fit::GroupLimit;
///
/// let limit = GroupLimit { folder: "/sys/fs/cgroup/job".into(), limit: Bytes::gib(8), used: Bytes::gib(5) };
/// assert_eq!(limit.available(), Bytes::gib(3));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// The folder of its files.
    pub folder: PathBuf,
    /// The most that all its programs may use together.
    pub limit: Bytes,
    /// The bytes they use, without cached files, which the kernel drops before it refuses memory.
    pub used: Bytes,
}

impl GroupLimit {
    /// Returns the bytes that are left under the limit.
    pub fn available(&self) -> Bytes {
        self.limit.saturating_sub(self.used)
    }
}

/// The limits of the memory that is available.
///
/// ```no_run
/// let reading = bursar::fit::Ram::of_this_machine().read()?;
/// assert!(reading.available() <= reading.mem_available);
/// # Ok::<(), bursar::fit::ProbeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RamReading {
    /// All the memory of the machine.
    pub total: Bytes,
    /// The bytes that can be used without swapping, by the kernel's estimate.
    pub mem_available: Bytes,
    /// The limits of the control groups that this program is in, each from the innermost outwards.
    pub group_limits: Vec<GroupLimit>,
}

impl RamReading {
    /// Returns the least of what the machine and each control group leave.
    pub fn available(&self) -> Bytes {
        self.tightest().map_or(self.mem_available, |limit| limit.available().min(self.mem_available))
    }

    /// Returns, in words, whether the machine or which control group leaves the least.
    pub fn bound(&self) -> String {
        match self.tightest().filter(|limit| limit.available() < self.mem_available) {
            Some(limit) => format!("the control group {}", limit.folder.display()),
            None => "the machine".to_owned(),
        }
    }

    fn tightest(&self) -> Option<&GroupLimit> {
        self.group_limits.iter().min_by_key(|limit| limit.available())
    }
}

/// Returns the size of a file, or none if there is no such file.
///
/// ```
/// assert_eq!(bursar::fit::file_size("no/such/file"), None);
/// ```
pub fn file_size(path: impl AsRef<Path>) -> Option<Bytes> {
    let found = std::fs::metadata(path).ok()?;
    found.is_file().then_some(Bytes(found.len()))
}
