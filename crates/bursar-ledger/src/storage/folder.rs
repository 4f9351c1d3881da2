//! The folder that ledgers are in: one for each user, which nobody else can write to.

use crate::LedgerError;
use crate::system::{Descriptor, FileKind, FileMetadata, OpenMode, Process};
use bursar_linux::{NotPrivate, check_owner};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Returns the folder for ledgers of this user; it need not exist.
pub(crate) fn default_folder() -> PathBuf {
    bursar_linux::shared_folder(Process::this().kernel().user())
}

/// A folder of ledgers, open: files are found in it whatever becomes of its name.
#[derive(Debug)]
pub(crate) struct Folder {
    /// The path without links, so that it is valid whatever the working directory is.
    pub(crate) path: PathBuf,
    pub(crate) open: Descriptor,
    metadata: FileMetadata,
}

impl Folder {
    /// Opens a folder, made if there is none. It must belong to this user, and nobody else may be able to write to it.
    pub(crate) fn make(process: &Arc<Process>, path: &Path) -> Result<Self, LedgerError> {
        let path = without_trailing_slash(path);
        match process.kernel().make_folder(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // The folder that is there is checked below, whether or not one could be made.
            Err(error) => {
                if process.kernel().metadata_of(&path).is_err() {
                    return Err(LedgerError::io(&path, "mkdir", error));
                }
            }
        }
        Self::open(process, &path)
    }

    /// Opens a folder that exists.
    pub(crate) fn open(process: &Arc<Process>, path: &Path) -> Result<Self, LedgerError> {
        let path = &*without_trailing_slash(path);
        let kernel = process.kernel();
        let wrong = |why: NotPrivate| LedgerError::Folder { folder: path.to_owned(), why: why.to_string().into() };
        let failed = |call| move |error| LedgerError::io(path, call, error);
        match kernel.metadata_of(path).map_err(failed("stat"))?.kind {
            FileKind::Folder => {}
            FileKind::Link => return Err(wrong(NotPrivate::Link)),
            FileKind::File | FileKind::Other => return Err(wrong(NotPrivate::NotAFolder)),
        }
        let open = process.open(path, OpenMode::Folder).map_err(failed("open"))?;
        let metadata = kernel.metadata(open.file()).map_err(failed("stat"))?;
        check_owner(metadata.user, metadata.mode, kernel.user()).map_err(wrong)?;
        let path = kernel.canonical(path).map_err(failed("realpath"))?;
        Ok(Self { path, open, metadata })
    }

    /// Returns whether the folder's path still leads to it.
    pub(crate) fn is_at_its_path(&self) -> bool {
        let there = self.open.kernel().metadata_of(&self.path);
        there.is_ok_and(|there| there.file_id == self.metadata.file_id)
    }
}

/// Returns a path without a slash at its end, which would have the system follow a link there.
fn without_trailing_slash(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Returns the files of the ledgers in a folder; none where there is no folder.
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
