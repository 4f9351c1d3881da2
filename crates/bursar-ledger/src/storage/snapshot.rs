//! A copy of a ledger's words, to be believed before the ledger is used and to be read without using it.

use super::file::{SIZE, check_facts, life_of, refused};
use super::header::subject_in;
use crate::book::Book;
use crate::format::{Layout, Sheet, header};
use crate::system::{Lock, Opening, Process, Tether};
use crate::{LedgerError, Subject};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A copy of a ledger's words.
pub(crate) struct Copy {
    pub(crate) words: Sheet,
    /// Whether nobody changed anything while it was taken.
    whole: bool,
}

impl Copy {
    /// Taken at a moment when nobody changes anything, if one can be had.
    pub(crate) fn of(path: &Path, file: &Tether) -> Result<Self, LedgerError> {
        let kernel = file.kernel();
        let read = || -> io::Result<(Vec<u8>, u64)> {
            let (mut bytes, mut lock) = (vec![0; SIZE as usize], [0; 8]);
            kernel.read_at(file.file(), &mut bytes, 0)?;
            kernel.read_at(file.file(), &mut lock, header::LOCK as u64 * 8)?;
            Ok((bytes, u64::from_le_bytes(lock)))
        };
        let mut latest = read().map_err(|error| LedgerError::io(path, "read", error))?;
        let mut whole = false;
        for pause_us in [0, 0, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000] {
            kernel.sleep(Duration::from_micros(pause_us));
            let before = latest;
            latest = read().map_err(|error| LedgerError::io(path, "read", error))?;
            let ((takings, owner), (later, _)) =
                (Book::<Sheet>::lock_state(before.1), Book::<Sheet>::lock_state(latest.1));
            // An owner that is stopped or dead changes nothing either.
            whole = takings == later && (owner.is_none_or(|place| !is_alive(file, place)) || before.0 == latest.0);
            if whole {
                break;
            }
        }
        let words: Vec<u64> = latest.0.chunks_exact(8).map(word).collect();
        let high = words[header::PLACES_HIGH].min(Layout::FILE.places as u64) as usize;
        let alive = (0..high).map(|place| is_alive(file, place)).collect();
        Ok(Self { words: Sheet::new(words, alive), whole })
    }

    /// Believes the words only if their figures agree, once what was half done is undone.
    pub(crate) fn audit(&self, path: &Path) -> Result<(), LedgerError> {
        let book = Book::new(&self.words, Layout::FILE, Layout::FILE.places);
        let found = book.lock_copy().contradiction().filter(|_| self.whole);
        found.map_or(Ok(()), |what| Err(LedgerError::Corrupt { file: path.to_owned(), what: what.into() }))
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap_or_default())
}

/// Whoever cannot be asked about lives.
fn is_alive(file: &Tether, place: usize) -> bool {
    file.kernel().is_locked(file.file(), Lock::Exclusive, life_of(place)).unwrap_or(true)
}

/// Reads a ledger without joining those who use it.
pub(crate) fn look_at(process: &Arc<Process>, path: &Path) -> Result<(Subject, Sheet), LedgerError> {
    let file = process.open(path, Opening::Read).map_err(|error| refused(process.kernel(), path, error))?;
    check_facts(path, &file)?;
    let copy = Copy::of(path, &file)?;
    let subject = subject_in(path, &copy.words)?;
    copy.audit(path)?;
    Ok((subject, copy.words))
}
