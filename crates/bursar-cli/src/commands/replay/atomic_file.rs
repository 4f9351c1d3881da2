//! A file that appears once it is complete.

use crate::failure::Failure;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file that is written under a temporary name in the same folder and renamed at the end, so that nobody sees half of it
/// and an earlier file stays until then. If dropped before, it leaves nothing behind.
#[derive(Debug)]
pub(super) struct AtomicFile {
    /// The path as the user gave it.
    name: PathBuf,
    path: PathBuf,
    temporary: PathBuf,
    file: BufWriter<File>,
}

impl AtomicFile {
    /// Creates the temporary file, so that a folder that cannot be written fails at once.
    pub(super) fn create(name: &Path) -> Result<Self, Failure> {
        let failed = |error| Failure::File { path: name.to_owned(), error };
        if fs::metadata(name).is_ok_and(|there| !there.is_file()) {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "there is something else than a file")));
        }
        let path = fs::canonicalize(name).unwrap_or_else(|_| name.to_owned());
        let file_name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let temporary = path.with_file_name(format!(".{}.{}.part", file_name.to_string_lossy(), std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(failed)?;
        Ok(Self { name: name.to_owned(), path, temporary, file: BufWriter::with_capacity(1 << 18, file) })
    }

    /// Writes the file by `write` and renames it.
    pub(super) fn finish(mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        write(&mut self.file)
            .and_then(|()| self.file.flush())
            .and_then(|()| fs::rename(&self.temporary, &self.path))
            .map_err(|error| Failure::File { path: self.name.clone(), error })
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        // Fails if it was finished, because it was renamed.
        let _gone = fs::remove_file(&self.temporary);
    }
}
