//! Reads the kernel's small text files, with a name and a number on each line.

use crate::ProbeError;
use bursar_core::Bytes;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The path and the contents of a file.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    text: String,
}

/// Reads the bytes of a file, or returns none if it does not exist.
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
    /// Reads a file that must exist.
    pub(super) fn read(path: PathBuf) -> Result<Self, ProbeError> {
        read_bytes(&path).map(|bytes| Self::of(path, &bytes))
    }

    /// Reads a file, or returns none if it does not exist.
    pub(super) fn find(path: PathBuf) -> Result<Option<Self>, ProbeError> {
        Ok(find_bytes(&path)?.map(|bytes| Self::of(path, &bytes)))
    }

    fn of(path: PathBuf, bytes: &[u8]) -> Self {
        Self { path, text: String::from_utf8_lossy(bytes).into_owned() }
    }

    /// Returns the word after `name` on the line that begins with it, or an error if there is no such line.
    pub(super) fn field(&self, name: &str) -> Result<&str, ProbeError> {
        self.find_field(name).ok_or_else(|| ProbeError::MissingField { path: self.path.clone(), field: plain(name) })
    }

    /// Returns the word after `name` on the line that begins with it, or none if there is no such line.
    pub(super) fn find_field(&self, name: &str) -> Option<&str> {
        let mut lines = self.text.lines().map(str::split_ascii_whitespace);
        lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()).flatten())
    }

    /// Parses a number of bytes.
    pub(super) fn bytes(&self, field: &str, word: &str) -> Result<Bytes, ProbeError> {
        word.parse().map(Bytes).map_err(|_| ProbeError::Malformed {
            path: self.path.clone(),
            field: plain(field),
            text: word.to_owned(),
        })
    }

    /// Parses a number of KiB.
    pub(super) fn kib(&self, field: &str, word: &str) -> Result<Bytes, ProbeError> {
        self.bytes(field, word).map(|kib| kib.saturating_mul(1024))
    }

    /// Returns the only word of the file.
    pub(super) fn word(&self) -> &str {
        self.text.trim()
    }
}

fn plain(field: &str) -> String {
    field.trim_end_matches(':').to_owned()
}
