//! The machine's memory that is available: what the kernel reports, and what control groups leave of it.
//!
//! The limit is looked for on the whole path: every control group from this program's to the outermost that can be seen is
//! read, version 2 and version 1, and the one that leaves the least counts. A missing file means no limit only where the
//! kernel would not write it.

mod cgroup;
mod text;

use crate::ProbeError;
use bursar_core::Bytes;
use std::path::{Path, PathBuf};
use text::File;

pub use cgroup::Level;

/// The folder that the machine's memory is read from.
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
    /// Returns the machine this program runs on, with the control groups it is in.
    pub fn of_this_machine() -> Self {
        Self::below("/")
    }

    /// Returns the machine whose files lie below `root`: `proc/meminfo`, `proc/self/cgroup`, `proc/self/mountinfo`, and the
    /// control groups where `mountinfo` says they are mounted.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Reads everything that bounds what is available.
    pub fn read(&self) -> Result<RamReading, ProbeError> {
        let meminfo = File::read(self.root.join("proc/meminfo"))?;
        let field = |name: &str| meminfo.field(name).and_then(|kib| meminfo.kib(name, kib));
        Ok(RamReading {
            total: field("MemTotal:")?,
            mem_available: field("MemAvailable:")?,
            levels: cgroup::levels(&self.root)?,
        })
    }
}

/// The limits of the memory that is available.
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
    /// The bytes that can be used without swapping, by the kernel's estimate.
    pub mem_available: Bytes,
    /// The limits of the control groups this program is in, each from the innermost outwards.
    pub levels: Vec<Level>,
}

impl RamReading {
    /// Returns the least of what the machine and each control group leave.
    pub fn available(&self) -> Bytes {
        self.tightest().map_or(self.mem_available, |level| level.available().min(self.mem_available))
    }

    /// Returns, in words, whether the machine or which control group leaves the least.
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

/// Returns the size of a file, or none if there is no such file.
///
/// ```
/// assert_eq!(bursar_fit::file_size("no/such/file"), None);
/// ```
pub fn file_size(path: impl AsRef<Path>) -> Option<Bytes> {
    let found = std::fs::metadata(path).ok()?;
    found.is_file().then_some(Bytes(found.len()))
}
