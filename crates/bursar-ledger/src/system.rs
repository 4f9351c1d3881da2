//! The operating system, as far as a ledger needs it.
//!
//! [`Kernel`] is the seam: every call that opening, locking, mapping and closing a ledger makes. `linux.rs` implements
//! it by system calls. `simulated.rs` implements it for tests: many processes that can be stopped, forked or killed at
//! any call, which the real system does only by luck. [`Process`] owns the descriptors of a process and closes them in
//! a forked child.

mod kernel;
mod linux;
mod mapping;
mod process;
#[cfg(test)]
pub(crate) mod simulated;

pub(crate) use kernel::{
    FileEvents, FileId, FileKind, FileMetadata, Kernel, LockKind, LockRange, OpenMode, Rounds, Watch,
};
pub(crate) use linux::announce_account;
pub(crate) use mapping::Mapping;
pub(crate) use process::{Descriptor, Process};

use std::time::SystemTime;

/// Returns the milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(u64::MAX)
}
