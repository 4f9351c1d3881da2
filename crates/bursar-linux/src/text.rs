//! The kernel's small text files: a name and a number on each line, or a single number.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The error of a file that could not be read or understood.
///
/// ```
/// let error = bursar_linux::MemoryInfo::read("no/such/machine").unwrap_err();
/// assert!(error.to_string().starts_with("no/such/machine/proc/meminfo cannot be read"), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A file that must exist does not, or cannot be read.
    #[error("{} cannot be read: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        why: String,
    },
    /// A file lacks a field that it must have.
    #[error("{} says nothing about {field}", path.display())]
    MissingField {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
    },
    /// A field is not a number.
    #[error("{} says that {field} is {text:?}, which is no number", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// The text found in place of a number.
        text: String,
    },
}

/// A file that was read.
#[derive(Debug)]
pub(crate) struct TextFile {
    path: PathBuf,
    text: String,
}

/// Returns the bytes of a file, or none where it does not exist.
pub(crate) fn find_bytes(path: &Path) -> Result<Option<Vec<u8>>, ReadError> {
    match std::fs::metadata(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        _ => read_bytes(path).map(Some),
    }
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, ReadError> {
    std::fs::read(path).map_err(|error| ReadError::Unreadable { path: path.to_owned(), why: error.to_string() })
}

impl TextFile {
    /// Reads a file that must exist.
    pub(crate) fn read(path: PathBuf) -> Result<Self, ReadError> {
        read_bytes(&path).map(|bytes| Self::new(path, &bytes))
    }

    /// Reads a file, or returns none where it does not exist.
    pub(crate) fn find(path: PathBuf) -> Result<Option<Self>, ReadError> {
        Ok(find_bytes(&path)?.map(|bytes| Self::new(path, &bytes)))
    }

    fn new(path: PathBuf, bytes: &[u8]) -> Self {
        Self { path, text: String::from_utf8_lossy(bytes).into_owned() }
    }

    /// Returns the word after `name` on the line that begins with it.
    pub(crate) fn field(&self, name: &str) -> Result<&str, ReadError> {
        self.find_field(name)
            .ok_or_else(|| ReadError::MissingField { path: self.path.clone(), field: without_colon(name) })
    }

    /// Returns the word after `name`, or none where no line begins with it.
    pub(crate) fn find_field(&self, name: &str) -> Option<&str> {
        let mut lines = self.text.lines().map(str::split_ascii_whitespace);
        lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()).flatten())
    }

    /// Parses `word`, the value of `field`.
    pub(crate) fn number(&self, field: &str, word: &str) -> Result<u64, ReadError> {
        word.parse().map_err(|_| ReadError::Malformed {
            path: self.path.clone(),
            field: without_colon(field),
            text: word.to_owned(),
        })
    }

    /// Returns the only word of the file.
    pub(crate) fn word(&self) -> &str {
        self.text.trim()
    }
}

fn without_colon(field: &str) -> String {
    field.trim_end_matches(':').to_owned()
}
