//! How much memory can be had before the kernel starts to kill: asked before anything is touched.
//!
//! File caches are counted as free, since the kernel drops them first. What cannot be read sets no limit.

use bursar_core::Bytes;
use bursar_linux::{MemoryInfo, control_groups};
use std::path::{Path, PathBuf};

/// A limit on memory, and what is left under it.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_host::MemoryLimit;
///
/// let machine = MemoryLimit { group: None, available: Bytes::gib(2), limit: Bytes::gib(4) };
/// assert!(machine.available < machine.limit);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The folder of the control group that sets it; without one it is the machine's own.
    pub group: Option<PathBuf>,
    /// What is left.
    pub available: Bytes,
    /// All there is.
    pub limit: Bytes,
}

/// Returns the limits that hold for this process, as the files below `root` say.
pub(crate) fn read(root: &Path) -> Vec<MemoryLimit> {
    let machine = MemoryInfo::read(root).ok().map(|memory| MemoryLimit {
        group: None,
        available: Bytes(memory.available),
        limit: Bytes(memory.total),
    });
    let groups = control_groups(root).unwrap_or_default().into_iter().filter_map(|group| {
        let memory = group.memory().ok()??;
        Some(MemoryLimit {
            group: Some(group.folder().to_owned()),
            available: Bytes(memory.available()),
            limit: Bytes(memory.limit),
        })
    });
    machine.into_iter().chain(groups).collect()
}
