//! What a ledger asks of the operating system.

mod kernel;
mod linux;
mod mapping;
mod process;
#[cfg(test)]
pub(crate) mod simulated;

pub(crate) use kernel::{Facts, FileKind, Identity, Kernel, Lock, News, Opening, Range, Rounds, Watch};
pub(crate) use mapping::Mapping;
pub(crate) use process::{Process, Tether};

use std::time::SystemTime;

/// Returns the milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(u64::MAX)
}
