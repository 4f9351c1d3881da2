//! Copying the words of a ledger's file, to check them before the ledger is used or to read it without using it.

use super::file::{FILE_BYTES, check_metadata, liveness_byte, open_error};
use super::header::read_subject;
use super::in_use;
use crate::book::Book;
use crate::format::{LedgerLayout, WordsSnapshot, header};
use crate::system::{Descriptor, FileId, LockKind, OpenMode, Process};
use crate::{LedgerError, Subject};
use bursar_core::Bytes;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A copy of the words of a ledger's file.
pub(crate) struct FileSnapshot {
    pub(crate) words: WordsSnapshot,
    /// True if nobody changed anything while the copy was made.
    consistent: bool,
}

impl FileSnapshot {
    /// Reads the file at a moment when nobody changes anything, if there is one.
    pub(crate) fn read(path: &Path, file: &Descriptor) -> Result<Self, LedgerError> {
        let kernel = file.kernel();
        let read = || -> io::Result<(Vec<u8>, u64)> {
            let (mut bytes, mut lock) = (vec![0; FILE_BYTES as usize], [0; 8]);
            kernel.read_at(file.file(), &mut bytes, 0)?;
            kernel.read_at(file.file(), &mut lock, header::LOCK as u64 * 8)?;
            Ok((bytes, u64::from_le_bytes(lock)))
        };
        let mut latest = read().map_err(|error| LedgerError::io(path, "read", error))?;
        let mut consistent = false;
        for pause_us in [0, 0, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000] {
            kernel.sleep(Duration::from_micros(pause_us));
            let before = latest;
            latest = read().map_err(|error| LedgerError::io(path, "read", error))?;
            let ((acquisitions, owner), (later, _)) =
                (Book::<WordsSnapshot>::lock_state(before.1), Book::<WordsSnapshot>::lock_state(latest.1));
            // An owner of the lock that is stopped or dead changes nothing either.
            consistent =
                acquisitions == later && (owner.is_none_or(|slot| !is_alive(file, slot)) || before.0 == latest.0);
            if consistent {
                break;
            }
        }
        let words: Vec<u64> = latest.0.chunks_exact(8).map(word).collect();
        let high = words[header::PROCESSES_HIGH].min(LedgerLayout::FILE.processes as u64) as usize;
        let alive = (0..high).map(|slot| is_alive(file, slot)).collect();
        Ok(Self { words: WordsSnapshot::new(words, alive), consistent })
    }

    /// Checks that the figures agree, once the unfinished step is undone.
    pub(crate) fn check(&self, path: &Path) -> Result<(), LedgerError> {
        let book = Book::new(&self.words, LedgerLayout::FILE, LedgerLayout::FILE.processes);
        let found = book.lock_snapshot().find_inconsistency().filter(|_| self.consistent);
        found.map_or(Ok(()), |what| Err(LedgerError::Corrupt { file: path.to_owned(), what: what.into() }))
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap_or_default())
}

/// Returns whether the process in a slot is alive; one that cannot be asked about counts as alive.
fn is_alive(file: &Descriptor, slot: usize) -> bool {
    file.kernel().is_locked(file.file(), LockKind::Exclusive, liveness_byte(slot)).unwrap_or(true)
}

/// Reads a ledger without opening it as a process that uses it. Its name must be that of its device.
pub(crate) fn inspect(process: &Arc<Process>, path: &Path) -> Result<(Subject, WordsSnapshot), LedgerError> {
    let (found, words, _) = read(process, path)?;
    let name = path.file_name().unwrap_or_default();
    if name != found.file_name().as_str() {
        let named = name.to_str().and_then(|name| name.strip_suffix(".ledger")?.parse().ok());
        return Err(match named {
            Some(uuid) => other_device(path, &found, &Subject { uuid, ..found.clone() }),
            None => LedgerError::NotALedger { file: path.to_owned() },
        });
    }
    Ok((found, words))
}

/// Reads the ledger of `subject` in a folder as [`inspect`] does; none where nobody has made one. It is an error if programs use another
/// file under that name, which was moved or removed.
pub(crate) fn inspect_in(
    process: &Arc<Process>,
    folder: &Path,
    subject: &Subject,
) -> Result<Option<(Subject, WordsSnapshot)>, LedgerError> {
    let path = &folder.join(subject.file_name());
    let (read, file) = match read(process, path) {
        Ok((found, words, file)) => (Some((found, words)), Some(file)),
        Err(error) if error.is_not_found() => (None, None),
        Err(error) => return Err(error),
    };
    if let Some(pids) = in_use::users_of_another(process, path, file)? {
        return Err(LedgerError::InUse { file: path.clone(), pids });
    }
    match read {
        Some((found, _)) if !is_about(&found, subject) => Err(other_device(path, &found, subject)),
        read => Ok(read),
    }
}

fn read(process: &Arc<Process>, path: &Path) -> Result<(Subject, WordsSnapshot, FileId), LedgerError> {
    let file = process.open(path, OpenMode::Read).map_err(|error| open_error(process.kernel(), path, error))?;
    let file_id = check_metadata(path, &file)?.file_id;
    let copy = FileSnapshot::read(path, &file)?;
    let subject = read_subject(path, &copy.words)?;
    copy.check(path)?;
    Ok((subject, copy.words, file_id))
}

/// Returns whether a file that says what it is about is the ledger of `subject`.
pub(crate) fn is_about(found: &Subject, subject: &Subject) -> bool {
    found.uuid == subject.uuid && found.total == subject.total.min(Bytes(crate::book::BYTES_MAX))
}

/// Returns the error of a file that is not the ledger of `subject`.
pub(crate) fn other_device(path: &Path, found: &Subject, subject: &Subject) -> LedgerError {
    LedgerError::OtherDevice {
        file: path.to_owned(),
        found: found.uuid,
        total: found.total,
        wanted: subject.uuid,
        expected: subject.total,
    }
}
