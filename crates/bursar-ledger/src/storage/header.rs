//! The header of a ledger, written and read.

use super::in_use::hash;
use crate::book::Book;
use crate::format::{Layout, MAGIC, Sheet, VERSION, Words, header, packed, unpacked};
use crate::{LedgerError, Subject};
use bursar_core::{Bytes, DeviceUuid};
use std::path::Path;

/// A new ledger, as bytes.
pub(crate) fn image(subject: &Subject) -> Vec<u8> {
    let layout = Layout::FILE;
    let sheet = Sheet::new(std::iter::repeat_n(0, layout.words()), Vec::new());
    write_header(&sheet, layout, subject);
    (0..layout.words()).flat_map(|at| sheet.load(at).to_le_bytes()).collect()
}

/// Writes a new ledger's header and first figures.
pub(crate) fn write_header(words: impl Words, layout: Layout, subject: &Subject) {
    let (high, low) = halves(subject.uuid);
    let book = Book::new(words, layout, 0);
    book.found(subject.total.get());
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

/// Over the words that never change.
fn checksum(words: &impl Words) -> u64 {
    let bytes: Vec<u8> = (0..header::CHECKSUM).flat_map(|at| words.load(at).to_le_bytes()).collect();
    hash(&bytes)
}

/// What a ledger is about, once its header is believed.
pub(crate) fn subject_in(path: &Path, words: &impl Words) -> Result<Subject, LedgerError> {
    let file = path.to_owned();
    if words.load(header::MAGIC) != MAGIC {
        return Err(LedgerError::NotALedger { file });
    }
    if words.load(header::VERSION) != VERSION {
        return Err(LedgerError::Version { file, found: words.load(header::VERSION), ours: VERSION });
    }
    if words.load(header::CHECKSUM) != checksum(words) || words.load(header::SHAPE) != Layout::FILE.shape() {
        return Err(LedgerError::Corrupt { file, what: "its header does not match its checksum".into() });
    }
    let uuid = u128::from(words.load(header::UUID)) << 64 | u128::from(words.load(header::UUID + 1));
    Ok(Subject {
        uuid: DeviceUuid(uuid.to_be_bytes()),
        name: unpacked((0..header::NAME_WORDS).map(|at| words.load(header::NAME + at))),
        total: Bytes(words.load(header::TOTAL)),
    })
}
