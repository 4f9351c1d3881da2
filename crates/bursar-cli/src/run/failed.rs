//! Why a run did not end well.

use super::worker::Report;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, ErrorKind};

/// So many workers are told of by number.
const TOLD_MAX: usize = 5;

/// Why a run did not end well.
#[derive(Debug)]
pub(crate) enum RunFailure {
    /// Some workers failed.
    Workers { reports: Vec<Report> },
    /// A signal ended it.
    Signal { signal: i32 },
    /// The command could not be started.
    Start { program: OsString, error: io::Error },
    /// The system refused something that a run needs.
    System { what: &'static str, error: io::Error },
    /// Each worker needs open files, and there are not so many.
    OpenFiles { workers: u64, needed: u64, limit: u64 },
}

impl fmt::Display for RunFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers { reports } => {
                let failed: Vec<_> = reports.iter().filter(|report| report.is_failure()).collect();
                write!(f, "{} of {} workers failed", failed.len(), reports.len())?;
                for (at, report) in failed.iter().take(TOLD_MAX).enumerate() {
                    write!(f, "{} worker {} {}", if at == 0 { ":" } else { "," }, report.worker, report.ending)?;
                }
                if failed.len() > TOLD_MAX { write!(f, " and {} more", failed.len() - TOLD_MAX) } else { Ok(()) }
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
        }
    }
}

impl RunFailure {
    /// What to do about it.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            Self::Workers { .. } => "the lines that begin with [worker N] say why",
            Self::Signal { .. } => "every worker was ended and every share given back",
            Self::Start { error, .. } if is_the_command(error) => {
                "the command stands after `--`: check its name, or give its path"
            }
            Self::Start { .. } | Self::System { .. } => "the system is short of something: want fewer workers",
            Self::OpenFiles { .. } => "allow more with `ulimit -n`, or want fewer workers",
        }
    }

    /// The exit status: 128 and the signal's number where a signal ended us, as shells have it.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Workers { .. } => 1,
            Self::Signal { signal } => u8::try_from(128 + signal).unwrap_or(u8::MAX),
            Self::Start { error, .. } if is_the_command(error) => 2,
            Self::Start { .. } | Self::System { .. } | Self::OpenFiles { .. } => 3,
        }
    }
}

/// Whether the command itself is at fault, and not the machine.
fn is_the_command(error: &io::Error) -> bool {
    use ErrorKind::{ArgumentListTooLong, ExecutableFileBusy, InvalidInput, IsADirectory, NotADirectory, NotFound};
    let no_program = error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error());
    let kinds = [ArgumentListTooLong, ExecutableFileBusy, InvalidInput, IsADirectory, NotADirectory, NotFound];
    no_program || error.kind() == ErrorKind::PermissionDenied || kinds.contains(&error.kind())
}
