//! Opening and making the file of a ledger: it is made whole or not at all, and checked before it is used.

use super::folder::Folder;
use super::header::{new_file_contents, read_subject};
use super::in_use::{self, InUseLocks};
use super::snapshot::{FileSnapshot, is_about, other_device};
use crate::format::{LedgerLayout, MAGIC, VERSION};
use crate::system::{Descriptor, FileId, FileKind, FileMetadata, Kernel, LockKind, LockRange, OpenMode, Process};
use crate::{LedgerError, Subject};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const FILE_BYTES: u64 = LedgerLayout::FILE.words() as u64 * 8;

/// Returns the byte of a ledger file that the process in a slot locks while it is alive. There is no data at that
/// offset.
pub(crate) const fn liveness_byte(slot: usize) -> LockRange {
    LockRange { start: (1 << 40) + slot as i64, length: 1 }
}

/// A ledger file that this process has open twice: once to be mapped, and once for the lock on its liveness byte. See
/// [`MappedWords::of_file`](super::MappedWords::of_file).
#[derive(Debug)]
pub(crate) struct LedgerFile {
    pub(crate) path: PathBuf,
    pub(crate) file_id: FileId,
    pub(crate) mapped: Descriptor,
    pub(crate) liveness: Descriptor,
    pub(crate) in_use: InUseLocks,
}

/// The outcome of an attempt to open a file.
enum Attempt {
    Opened(Box<LedgerFile>),
    /// There is no file of that name in the folder.
    Absent(Folder),
    /// Somebody uses another file under the same name, or the file is just being moved.
    InUse,
}

/// The pauses between attempts: others may be making the file, closing it or moving it, all of which is short.
const PAUSES_MS: [u64; 10] = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500];

/// Opens the ledger of `subject` in the folder at `path`, or makes it, pausing for no longer than `patience` in all.
pub(crate) fn open_or_make(
    process: &Arc<Process>,
    path: &Path,
    subject: &Subject,
    patience: Duration,
) -> Result<LedgerFile, LedgerError> {
    let name = OsString::from(subject.file_name());
    let (mut failed, mut left) = (None, patience);
    for pause_ms in PAUSES_MS {
        let Some(rest) = left.checked_sub(Duration::from_millis(pause_ms)) else { break };
        left = rest;
        process.kernel().sleep(Duration::from_millis(pause_ms));
        let attempted = match attempt_or_make(process, path, &name, subject) {
            // Somebody is removing the folder.
            Err(error) if error.is_not_found() => {
                failed = Some(error);
                continue;
            }
            attempted => attempted?,
        };
        if let Attempt::Opened(opened) = attempted {
            let found = subject_of(&opened)?;
            return match is_about(&found, subject) {
                true => Ok(*opened),
                false => Err(other_device(&opened.path, &found, subject)),
            };
        }
    }
    match failed {
        Some(error) => Err(error),
        None => {
            let folder = Folder::make(process, path)?;
            Err(LedgerError::InUse { pids: in_use::users(&folder, &name), file: folder.path.join(&name) })
        }
    }
}

fn attempt_or_make(
    process: &Arc<Process>,
    path: &Path,
    name: &OsStr,
    subject: &Subject,
) -> Result<Attempt, LedgerError> {
    let attempted = attempt(Folder::make(process, path)?, name)?;
    match &attempted {
        Attempt::Absent(folder) if make_if_alone(folder, name, subject)? => attempt(Folder::make(process, path)?, name),
        Attempt::Opened(opened) => {
            remove_stale_draft(process, path, name, &opened.in_use)?;
            Ok(attempted)
        }
        _ => Ok(attempted),
    }
}

/// Removes the draft of a process that died after linking it into place.
fn remove_stale_draft(
    process: &Arc<Process>,
    path: &Path,
    name: &OsStr,
    in_use: &InUseLocks,
) -> Result<(), LedgerError> {
    let draft = draft_of(name);
    let kernel = process.kernel();
    if kernel.metadata_in(in_use.folder.open.file(), &draft).is_err() {
        return Ok(());
    }
    let failed = |error| LedgerError::io(&path.join(&draft), "unlink", error);
    // Only the holder of this lock makes drafts. The lock ends with the folder's descriptor, so a descriptor of its own
    // is opened.
    let folder = Folder::open(process, path)?;
    if !kernel.try_lock_file(folder.open.file()).map_err(failed)? {
        return Ok(());
    }
    remove_draft(&folder, &draft).map_err(failed)
}

/// Removes a draft, if there is one.
fn remove_draft(folder: &Folder, draft: &OsStr) -> io::Result<()> {
    match folder.open.kernel().unlink(folder.open.file(), draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the name under which a file is made.
fn draft_of(name: &OsStr) -> OsString {
    OsString::from(format!(".{}.draft", name.display()))
}

/// Opens a ledger that exists.
pub(crate) fn open(process: &Arc<Process>, path: &Path) -> Result<(LedgerFile, Subject), LedgerError> {
    let absent = || LedgerError::io(path, "open", io::ErrorKind::NotFound.into());
    let (folder, name) = path.parent().zip(path.file_name()).ok_or_else(absent)?;
    for pause_ms in PAUSES_MS {
        process.kernel().sleep(Duration::from_millis(pause_ms));
        match attempt(Folder::open(process, folder)?, name)? {
            Attempt::Opened(opened) => {
                let subject = subject_of(&opened)?;
                return Ok((*opened, subject));
            }
            Attempt::Absent(_) => return Err(absent()),
            Attempt::InUse => {}
        }
    }
    let folder = Folder::open(process, folder)?;
    Err(LedgerError::InUse { pids: in_use::users(&folder, name), file: path.to_owned() })
}

/// Opens a file in a folder, if there is one and nobody uses another under the same name.
///
/// The locks that say that the file is in use are taken first and everything is checked afterwards. Of two processes
/// that come to use two files under one name, the one that checks later sees the locks of the other.
fn attempt(folder: Folder, name: &OsStr) -> Result<Attempt, LedgerError> {
    let path = folder.path.join(name);
    let failed = |call| {
        let path = &path;
        move |error| LedgerError::io(path, call, error)
    };
    let Some((mapped, file_id)) = open_checked(&folder, name)? else { return Ok(Attempt::Absent(folder)) };
    let in_use = InUseLocks::acquire(folder, name, file_id).map_err(failed("lock"))?;
    let process = in_use.folder.open.process();
    let liveness = match process.open_in(&in_use.folder.open, name, OpenMode::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Attempt::InUse),
        liveness => liveness.map_err(failed("open"))?,
    };
    let is_it = |metadata: io::Result<FileMetadata>| metadata.is_ok_and(|metadata| metadata.file_id == file_id);
    let in_place = is_it(process.kernel().metadata(liveness.file())) && is_it(in_use.metadata());
    if in_use.is_other_in_use().map_err(failed("lock"))? || !in_place || !in_use.folder.is_at_its_path() {
        return Ok(Attempt::InUse);
    }
    Ok(Attempt::Opened(Box::new(LedgerFile { path, file_id, mapped, liveness, in_use })))
}

/// Opens a file in a folder, if there is one, and checks that it can be a ledger of this user.
fn open_checked(folder: &Folder, name: &OsStr) -> Result<Option<(Descriptor, FileId)>, LedgerError> {
    let path = folder.path.join(name);
    let process = folder.open.process();
    match process.open_in(&folder.open, name, OpenMode::Write) {
        Ok(file) => {
            let file_id = check_metadata(&path, &file)?.file_id;
            Ok(Some((file, file_id)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(open_error(process.kernel(), &path, error)),
    }
}

/// Returns the error for a file that the system would not open.
pub(crate) fn open_error(kernel: &dyn Kernel, path: &Path, error: io::Error) -> LedgerError {
    let (file, user) = (path.to_owned(), kernel.user());
    match kernel.metadata_of(path) {
        Ok(metadata) if metadata.kind != FileKind::File => LedgerError::NotALedger { file },
        Ok(metadata) if metadata.user != user => LedgerError::Owner { file, owner: metadata.user, user },
        Ok(metadata) if error.kind() == io::ErrorKind::PermissionDenied => {
            LedgerError::Mode { file, mode: metadata.mode & 0o777 }
        }
        _ => LedgerError::io(path, "open", error),
    }
}

pub(crate) fn check_metadata(path: &Path, file: &Descriptor) -> Result<FileMetadata, LedgerError> {
    let kernel = file.kernel();
    let metadata = kernel.metadata(file.file()).map_err(|error| LedgerError::io(path, "stat", error))?;
    let found = other_version(file);
    let (file, mode, user) = (path.to_owned(), metadata.mode & 0o777, kernel.user());
    if metadata.kind != FileKind::File {
        Err(LedgerError::NotALedger { file })
    } else if metadata.user != user {
        Err(LedgerError::Owner { file, owner: metadata.user, user })
    } else if mode & 0o077 != 0 {
        Err(LedgerError::Mode { file, mode })
    } else if let Some(found) = found.filter(|_| metadata.size != FILE_BYTES) {
        // Ledgers of other versions have other sizes.
        Err(LedgerError::Version { file, found, ours: VERSION })
    } else if metadata.size != FILE_BYTES {
        Err(LedgerError::Truncated { file, size: metadata.size, expected: FILE_BYTES })
    } else {
        Ok(metadata)
    }
}

/// Returns the version of a ledger that another version of this crate made, whatever its size.
fn other_version(file: &Descriptor) -> Option<u64> {
    let mut start = [0; 16];
    file.kernel().read_at(file.file(), &mut start, 0).ok()?;
    let [magic, version] =
        [&start[..8], &start[8..]].map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    (magic == MAGIC && version != VERSION).then_some(version)
}

/// Makes a ledger if nobody else is making one and nobody uses one that was moved or removed. Returns whether it did.
fn make_if_alone(folder: &Folder, name: &OsStr, subject: &Subject) -> Result<bool, LedgerError> {
    let path = folder.path.join(name);
    let kernel = folder.open.kernel();
    let failed = |error| LedgerError::io(&path, "lock", error);
    // The lock ends with the folder's descriptor.
    let alone = kernel.try_lock_file(folder.open.file()).map_err(failed)?
        && !in_use::is_any_in_use(folder, name).map_err(failed)?
        && folder.is_at_its_path();
    if alone {
        make(folder, name, subject)?;
    }
    Ok(alone)
}

/// Makes the file under another name and links it into place, so that nobody ever sees half of it.
fn make(folder: &Folder, name: &OsStr, subject: &Subject) -> Result<(), LedgerError> {
    let (kernel, inside) = (folder.open.kernel(), folder.open.file());
    let draft = draft_of(name);
    // Only the holder of the lock makes drafts, so one that is there was left by a process that died.
    let made =
        remove_draft(folder, &draft).and_then(|()| kernel.make_file(inside, &draft, &new_file_contents(subject)));
    let linked = made.and_then(|()| kernel.link(inside, &draft, name));
    let removed = remove_draft(folder, &draft);
    match linked.and(removed) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(LedgerError::io(&folder.path.join(name), "write", error))
        }
        _ => Ok(()),
    }
}

fn subject_of(opened: &LedgerFile) -> Result<Subject, LedgerError> {
    let copy = FileSnapshot::read(&opened.path, &opened.mapped)?;
    let subject = read_subject(&opened.path, &copy.words)?;
    copy.check(&opened.path)?;
    Ok(subject)
}

/// Locks the liveness byte of a slot that no other process has, and returns the slot: the lowest, so that tables stay
/// short.
pub(crate) fn claim_slot(opened: &LedgerFile) -> Result<usize, LedgerError> {
    let (kernel, file) = (opened.liveness.kernel(), opened.liveness.file());
    for slot in 0..LedgerLayout::FILE.processes {
        let locked = kernel.try_lock(file, LockKind::Exclusive, liveness_byte(slot));
        if locked.map_err(|error| LedgerError::io(&opened.path, "lock", error))? {
            return Ok(slot);
        }
    }
    Err(LedgerError::TableFull { file: opened.path.clone(), what: "processes", max: LedgerLayout::FILE.processes })
}
