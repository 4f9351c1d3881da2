//! Errors of the commands.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// The reason why a command stopped. Its `Display` says what to do next, if there is something to do.
#[derive(Debug)]
pub(crate) enum Error {
    /// The arguments name no command.
    Usage { args: String },
    /// `--only` names no step.
    UnknownStep { name: String, known: Vec<&'static str> },
    /// A tool that comes as a rustup component is absent.
    MissingComponent { component: &'static str },
    /// A step of the test run did not pass.
    Step { name: &'static str, elapsed: Duration, cause: Box<Error> },
    /// A child process could not be started.
    Start { command: String, source: io::Error },
    /// A child process ran and failed.
    Exit { command: String, status: ExitStatus },
    /// Tidy found something.
    Untidy { findings: usize },
    /// A file could not be read.
    Read { path: PathBuf, source: io::Error },
    /// A file or folder could not be made or removed.
    Write { path: PathBuf, source: io::Error },
    /// Instructions cannot be counted without valgrind.
    MissingValgrind,
    /// Something that a check needs is absent, so it was not run.
    NotRun { reason: String },
    /// The run on several NUMA nodes did not pass; the folder has what it left.
    Numa { why: String, folder: PathBuf },
    /// The words choose no program to run.
    NoProgram { words: String, known: Vec<String> },
    /// A file that was to be fetched or built is not there.
    Fetch { what: String },
    /// The words choose nothing to count.
    NoMeasurement { words: String, known: Vec<String> },
    /// Something that the packages need is missing.
    Package { what: String },
    /// The output of a measurement cannot be read.
    Measurement { command: String, what: String },
    /// A measurement counted more instructions than it may.
    TooManyInstructions { line: String, instructions: u64, bar: u64 },
}

impl Error {
    /// Returns the exit status of the process: 2 for wrong usage, 1 for everything else.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Error::Usage { .. } | Error::UnknownStep { .. } | Error::NoMeasurement { .. } | Error::NoProgram { .. } => {
                2
            }
            _ => 1,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage { args } => write!(f, "no such command: `{args}`; see `cargo xtask help`"),
            Error::UnknownStep { name, known } => {
                write!(f, "no such step: `{name}`; the steps are {}", known.join(", "))
            }
            Error::MissingComponent { component } => {
                write!(f, "{component} is not installed for this toolchain; run `rustup component add {component}`")
            }
            Error::Step { name, elapsed, cause } => write!(
                f,
                "step `{name}` failed after {:.1} s: {cause}\n\
                 Rerun it alone with: cargo xtask test --only {name}",
                elapsed.as_secs_f64()
            ),
            Error::Start { command, source } => write!(f, "cannot start `{command}`: {source}"),
            Error::Exit { command, status } => write!(f, "`{command}` ended with {status}"),
            Error::Untidy { findings: 1 } => write!(f, "tidy has 1 finding"),
            Error::Untidy { findings } => write!(f, "tidy has {findings} findings"),
            Error::Read { path, source } => write!(f, "cannot read {}: {source}", path.display()),
            Error::Write { path, source } => write!(f, "cannot write {}: {source}", path.display()),
            Error::MissingValgrind => write!(
                f,
                "valgrind, which counts the instructions, is not installed; run `apt-get install valgrind`, or what \
                 your system has for it"
            ),
            Error::NotRun { reason } | Error::Fetch { what: reason } => f.write_str(reason),
            Error::Numa { why, folder } => write!(f, "{why}; what the machine said is in {}", folder.display()),
            Error::NoProgram { words, known } => {
                write!(f, "no program has one of `{words}`; there are {}", known.join(", "))
            }
            Error::NoMeasurement { words, known } => {
                write!(f, "nothing to count has all of `{words}`; there are {}", known.join(", "))
            }
            Error::Package { what } => write!(f, "the packages cannot be used: {what}"),
            Error::Measurement { command, what } => write!(f, "`{command}` gave no count: {what}"),
            Error::TooManyInstructions { line, instructions, bar } => {
                write!(f, "`{line}` took {instructions} instructions and may take {bar}")
            }
        }
    }
}
