//! The file to which hazards are written: one line each, as they are found.

use bursar_sim::Sim;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// A file that is appended to.
#[derive(Debug)]
pub(crate) struct HazardFile(Mutex<File>);

impl HazardFile {
    pub(crate) fn open(path: &str) -> Result<Self, String> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.map(|file| Self(Mutex::new(file))).map_err(|error| format!("BURSAR_HAZARDS: {path}: {error}"))
    }

    /// Appends the hazards that were found since the last call.
    pub(crate) fn collect(&self, sim: &Sim) {
        for hazard in sim.take_hazards() {
            self.append(&hazard.to_string());
        }
    }

    /// Appends one line. Lines of several processes do not mix, because each is written at once.
    pub(crate) fn append(&self, hazard: &str) {
        let words: Vec<&str> = hazard.split_whitespace().collect();
        let line = format!("{}\n", words.join(" "));
        // A program is not stopped because its report cannot be written.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
    }
}
