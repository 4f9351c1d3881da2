//! The memory of the machine.

use crate::ReadError;
use crate::text::TextFile;
use std::path::Path;

/// The memory of the machine, as `/proc/meminfo` reports it.
///
/// ```
/// let memory = bursar_linux::MemoryInfo::read("/")?;
/// assert!(memory.available <= memory.total);
/// # Ok::<(), bursar_linux::ReadError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// All memory of the machine, in bytes.
    pub total: u64,
    /// The bytes that the kernel estimates can be allocated without swapping.
    pub available: u64,
}

impl MemoryInfo {
    /// Reads `proc/meminfo` below `root`.
    pub fn read(root: impl AsRef<Path>) -> Result<Self, ReadError> {
        let file = TextFile::read(root.as_ref().join("proc/meminfo"))?;
        let bytes = |name| Ok(file.number(name, file.field(name)?)?.saturating_mul(1024));
        Ok(Self { total: bytes("MemTotal:")?, available: bytes("MemAvailable:")? })
    }
}
