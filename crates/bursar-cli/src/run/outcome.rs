//! How a run ended, and what that means for whoever asked.

use super::RunFailure;
use super::worker::Report;
use crate::output::{FAINT, Failure, say};
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
    /// Whether what was written waits for somebody to read it: nothing more can be said.
    pub(crate) is_unread: bool,
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
        let Self { reports, signal, trouble, is_unread } = self;
        match (trouble, signal) {
            (_, Some(signal)) if is_unread => Err(Failure::Told { status: RunFailure::Signal { signal }.status() }),
            (Some(Trouble::Start(error)), _) => {
                Err(Failure::Run(RunFailure::Start { program: program.to_owned(), error }))
            }
            (_, Some(signal)) => Err(Failure::Run(RunFailure::Signal { signal })),
            _ if reports.iter().any(Report::is_failure) => Err(Failure::Run(RunFailure::Workers { reports })),
            (Some(Trouble::Room(error)), None) => Err(error.into()),
            (None, None) => {
                let all =
                    if reports.len() == 1 { "the worker".to_owned() } else { format!("{} workers", reports.len()) };
                say(format_args!("{FAINT}bursar: {all} ended well{FAINT:#}"));
                Ok(())
            }
        }
    }
}
