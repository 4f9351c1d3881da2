//! Writing and reading the header of a ledger.

use super::in_use::hash;
use crate::book::Book;
use crate::format::{LedgerLayout, MAGIC, VERSION, Words, WordsSnapshot, header, packed, unpacked};
use crate::{LedgerError, Subject};
use bursar_core::{Bytes, DeviceUuid};
use std::path::Path;

/// Returns the contents of the file of a new ledger.
pub(crate) fn new_file_contents(subject: &Subject) -> Vec<u8> {
    let layout = LedgerLayout::FILE;
    let sheet = WordsSnapshot::new(std::iter::repeat_n(0, layout.words()), Vec::new());
    write_header(&sheet, layout, subject);
    (0..layout.words()).flat_map(|at| sheet.load(at).to_le_bytes()).collect()
}

/// Writes the header and the first figures of a new ledger.
pub(crate) fn write_header(words: impl Words, layout: LedgerLayout, subject: &Subject) {
    let (high, low) = halves(subject.uuid);
    let book = Book::new(words, layout, 0);
    book.initialize(subject.total.get());
    let words = book.words();
    let fields = [
        (header::MAGIC, MAGIC),
        (header::VERSION, VERSION),
        (header::SHAPE, layout.shape()),
        (header::UUID, high),
        (header::UUID + 1, low),
    ];
    for (at, value) in fields {
        words.store(at, value);
    }
    for (at, word) in packed::<{ header::NAME_WORDS }>(&subject.name).into_iter().enumerate() {
        words.store(header::NAME + at, word);
    }
    words.store(header::CHECKSUM, checksum(words));
}

fn halves(uuid: DeviceUuid) -> (u64, u64) {
    let value = u128::from_be_bytes(uuid.0);
    ((value >> 64) as u64, value as u64)
}

/// Returns the checksum of the words that never change.
fn checksum(words: &impl Words) -> u64 {
    let bytes: Vec<u8> = (0..header::CHECKSUM).flat_map(|at| words.load(at).to_le_bytes()).collect();
    hash(&bytes)
}

/// Checks the header of a ledger and returns its subject.
pub(crate) fn read_subject(path: &Path, words: &impl Words) -> Result<Subject, LedgerError> {
    let file = path.to_owned();
    if words.load(header::MAGIC) != MAGIC {
        return Err(LedgerError::NotALedger { file });
    }
    if words.load(header::VERSION) != VERSION {
        return Err(LedgerError::Version { file, found: words.load(header::VERSION), ours: VERSION });
    }
    if words.load(header::CHECKSUM) != checksum(words) || words.load(header::SHAPE) != LedgerLayout::FILE.shape() {
        return Err(LedgerError::Corrupt { file, what: "its header does not match its checksum".into() });
    }
    let uuid = u128::from(words.load(header::UUID)) << 64 | u128::from(words.load(header::UUID + 1));
    Ok(Subject {
        uuid: DeviceUuid(uuid.to_be_bytes()),
        name: unpacked((0..header::NAME_WORDS).map(|at| words.load(header::NAME + at))),
        total: Bytes(words.load(header::TOTAL)),
    })
}
