//! Helpers that the tests of logging share: destinations of logs, and readers of what was logged.
#![allow(dead_code, reason = "each test binary uses part of it")]

use bursar_core::{Action, Bytes, DeviceId, DevicePtr, Observer, Record};
use bursar_memory::{LogSummary, Logging};
use serde_json::Value;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than anything here takes, so that it is only waited for where something is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn closed(logging: &Logging) -> LogSummary {
    logging.close(PATIENCE).expect("the writer does not block")
}

/// Tells the log of `count` allocations, of 1, 2, … bytes.
pub(crate) fn tell(logging: &Logging, count: u64) {
    for n in 1..=count {
        let bytes = Bytes(n);
        let record = Record::new(Action::Allocate, DeviceId(0));
        logging.record(&Record { ptr: DevicePtr(n << 8), granted: bytes, asked: bytes, ..record });
    }
}

/// Something to write to that can be read here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paper(Arc<Mutex<Vec<u8>>>);

impl Paper {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no panic").clone()).expect("text")
    }
}

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A folder of its own that goes with the test.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("bursar-logging-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the files in it, sorted by name.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("a folder");
        let name = |entry: io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name().into_string();
        let mut names: Vec<_> = entries.map(|entry| name(entry).expect("a plain name")).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("our own folder");
    }
}

pub(crate) fn unzipped(path: &Path) -> String {
    let mut text = String::new();
    let file = std::fs::File::open(path).expect("a file");
    flate2::read::MultiGzDecoder::new(file).read_to_string(&mut text).expect("gzip");
    text
}

pub(crate) fn json_lines(text: &str) -> Vec<Value> {
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is whole");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Returns the rows of a CSV file by column, after its header.
pub(crate) fn csv_rows(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut field, mut quoted) = (Vec::new(), Vec::new(), String::new(), false);
    for c in text.chars() {
        match c {
            // A doubled quote closes and opens again, and is one quote of the text.
            '"' => {
                quoted = !quoted;
                if quoted && !field.is_empty() {
                    field.push('"');
                }
            }
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\n' if !quoted => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            c => field.push(c),
        }
    }
    assert!(row.is_empty() && field.is_empty(), "the last line is whole");
    assert_eq!(rows.remove(0).join(","), HEADER);
    assert!(rows.iter().all(|row| row.len() == 10), "ten columns: {rows:?}");
    rows
}

pub(crate) const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream,Device,Tag,Granted,Generation";

/// Returns the value of a key as a number; pointers too.
pub(crate) fn number(value: &Value) -> u64 {
    match value {
        Value::String(text) => {
            let digits = text.strip_prefix("0x").expect("a pointer");
            u64::from_str_radix(digits, 16).expect("a pointer")
        }
        value => value.as_u64().unwrap_or_else(|| panic!("{value} is no number")),
    }
}
