//! The file of a ledger: where it is, how it is opened or made, and its words in memory.
//!
//! The folder is `folder.rs`. `file.rs` opens or makes a file in it and checks the file before it is used; `header.rs`
//! writes and reads the header, and `snapshot.rs` copies all words, to check them or to read a ledger without opening
//! it. `in_use.rs` sees to it that no second file is used under the same path. `mapped_words.rs` is the result: the
//! [`Words`](crate::format::Words) of an open ledger.
//!
//! # Alive is a locked byte
//!
//! Each process locks one byte of the file, chosen by its slot, through an open file description of its own; the kernel
//! drops the lock with the process. Process ids, their namespaces and clocks play no part. Process-owned locks
//! (`F_SETLK`) would vanish when anything in the process closes the file.

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
pub(crate) use snapshot::{inspect, inspect_in};
