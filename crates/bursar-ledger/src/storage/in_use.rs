//! Which ledger is in use under a name, even after the name or the whole folder was moved or removed.
//!
//! Whoever uses a ledger file has two shared locks that no `rm` or `mv` can take away: one on a byte of the folder, chosen
//! by the file's name and identity, and one on a byte of the root folder `/`, chosen by the whole path and the identity.
//! No data is in those bytes; folders have none. The bytes for one name and every identity lie together, so one question
//! tells whether somebody uses *another* file under that name, and nobody opens or makes a second one beside it.
//!
//! A path leads to the same root only within one mount namespace, so containers that share the folder under roots of
//! their own rely on the first lock alone: there, a folder that is moved in use can get a second.

use super::folder::Folder;
use crate::system::{Facts, Identity, Lock, Opening, Range, Tether};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The bytes for one name: one for each identity a file can have, as a number of 32 bits.
const IDENTITIES: i64 = 1 << 32;
/// Where those of all names begin: far beyond what anybody else locks.
const FIRST: i64 = 1 << 61;
/// The most a name's number can be.
const NAMES: u64 = 1 << 29;

/// The bytes that stand for a name.
fn bytes_for(name: &[u8]) -> Range {
    Range { start: FIRST + (hash(name) % NAMES) as i64 * IDENTITIES, length: IDENTITIES }
}

/// FNV-1a.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// A folder and the root, with the bytes in each that stand for a name.
fn bytes_in<'a>(folder: &'a Folder, root: Option<&'a Tether>, name: &OsStr) -> Vec<(&'a Tether, Range)> {
    let whole = root.map(|root| (root, bytes_for_path(folder, name)));
    std::iter::once((&folder.open, bytes_for(name.as_bytes()))).chain(whole).collect()
}

fn bytes_for_path(folder: &Folder, name: &OsStr) -> Range {
    bytes_for(folder.path.join(name).as_os_str().as_bytes())
}

/// Opens the root; nothing where this user may not.
fn root(folder: &Folder) -> io::Result<Option<Tether>> {
    match folder.open.process().open(Path::new("/"), Opening::Folder) {
        Ok(root) => Ok(Some(root)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(error),
    }
}

/// The locks of one process on the names of one file, and the folder it is in.
#[derive(Debug)]
pub(crate) struct Anchors {
    pub(crate) folder: Folder,
    root: Option<Tether>,
    name: OsString,
    /// Which of a name's bytes is the file's.
    byte: i64,
}

impl Anchors {
    /// Locks the names of a file in a folder.
    pub(crate) fn drop_at(folder: Folder, name: &OsStr, file: Identity) -> io::Result<Self> {
        let number = hash(&[file.device.to_le_bytes(), file.inode.to_le_bytes()].concat());
        let byte = (number % IDENTITIES as u64) as i64;
        let root = root(&folder)?;
        for (tether, range) in bytes_in(&folder, root.as_ref(), name) {
            let own = Range { start: range.start + byte, length: 1 };
            tether.kernel().try_lock(tether.file(), Lock::Shared, own)?;
        }
        Ok(Self { folder, root, name: name.to_owned(), byte })
    }

    /// Returns whether somebody uses another file under one of the names.
    pub(crate) fn others(&self) -> io::Result<bool> {
        for (tether, range) in bytes_in(&self.folder, self.root.as_ref(), &self.name) {
            let before = Range { start: range.start, length: self.byte };
            let after = Range { start: range.start + self.byte + 1, length: IDENTITIES - 1 - self.byte };
            for part in [before, after] {
                if part.length > 0 && tether.kernel().is_locked(tether.file(), Lock::Exclusive, part)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns the facts of what the name leads to now.
    pub(crate) fn facts(&self) -> io::Result<Facts> {
        self.folder.open.kernel().facts_in(self.folder.open.file(), &self.name)
    }

    pub(crate) fn tethers(&self) -> impl Iterator<Item = &Tether> {
        std::iter::once(&self.folder.open).chain(&self.root)
    }
}

/// Returns whether anybody uses a file under one of the names of `name` in a folder.
pub(crate) fn are_dropped(folder: &Folder, name: &OsStr) -> io::Result<bool> {
    let root = root(folder)?;
    for (tether, range) in bytes_in(folder, root.as_ref(), name) {
        if tether.kernel().is_locked(tether.file(), Lock::Exclusive, range)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the processes that use some file under the path of `name` in a folder, where they can be seen.
pub(crate) fn users(folder: &Folder, name: &OsStr) -> Vec<u32> {
    folder.open.kernel().who_locks(bytes_for_path(folder, name))
}
