//! A file that appears once it is whole.

use crate::output::Failure;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file in the making: written beside its place and moved there at the end, so that nobody sees half of it and an
/// earlier one stays until then. One that is dropped before leaves nothing behind.
#[derive(Debug)]
pub(super) struct WholeFile {
    /// What the user called it.
    name: PathBuf,
    path: PathBuf,
    part: PathBuf,
    file: BufWriter<File>,
}

impl WholeFile {
    /// Begins it, so that a place that cannot be written is known at once.
    pub(super) fn create(name: &Path) -> Result<Self, Failure> {
        let failed = |error| Failure::File { path: name.to_owned(), error };
        if fs::metadata(name).is_ok_and(|there| !there.is_file()) {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "there is something else than a file")));
        }
        let path = fs::canonicalize(name).unwrap_or_else(|_| name.to_owned());
        let file_name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let part = path.with_file_name(format!(".{}.{}.part", file_name.to_string_lossy(), std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&part).map_err(failed)?;
        Ok(Self { name: name.to_owned(), path, part, file: BufWriter::with_capacity(1 << 18, file) })
    }

    /// Lets `write` fill it and moves it to its place.
    pub(super) fn finish(mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        write(&mut self.file)
            .and_then(|()| self.file.flush())
            .and_then(|()| fs::rename(&self.part, &self.path))
            .map_err(|error| Failure::File { path: self.name.clone(), error })
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        // Not there any more if it was finished.
        let _gone = fs::remove_file(&self.part);
    }
}
