//! The memory that can be allocated before the kernel starts to kill processes, checked before anything is touched.
//!
//! Cached files count as free, since the kernel drops them first. A limit that cannot be read does not count.

use bursar_core::Bytes;
use bursar_linux::{SystemMemory, control_groups};
use std::path::{Path, PathBuf};

/// A limit on memory, and the part of it that is left.
///
/// ```
/// use bursar::Bytes;
/// use bursar::host::MemoryLimit;
///
/// let machine = MemoryLimit { group: None, available: Bytes::gib(2), limit: Bytes::gib(4) };
/// assert!(machine.available < machine.limit);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The folder of the control group that sets it; none for the machine itself.
    pub group: Option<PathBuf>,
    /// The bytes that are left.
    pub available: Bytes,
    /// The limit, or all memory of the machine.
    pub limit: Bytes,
}

/// Returns the limits that apply to this process, read below `root`.
pub(crate) fn read(root: &Path) -> Vec<MemoryLimit> {
    let machine = SystemMemory::read(root).ok().map(|memory| MemoryLimit {
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
