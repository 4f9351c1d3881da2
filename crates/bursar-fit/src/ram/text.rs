//! The kernel's small text files: a word and a number a line.

use crate::ProbeError;
use bursar_core::Bytes;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A file that was read.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    text: String,
}

/// The bytes of a file that need not be there.
pub(super) fn find_bytes(path: &Path) -> Result<Option<Vec<u8>>, ProbeError> {
    match std::fs::metadata(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        _ => read_bytes(path).map(Some),
    }
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, ProbeError> {
    std::fs::read(path).map_err(|error| ProbeError::Unreadable { path: path.to_owned(), why: error.to_string() })
}

impl File {
    /// Reads a file that must be there.
    pub(super) fn read(path: PathBuf) -> Result<Self, ProbeError> {
        read_bytes(&path).map(|bytes| Self::of(path, &bytes))
    }

    /// Reads a file that need not be there.
    pub(super) fn find(path: PathBuf) -> Result<Option<Self>, ProbeError> {
        Ok(find_bytes(&path)?.map(|bytes| Self::of(path, &bytes)))
    }

    fn of(path: PathBuf, bytes: &[u8]) -> Self {
        Self { path, text: String::from_utf8_lossy(bytes).into_owned() }
    }

    /// The word after `name` on the line that begins with it.
    pub(super) fn field(&self, name: &str) -> Result<&str, ProbeError> {
        self.find_field(name).ok_or_else(|| ProbeError::MissingField { path: self.path.clone(), field: plain(name) })
    }

    /// The same, where such a line may be missing.
    pub(super) fn find_field(&self, name: &str) -> Option<&str> {
        let mut lines = self.text.lines().map(str::split_ascii_whitespace);
        lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()).flatten())
    }

    /// A number of bytes.
    pub(super) fn bytes(&self, field: &str, word: &str) -> Result<Bytes, ProbeError> {
        word.parse().map(Bytes).map_err(|_| ProbeError::Malformed {
            path: self.path.clone(),
            field: plain(field),
            text: word.to_owned(),
        })
    }

    /// A number of KiB.
    pub(super) fn kib(&self, field: &str, word: &str) -> Result<Bytes, ProbeError> {
        self.bytes(field, word).map(|kib| kib.saturating_mul(1024))
    }

    /// The only word of the file.
    pub(super) fn word(&self) -> &str {
        self.text.trim()
    }
}

fn plain(field: &str) -> String {
    field.trim_end_matches(':').to_owned()
}
