//! Where ledgers are kept: one folder a user, which nobody else can write to.

use crate::LedgerError;
use crate::system::{Facts, FileKind, Opening, Process, Tether};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The variable that names the folder.
const VARIABLE: &str = "BURSAR_LEDGER_DIR";

/// Returns the folder that ledgers of this user are kept in; it need not exist.
pub(crate) fn chosen() -> PathBuf {
    match std::env::var_os(VARIABLE) {
        Some(folder) if !folder.is_empty() => folder.into(),
        _ => PathBuf::from(format!("/dev/shm/bursar-{}", Process::this().kernel().user())),
    }
}

/// A folder of ledgers, open: whatever becomes of its name, files are found in it.
#[derive(Debug)]
pub(crate) struct Folder {
    /// Without links, so that it means the same wherever the process goes.
    pub(crate) path: PathBuf,
    pub(crate) open: Tether,
    facts: Facts,
}

impl Folder {
    /// Opens a folder, made if there is none, that is this user's and that no other can write to.
    pub(crate) fn make(process: &Arc<Process>, path: &Path) -> Result<Self, LedgerError> {
        let path = without_end(path);
        match process.kernel().make_folder(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // What is there is looked at below, whether or not one could be made beside it.
            Err(error) => {
                if process.kernel().facts_of(&path).is_err() {
                    return Err(LedgerError::io(&path, "mkdir", error));
                }
            }
        }
        Self::open(process, &path)
    }

    /// Opens a folder that exists.
    pub(crate) fn open(process: &Arc<Process>, path: &Path) -> Result<Self, LedgerError> {
        let path = &*without_end(path);
        let kernel = process.kernel();
        let wrong = |why: &str| LedgerError::Folder { folder: path.to_owned(), why: why.into() };
        let failed = |call| move |error| LedgerError::io(path, call, error);
        match kernel.facts_of(path).map_err(failed("stat"))?.kind {
            FileKind::Folder => {}
            FileKind::Link => return Err(wrong("it is a symbolic link")),
            FileKind::File | FileKind::Other => return Err(wrong("it is not a folder")),
        }
        let open = process.open(path, Opening::Folder).map_err(failed("open"))?;
        let facts = kernel.facts(open.file()).map_err(failed("stat"))?;
        let (owner, user, mode) = (facts.user, kernel.user(), facts.mode);
        if owner != user {
            return Err(wrong(&format!("it belongs to user {owner}, and this process runs as {user}")));
        }
        if mode & 0o022 != 0 {
            return Err(wrong(&format!("other users can write to it (mode {mode:03o})")));
        }
        let path = kernel.canonical(path).map_err(failed("realpath"))?;
        Ok(Self { path, open, facts })
    }

    /// Returns whether its path still leads to it.
    pub(crate) fn is_in_its_place(&self) -> bool {
        let there = self.open.kernel().facts_of(&self.path);
        there.is_ok_and(|there| there.identity == self.facts.identity)
    }
}

/// A path without a slash at its end, which would have the system follow a link there.
fn without_end(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Returns the ledgers in the folder; none where there is no folder.
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
