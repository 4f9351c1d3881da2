//! How much of the machine's memory is available: what the kernel says, and what control groups leave of it.

use crate::ProbeError;
use bursar_core::Bytes;
use bursar_linux::{MemoryInfo, control_groups};
use std::path::{Path, PathBuf};

/// Where the machine's memory is read from.
///
/// ```no_run
/// let reading = bursar_fit::Ram::of_this_machine().read()?;
/// println!("{} available, bound by {}", reading.available(), reading.bound());
/// # Ok::<(), bursar_fit::ProbeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ram {
    root: PathBuf,
}

impl Ram {
    /// The machine this program runs on, and the control groups it is in.
    pub fn of_this_machine() -> Self {
        Self::below("/")
    }

    /// The machine whose files lie below `root`: `proc/meminfo`, `proc/self/cgroup`, `proc/self/mountinfo`, and the
    /// control groups where that says they are mounted.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Reads everything that bounds what is available.
    pub fn read(&self) -> Result<RamReading, ProbeError> {
        let memory = MemoryInfo::read(&self.root)?;
        let mut levels = Vec::new();
        for group in control_groups(&self.root)? {
            let level = |memory: bursar_linux::GroupMemory| Level {
                folder: group.folder().to_owned(),
                limit: Bytes(memory.limit),
                used: Bytes(memory.used),
            };
            levels.extend(group.memory()?.map(level));
        }
        Ok(RamReading { total: Bytes(memory.total), mem_available: Bytes(memory.available), levels })
    }
}

/// A control group that limits the memory of this program.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_fit::Level;
///
/// let level = Level { folder: "/sys/fs/cgroup/job".into(), limit: Bytes::gib(8), used: Bytes::gib(5) };
/// assert_eq!(level.available(), Bytes::gib(3));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// The folder of its files.
    pub folder: PathBuf,
    /// The most that all its programs may use together.
    pub limit: Bytes,
    /// The bytes they use, without cached files, which the kernel drops before it refuses memory.
    pub used: Bytes,
}

impl Level {
    /// Returns the bytes that are left under the limit.
    pub fn available(&self) -> Bytes {
        self.limit.saturating_sub(self.used)
    }
}

/// What bounds the memory that is available.
///
/// ```no_run
/// let reading = bursar_fit::Ram::of_this_machine().read()?;
/// assert!(reading.available() <= reading.mem_available);
/// # Ok::<(), bursar_fit::ProbeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RamReading {
    /// All the memory of the machine.
    pub total: Bytes,
    /// What the kernel says can be had without swapping.
    pub mem_available: Bytes,
    /// The limits of the control groups this program is in, each from the innermost outwards.
    pub levels: Vec<Level>,
}

impl RamReading {
    /// The least of what the machine and each control group leave.
    pub fn available(&self) -> Bytes {
        self.tightest().map_or(self.mem_available, |level| level.available().min(self.mem_available))
    }

    /// What leaves the least, in words.
    pub fn bound(&self) -> String {
        match self.tightest().filter(|level| level.available() < self.mem_available) {
            Some(level) => format!("the control group {}", level.folder.display()),
            None => "the machine".to_owned(),
        }
    }

    fn tightest(&self) -> Option<&Level> {
        self.levels.iter().min_by_key(|level| level.available())
    }
}

/// The size of a file; none where there is no such file.
///
/// ```
/// assert_eq!(bursar_fit::file_size("no/such/file"), None);
/// ```
pub fn file_size(path: impl AsRef<Path>) -> Option<Bytes> {
    let found = std::fs::metadata(path).ok()?;
    found.is_file().then_some(Bytes(found.len()))
}
