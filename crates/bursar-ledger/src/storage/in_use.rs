//! Locks that say which file is in use under a path, even after the file or its folder was moved or removed.
//!
//! A lock file in the folder would go with the folder, and a newcomer would then make a second ledger beside the first.
//! So every process that uses a ledger file holds two shared locks that no `rm` or `mv` takes away: one on a byte of
//! the folder, chosen by a hash of the file's name and id, and one on a byte of the root folder `/`, chosen by a hash
//! of the whole path and the id. Folders can be locked though nothing can be written there, and nobody removes the
//! root. The bytes for one name and every id lie together, so one call tells whether somebody uses *another* file under
//! that name, and nobody opens or makes a second one beside it.
//!
//! A path leads to the same root only within one mount namespace, so containers that share the folder under roots of
//! their own rely on the first lock alone: there, a second ledger can come into being beside a folder that is moved
//! while in use.

use super::folder::Folder;
use crate::LedgerError;
use crate::system::{Descriptor, FileId, FileMetadata, LockKind, LockRange, OpenMode, Process};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The number of bytes for one name: one for each id a file can have, hashed to 32 bits.
const FILE_IDS: i64 = 1 << 32;
/// The first byte for any name: far beyond what anybody else locks.
const FIRST_BYTE: i64 = 1 << 61;
/// The number of hashes a name can have.
const NAME_HASHES: u64 = 1 << 29;

/// Returns the range of bytes for a name.
fn bytes_for(name: &[u8]) -> LockRange {
    LockRange { start: FIRST_BYTE + (hash(name) % NAME_HASHES) as i64 * FILE_IDS, length: FILE_IDS }
}

/// Returns the FNV-1a hash of bytes.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Returns a folder and the root, with the range of bytes for a name in each.
fn bytes_in<'a>(folder: &'a Folder, root: Option<&'a Descriptor>, name: &OsStr) -> Vec<(&'a Descriptor, LockRange)> {
    let in_root = root.map(|root| (root, bytes_for_path(folder, name)));
    std::iter::once((&folder.open, bytes_for(name.as_bytes()))).chain(in_root).collect()
}

fn bytes_for_path(folder: &Folder, name: &OsStr) -> LockRange {
    bytes_for(folder.path.join(name).as_os_str().as_bytes())
}

/// Opens the root. Returns `None` where this user may not.
fn root(process: &Arc<Process>) -> io::Result<Option<Descriptor>> {
    match process.open(Path::new("/"), OpenMode::Folder) {
        Ok(root) => Ok(Some(root)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(error),
    }
}

/// The locks of one process that say that a file is in use, and the folder of the file.
#[derive(Debug)]
pub(crate) struct InUseLocks {
    pub(crate) folder: Folder,
    root: Option<Descriptor>,
    name: OsString,
    /// The offset of the file's byte in the range for its name.
    byte: i64,
}

impl InUseLocks {
    /// Takes the locks for a file in a folder.
    pub(crate) fn acquire(folder: Folder, name: &OsStr, file: FileId) -> io::Result<Self> {
        let byte = byte_of(file);
        let root = root(folder.open.process())?;
        for (descriptor, range) in bytes_in(&folder, root.as_ref(), name) {
            let own = LockRange { start: range.start + byte, length: 1 };
            descriptor.kernel().try_lock(descriptor.file(), LockKind::Shared, own)?;
        }
        Ok(Self { folder, root, name: name.to_owned(), byte })
    }

    /// Returns whether somebody uses another file under the same name or path.
    pub(crate) fn is_other_in_use(&self) -> io::Result<bool> {
        is_locked_but(&bytes_in(&self.folder, self.root.as_ref(), &self.name), Some(self.byte))
    }

    /// Returns the metadata of what the name leads to now.
    pub(crate) fn metadata(&self) -> io::Result<FileMetadata> {
        self.folder.open.kernel().metadata_in(self.folder.open.file(), &self.name)
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = &Descriptor> {
        std::iter::once(&self.folder.open).chain(&self.root)
    }
}

/// Returns the offset of a file's byte in the range for its name.
fn byte_of(file: FileId) -> i64 {
    let number = hash(&[file.device.to_le_bytes(), file.inode.to_le_bytes()].concat());
    (number % FILE_IDS as u64) as i64
}

/// Returns whether anybody has a lock on the bytes for a name, but for one of them.
fn is_locked_but(bytes: &[(&Descriptor, LockRange)], own: Option<i64>) -> io::Result<bool> {
    for (descriptor, range) in bytes {
        let parts = match own {
            Some(own) => [(0, own), (own + 1, range.length - 1 - own)],
            None => [(0, range.length), (0, 0)],
        };
        for (offset, length) in parts {
            let part = LockRange { start: range.start + offset, length };
            if length > 0 && descriptor.kernel().is_locked(descriptor.file(), LockKind::Exclusive, part)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns whether anybody uses a file under the name or path of `name` in a folder.
pub(crate) fn is_any_in_use(folder: &Folder, name: &OsStr) -> io::Result<bool> {
    let root = root(folder.open.process())?;
    is_locked_but(&bytes_in(folder, root.as_ref(), name), None)
}

/// Returns the processes, where they are visible, that use another file under a path than `file`, or than none; `None` where nobody does.
/// The folder need not exist any more.
pub(crate) fn users_of_another(
    process: &Arc<Process>,
    path: &Path,
    file: Option<FileId>,
) -> Result<Option<Vec<u32>>, LedgerError> {
    let (Some(at), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    let failed = |error| LedgerError::io(path, "lock", error);
    let (own, root) = (file.map(byte_of), root(process).map_err(failed)?);
    match Folder::open(process, at) {
        Ok(folder) => {
            let is_used = is_locked_but(&bytes_in(&folder, root.as_ref(), name), own).map_err(failed)?;
            Ok(is_used.then(|| users(&folder, name)))
        }
        Err(error) if error.is_not_found() => {
            // The folder is gone, and what is left of it is the lock on its path.
            let (Some(root), Some(above)) = (&root, at.parent()) else { return Ok(None) };
            let Ok(above) = process.kernel().canonical(above) else { return Ok(None) };
            let gone = above.join(at.file_name().unwrap_or_default()).join(name);
            let bytes = bytes_for(gone.as_os_str().as_bytes());
            let is_used = is_locked_but(&[(root, bytes)], own).map_err(failed)?;
            Ok(is_used.then(|| process.kernel().lock_holders(bytes)))
        }
        Err(error) => Err(error),
    }
}

/// Returns the processes that use some file under the path of `name` in a folder, where they are visible.
pub(crate) fn users(folder: &Folder, name: &OsStr) -> Vec<u32> {
    folder.open.kernel().lock_holders(bytes_for_path(folder, name))
}
