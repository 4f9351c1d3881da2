//! The file of a ledger.

mod file;
mod folder;
mod header;
mod in_use;
mod mapped_words;
mod snapshot;

pub(crate) use file::{Opened, open, open_or_make, take_place};
pub(crate) use folder::{chosen, ledgers};
pub(crate) use header::write_header;
pub(crate) use mapped_words::{Ground, Standing};
pub(crate) use snapshot::look_at;
