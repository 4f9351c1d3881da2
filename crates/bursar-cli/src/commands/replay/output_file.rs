//! A file that a replay writes.

use crate::failure::Failure;
use bursar::trace::AtomicFile;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

/// A file that appears once it is complete, with the path that the user gave. Failures name that path.
#[derive(Debug)]
pub(super) struct OutputFile {
    path: PathBuf,
    file: AtomicFile,
}

impl OutputFile {
    /// Prepares the file, so that a path that cannot be written, or is no file's, fails at once.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let failed = |error| Failure::File { path: path.to_owned(), error };
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "there is something else than a file")));
        }
        Ok(Self { path: path.to_owned(), file: AtomicFile::create(path).map_err(failed)? })
    }

    /// Writes the file by `write` and puts it in its place.
    pub(super) fn finish(self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), Failure> {
        let Self { path, file } = self;
        file.finish(write).map_err(|error| Failure::File { path, error })
    }
}
