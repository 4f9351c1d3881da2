//! The file of a ledger: made whole or not at all, checked before it is believed.

use super::folder::Folder;
use super::header::{image, subject_in};
use super::in_use::{self, Anchors};
use super::snapshot::Copy;
use crate::format::Layout;
use crate::system::{Facts, FileKind, Identity, Kernel, Lock, Opening, Process, Range, Tether};
use crate::{LedgerError, Subject};
use bursar_core::Bytes;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const SIZE: u64 = Layout::FILE.words() as u64 * 8;

/// Returns the byte of a ledger file that the process at a place locks while it lives. No data is there.
pub(crate) const fn life_of(place: usize) -> Range {
    Range { start: (1 << 40) + place as i64, length: 1 }
}

/// A ledger file, open twice: once to be mapped, and once for the lock of a place. See
/// [`Ground::of_file`](crate::storage::Ground::of_file).
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
    pub(crate) mapped: Tether,
    pub(crate) lives: Tether,
    pub(crate) anchors: Anchors,
}

/// The outcome of an attempt to open a file.
enum Attempt {
    Opened(Box<Opened>),
    /// There is none of that name in the folder.
    Absent(Folder),
    /// Somebody uses another under the same name, or it is just being moved.
    InUse,
}

/// The pauses between attempts: others may be making the file, leaving it or moving it, and all that is short.
const PAUSES_MS: [u64; 10] = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500];

/// Opens the ledger of `subject` in the folder at `path`, or makes it.
pub(crate) fn open_or_make(process: &Arc<Process>, path: &Path, subject: &Subject) -> Result<Opened, LedgerError> {
    let name = OsString::from(subject.file_name());
    let mut failed = None;
    for pause_ms in PAUSES_MS {
        process.kernel().sleep(Duration::from_millis(pause_ms));
        let attempted = match attempt_or_make(process, path, &name, subject) {
            // Somebody removes the folder while it is looked at.
            Err(error) if error.is_not_found() => {
                failed = Some(error);
                continue;
            }
            attempted => attempted?,
        };
        if let Attempt::Opened(opened) = attempted {
            let found = subject_of(&opened)?;
            let total = subject.total.min(Bytes(crate::book::BYTES_MAX));
            return if found.uuid == subject.uuid && found.total == total {
                Ok(*opened)
            } else {
                Err(LedgerError::OtherDevice {
                    file: opened.path,
                    found: found.uuid,
                    total: found.total,
                    wanted: subject.uuid,
                    expected: subject.total,
                })
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
        Attempt::Absent(folder) if make_alone(folder, name, subject)? => attempt(Folder::make(process, path)?, name),
        Attempt::Opened(opened) => {
            remove_left_draft(process, path, name, &opened.anchors)?;
            Ok(attempted)
        }
        _ => Ok(attempted),
    }
}

/// Removes the draft of somebody who died after linking it into place.
fn remove_left_draft(process: &Arc<Process>, path: &Path, name: &OsStr, anchors: &Anchors) -> Result<(), LedgerError> {
    let draft = draft_of(name);
    let kernel = process.kernel();
    if kernel.facts_in(anchors.folder.open.file(), &draft).is_err() {
        return Ok(());
    }
    let failed = |error| LedgerError::io(&path.join(&draft), "unlink", error);
    // Only who has this lock makes drafts. It ends with the folder's descriptor, so that one is another than the anchors'.
    let folder = Folder::open(process, path)?;
    if !kernel.try_lock_whole(folder.open.file()).map_err(failed)? {
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

/// The name under which a file is made.
fn draft_of(name: &OsStr) -> OsString {
    OsString::from(format!(".{}.draft", name.display()))
}

/// Opens a ledger that exists.
pub(crate) fn open(process: &Arc<Process>, path: &Path) -> Result<(Opened, Subject), LedgerError> {
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
/// The anchors are dropped first and everything is looked at afterwards. Of two processes that come to use two files under
/// one name, the one that looks later sees the other's anchors.
fn attempt(folder: Folder, name: &OsStr) -> Result<Attempt, LedgerError> {
    let path = folder.path.join(name);
    let failed = |call| {
        let path = &path;
        move |error| LedgerError::io(path, call, error)
    };
    let Some((mapped, identity)) = open_checked(&folder, name)? else { return Ok(Attempt::Absent(folder)) };
    let anchors = Anchors::drop_at(folder, name, identity).map_err(failed("lock"))?;
    let process = anchors.folder.open.process();
    let lives = match process.open_in(&anchors.folder.open, name, Opening::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Attempt::InUse),
        lives => lives.map_err(failed("open"))?,
    };
    let is_it = |facts: io::Result<Facts>| facts.is_ok_and(|facts| facts.identity == identity);
    let in_place = is_it(process.kernel().facts(lives.file())) && is_it(anchors.facts());
    if anchors.others().map_err(failed("lock"))? || !in_place || !anchors.folder.is_in_its_place() {
        return Ok(Attempt::InUse);
    }
    Ok(Attempt::Opened(Box::new(Opened { path, identity, mapped, lives, anchors })))
}

/// Opens a file in a folder, if there is one, and looks whether it can be a ledger of this user's.
fn open_checked(folder: &Folder, name: &OsStr) -> Result<Option<(Tether, Identity)>, LedgerError> {
    let path = folder.path.join(name);
    let process = folder.open.process();
    match process.open_in(&folder.open, name, Opening::Write) {
        Ok(file) => {
            let identity = check_facts(&path, &file)?.identity;
            Ok(Some((file, identity)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(refused(process.kernel(), &path, error)),
    }
}

/// Returns the error for a file that the system would not open.
pub(crate) fn refused(kernel: &dyn Kernel, path: &Path, error: io::Error) -> LedgerError {
    let (file, user) = (path.to_owned(), kernel.user());
    match kernel.facts_of(path) {
        Ok(facts) if facts.kind != FileKind::File => LedgerError::NotALedger { file },
        Ok(facts) if facts.user != user => LedgerError::Owner { file, owner: facts.user, user },
        Ok(facts) if error.kind() == io::ErrorKind::PermissionDenied => {
            LedgerError::Mode { file, mode: facts.mode & 0o777 }
        }
        _ => LedgerError::io(path, "open", error),
    }
}

pub(crate) fn check_facts(path: &Path, file: &Tether) -> Result<Facts, LedgerError> {
    let kernel = file.kernel();
    let facts = kernel.facts(file.file()).map_err(|error| LedgerError::io(path, "stat", error))?;
    let (file, mode, user) = (path.to_owned(), facts.mode & 0o777, kernel.user());
    if facts.kind != FileKind::File {
        Err(LedgerError::NotALedger { file })
    } else if facts.user != user {
        Err(LedgerError::Owner { file, owner: facts.user, user })
    } else if mode & 0o077 != 0 {
        Err(LedgerError::Mode { file, mode })
    } else if facts.size != SIZE {
        Err(LedgerError::Truncated { file, size: facts.size, expected: SIZE })
    } else {
        Ok(facts)
    }
}

/// Makes a ledger if nobody else is making one and nobody uses one that was moved or removed. Returns whether it did.
fn make_alone(folder: &Folder, name: &OsStr, subject: &Subject) -> Result<bool, LedgerError> {
    let path = folder.path.join(name);
    let kernel = folder.open.kernel();
    let failed = |error| LedgerError::io(&path, "lock", error);
    // The lock ends with the folder's descriptor.
    let alone = kernel.try_lock_whole(folder.open.file()).map_err(failed)?
        && !in_use::are_dropped(folder, name).map_err(failed)?
        && folder.is_in_its_place();
    if alone {
        make(folder, name, subject)?;
    }
    Ok(alone)
}

/// Makes the file under another name and links it into place, so that nobody ever sees half of it.
fn make(folder: &Folder, name: &OsStr, subject: &Subject) -> Result<(), LedgerError> {
    let (kernel, inside) = (folder.open.kernel(), folder.open.file());
    let draft = draft_of(name);
    // Only who has the lock makes drafts, so one that is there was left by somebody who died.
    let made = remove_draft(folder, &draft).and_then(|()| kernel.make_file(inside, &draft, &image(subject)));
    let linked = made.and_then(|()| kernel.link(inside, &draft, name));
    let removed = remove_draft(folder, &draft);
    match linked.and(removed) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(LedgerError::io(&folder.path.join(name), "write", error))
        }
        _ => Ok(()),
    }
}

fn subject_of(opened: &Opened) -> Result<Subject, LedgerError> {
    let copy = Copy::of(&opened.path, &opened.mapped)?;
    let subject = subject_in(&opened.path, &copy.words)?;
    copy.audit(&opened.path)?;
    Ok(subject)
}

/// Locks a place that nobody else has; those never used come last, so that tables stay short.
pub(crate) fn take_place(opened: &Opened) -> Result<usize, LedgerError> {
    let (kernel, file) = (opened.lives.kernel(), opened.lives.file());
    for place in 0..Layout::FILE.places {
        let locked = kernel.try_lock(file, Lock::Exclusive, life_of(place));
        if locked.map_err(|error| LedgerError::io(&opened.path, "lock", error))? {
            return Ok(place);
        }
    }
    Err(LedgerError::TableFull { file: opened.path.clone(), what: "processes", max: Layout::FILE.places })
}
