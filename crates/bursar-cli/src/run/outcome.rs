//! How a run ended, and what that means for whoever asked.

use super::RunFailure;
use super::worker::Report;
use crate::output::{FAINT, Failure};
use std::ffi::OsStr;
use std::io;

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) reports: Vec<Report>,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    /// What kept a worker from being started.
    pub(crate) trouble: Option<Trouble>,
}

/// What kept a worker from being started.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Its command.
    Start(io::Error),
    /// Its share.
    Room(bursar::Error),
}

impl Outcome {
    /// What it means for whoever asked for `program`: a failure tells of the first of its causes.
    pub(crate) fn judge(self, program: &OsStr) -> Result<(), Failure> {
        let Self { reports, signal, trouble } = self;
        match (trouble, signal) {
            (Some(Trouble::Start(error)), _) => {
                Err(Failure::Run(RunFailure::Start { program: program.to_owned(), error }))
            }
            (_, Some(signal)) => Err(Failure::Run(RunFailure::Signal { signal })),
            _ if reports.iter().any(Report::is_failure) => Err(Failure::Run(RunFailure::Workers { reports })),
            (Some(Trouble::Room(error)), None) => Err(error.into()),
            (None, None) => {
                let all =
                    if reports.len() == 1 { "the worker".to_owned() } else { format!("{} workers", reports.len()) };
                anstream::eprintln!("{FAINT}bursar: {all} ended well{FAINT:#}");
                Ok(())
            }
        }
    }
}
