//! Where ledgers are kept: one folder a user, which nobody else can write to.

use crate::{LedgerError, sys};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The variable that names the folder.
const VARIABLE: &str = "BURSAR_LEDGER_DIR";

/// The folder that ledgers of this user are kept in; it need not exist.
pub(crate) fn chosen() -> PathBuf {
    match std::env::var_os(VARIABLE) {
        Some(folder) if !folder.is_empty() => folder.into(),
        _ => PathBuf::from(format!("/dev/shm/bursar-{}", sys::user())),
    }
}

/// Makes the folder if there is none, and checks that it is this user's and no other can write to it.
pub(crate) fn prepared(folder: &Path) -> Result<(), LedgerError> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) if error.raw_os_error() == Some(libc::EROFS) && !folder.exists() => {
            return Err(LedgerError::ReadOnly { file: folder.to_owned() });
        }
        Err(error) if !folder.exists() => return Err(LedgerError::io(folder, "mkdir", error)),
        Err(_) => {}
    }
    checked(folder)
}

/// Checks a folder that exists.
pub(crate) fn checked(folder: &Path) -> Result<(), LedgerError> {
    let wrong = |why: String| LedgerError::Folder { folder: folder.to_owned(), why: why.into() };
    let facts = fs::symlink_metadata(folder).map_err(|error| LedgerError::io(folder, "stat", error))?;
    let mode = facts.permissions().mode() & 0o7777;
    if facts.is_symlink() {
        Err(wrong("it is a symbolic link".to_owned()))
    } else if !facts.is_dir() {
        Err(wrong("it is not a folder".to_owned()))
    } else if facts.uid() != sys::user() {
        Err(wrong(format!("it belongs to user {}, and this process runs as {}", facts.uid(), sys::user())))
    } else if mode & 0o022 != 0 {
        Err(wrong(format!("other users can write to it (mode {mode:03o})")))
    } else {
        Ok(())
    }
}

/// The ledgers in the folder; none where there is no folder.
pub(crate) fn ledgers(folder: &Path) -> Result<Vec<PathBuf>, LedgerError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(LedgerError::io(folder, "readdir", error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| LedgerError::io(folder, "readdir", error))?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.extension().is_some_and(|extension| extension == "ledger") && !hidden {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
