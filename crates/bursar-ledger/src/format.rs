//! The file format: where the words of a ledger are ([`layout`]), how a value is stored in a word ([`seal`]), how text is
//! ([`text`]), and the trait through which words are read and written ([`words`]).

mod layout;
mod seal;
mod text;
mod words;

pub use layout::{LETTERS, LedgerLayout, MAGIC, STEP_MAX, VERSION, counter, header, node, process, refusal, waiter};
pub(crate) use seal::{digest, product, quotient, residue};
pub use seal::{sealed, unsealed};
pub(crate) use text::{decode_name, encode_name, packed, unpacked};
pub use words::{Words, WordsSnapshot, attempt_with, update_with};
