//! A temporary folder for the tests of the command, and the schemas of the documents.
#![allow(dead_code, reason = "each test uses part of it")]

pub(crate) mod schema;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A folder of one test's own, removed with it.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let since = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos();
        let name = format!("bursar-cli-{}-{}-{since}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a temporary folder");
        Self(path)
    }

    /// Makes a folder with a folder for [ledgers](Self::ledgers) in it.
    pub(crate) fn with_ledgers() -> Self {
        let folder = Self::new();
        std::fs::create_dir(folder.ledgers()).expect("room");
        folder
    }

    /// Returns the path of the folder for ledgers.
    pub(crate) fn ledgers(&self) -> PathBuf {
        self.0.join("ledgers")
    }

    /// Returns the path of a file in it.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a plain name").to_owned()
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).expect("room");
        path
    }

    /// Returns the names of the files in it.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("it is there");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("readable").file_name().into_string().expect("text")).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone_already = std::fs::remove_dir_all(&self.0);
    }
}
