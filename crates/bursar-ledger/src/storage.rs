//! The file of a ledger.

mod file;
mod folder;
mod header;
mod in_use;
mod mapped_words;
mod snapshot;

pub(crate) use file::{LedgerFile, claim_slot, open, open_or_make};
pub(crate) use folder::{default_folder, ledgers};
pub(crate) use header::write_header;
pub(crate) use mapped_words::{HandleState, MappedWords};
pub(crate) use snapshot::inspect;
