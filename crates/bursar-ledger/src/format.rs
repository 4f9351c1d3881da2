//! The file format: where things are in a ledger and how values are stored.

mod layout;
mod seal;
mod text;
mod words;

pub use layout::{LETTERS, Layout, MAGIC, STEP_MAX, VERSION, header, node, process, waiter};
pub(crate) use seal::{digest, product, quotient, residue};
pub use seal::{sealed, unsealed};
pub(crate) use text::{packed, spelled, unpacked, unspelled};
pub use words::{Sheet, Words};
