//! The name of a log's file, and the names of the files it is continued in.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The name of a log: `stem.extension`, or `stem.extension.gz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileName<'a> {
    path: &'a Path,
    stem: &'a OsStr,
    pub(super) extension: Option<&'a OsStr>,
    pub(super) is_gz: bool,
}

impl<'a> FileName<'a> {
    /// `None` where the path names no file.
    pub(super) fn of(path: &'a Path) -> Option<Self> {
        let mut name = Path::new(path.file_name()?);
        let is_gz = name.extension().is_some_and(|extension| extension == "gz");
        if is_gz {
            name = Path::new(name.file_stem()?);
        }
        Some(Self { path, stem: name.file_stem()?, extension: name.extension(), is_gz })
    }

    /// The file the log is continued in for the `number`th time.
    pub(super) fn continuation(&self, number: u64) -> PathBuf {
        let mut name = self.stem.to_owned();
        name.push(format!(".{number}"));
        if let Some(extension) = self.extension {
            name.push(".");
            name.push(extension);
        }
        if self.is_gz {
            name.push(".gz");
        }
        self.path.with_file_name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g1_a_log_is_continued_in_numbered_files() {
        for (path, expected) in [
            ("logs/memory.csv", "logs/memory.7.csv"),
            ("memory.jsonl.gz", "memory.7.jsonl.gz"),
            ("a.b.csv", "a.b.7.csv"),
            ("memory", "memory.7"),
            (".csv", ".csv.7"),
        ] {
            let continued = FileName::of(path.as_ref()).map(|name| name.continuation(7));
            assert_eq!(continued.as_deref(), Some(Path::new(expected)));
        }
        assert_eq!(FileName::of("..".as_ref()), None);
    }
}
