//! The end of a run, and what it means for its user: success, or a failure with an exit status.

use super::worker::WorkerReport;
use crate::failure::Failure;
use crate::output::{FAINT, say};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// The end of a run.
#[derive(Debug)]
pub(crate) struct RunOutcome {
    pub(super) reports: Vec<WorkerReport>,
    /// The signal that ended it.
    pub(super) signal: Option<i32>,
    /// The first error that kept a worker from being started.
    pub(super) start_error: Option<StartError>,
    /// True if output is still waiting for a reader, so that nothing more can be printed.
    pub(super) is_unread: bool,
}

/// An error that kept a worker from being started.
#[derive(Debug)]
pub(super) enum StartError {
    /// Its command could not be executed.
    Command(io::Error),
    /// Its memory could not be reserved.
    Memory(bursar::Error),
}

impl RunOutcome {
    /// Returns whether the end of some worker was reported.
    pub(crate) fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    /// Converts the outcome to a result for the user who asked for `program`: a failure is the first of its causes.
    pub(crate) fn into_result(self, program: &OsStr) -> Result<(), Failure> {
        let Self { reports, signal, start_error, is_unread } = self;
        match (start_error, signal) {
            (_, Some(signal)) if is_unread => {
                Err(Failure::AlreadyReported { status: RunFailure::Signal { signal }.status() })
            }
            (Some(StartError::Command(error)), _) => {
                Err(RunFailure::Start { program: program.to_owned(), error }.into())
            }
            (_, Some(signal)) => Err(RunFailure::Signal { signal }.into()),
            _ if reports.iter().any(WorkerReport::is_failure) => Err(RunFailure::Workers { reports }.into()),
            (Some(StartError::Memory(error)), None) => Err(error.into()),
            (None, None) => {
                let all =
                    if reports.len() == 1 { "the worker".to_owned() } else { format!("{} workers", reports.len()) };
                say(format_args!("{FAINT}bursar: {all} ended well{FAINT:#}"));
                Ok(())
            }
        }
    }
}

/// The most failed workers that are listed.
const LISTED_MAX: usize = 5;

/// The reason that a run failed.
#[derive(Debug)]
pub(crate) enum RunFailure {
    /// Some workers failed.
    Workers { reports: Vec<WorkerReport> },
    /// A signal ended the run.
    Signal { signal: i32 },
    /// The command could not be started.
    Start { program: OsString, error: io::Error },
    /// The system refused something that a run needs.
    System { what: &'static str, error: io::Error },
    /// The workers need more open files than are allowed.
    OpenFiles { workers: u64, needed: u64, limit: u64 },
    /// The library that keeps workers inside their shares is not there.
    NoLibrary { looked_for: Vec<PathBuf> },
    /// The library is at a path that the loader cannot be given.
    LibraryPath { library: PathBuf },
    /// The file is not the library, or not one for this machine.
    NotTheLibrary { library: PathBuf, what: String },
}

impl fmt::Display for RunFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers { reports } => {
                let failed: Vec<_> = reports.iter().filter(|report| report.is_failure()).collect();
                write!(f, "{} of {} workers failed", failed.len(), reports.len())?;
                for (at, report) in failed.iter().take(LISTED_MAX).enumerate() {
                    write!(f, "{} worker {} {}", if at == 0 { ":" } else { "," }, report.worker, report.ending)?;
                }
                if failed.len() > LISTED_MAX { write!(f, " and {} more", failed.len() - LISTED_MAX) } else { Ok(()) }
            }
            Self::Signal { signal } => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(f, "ended by {name}"),
                None => write!(f, "ended by signal {signal}"),
            },
            Self::Start { program, error } => write!(f, "{} could not be started: {error}", program.display()),
            Self::System { what, error } => write!(f, "{what}: {error}"),
            Self::OpenFiles { workers, needed, limit } => {
                write!(f, "{workers} workers need {needed} open files, and {limit} are allowed")
            }
            Self::NoLibrary { looked_for } => {
                let files: Vec<_> = looked_for.iter().map(|file| file.display().to_string()).collect();
                write!(
                    f,
                    "the library that keeps workers inside their shares is not there: looked for {}",
                    files.join(", ")
                )
            }
            Self::LibraryPath { library } => {
                write!(f, "{} cannot be preloaded: its path has a colon or a space in it", library.display())
            }
            Self::NotTheLibrary { library, what } => {
                write!(f, "{} cannot keep workers inside their shares: {what}", library.display())
            }
        }
    }
}

impl From<RunFailure> for Failure {
    fn from(failure: RunFailure) -> Self {
        Self::Run { message: failure.to_string(), hint: failure.hint(), status: failure.status() }
    }
}

impl RunFailure {
    /// Returns what to do about it.
    fn hint(&self) -> &'static str {
        match self {
            Self::Workers { .. } => "the lines that begin with [worker N] say why",
            Self::Signal { .. } => "every worker was ended and every share given back",
            Self::Start { error, .. } if is_command_error(error) => {
                "the command stands after `--`: check its name, or give its path"
            }
            Self::Start { .. } | Self::System { .. } => "the system is short of something: want fewer workers",
            Self::OpenFiles { .. } => "allow more with `ulimit -n`, or want fewer workers",
            Self::NoLibrary { .. } | Self::LibraryPath { .. } | Self::NotTheLibrary { .. } => {
                "`cargo build --release` makes it beside the command; BURSAR_ENFORCE_LIBRARY names another place, and \
                 --no-enforce does without it"
            }
        }
    }

    /// Returns the exit status: 128 and the signal's number if a signal ended the run, as in shells.
    fn status(&self) -> u8 {
        match self {
            Self::Workers { .. } => 1,
            Self::Signal { signal } => u8::try_from(128 + signal).unwrap_or(u8::MAX),
            Self::Start { error, .. } if is_command_error(error) => 2,
            Self::Start { .. } | Self::System { .. } | Self::OpenFiles { .. } => 3,
            Self::NoLibrary { .. } | Self::LibraryPath { .. } | Self::NotTheLibrary { .. } => 3,
        }
    }
}

/// Returns whether the command itself is at fault, and not the machine.
fn is_command_error(error: &io::Error) -> bool {
    use ErrorKind::{ArgumentListTooLong, ExecutableFileBusy, InvalidInput, IsADirectory, NotADirectory, NotFound};
    let no_program = error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error());
    let kinds = [ArgumentListTooLong, ExecutableFileBusy, InvalidInput, IsADirectory, NotADirectory, NotFound];
    no_program || error.kind() == ErrorKind::PermissionDenied || kinds.contains(&error.kind())
}
