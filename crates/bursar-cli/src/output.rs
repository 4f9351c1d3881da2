//! One way out: what a command found is data, shown to people or printed as JSON.

use anstyle::{AnsiColor, Style};
use bursar::driver::DriverChoiceError;
use bursar::ledger::LedgerError;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

pub(crate) const HEADING: Style = AnsiColor::Cyan.on_default().bold();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const FAINT: Style = Style::new().dimmed();

/// How far long work has come, on standard error where that is a terminal.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Work of so many steps.
    pub(crate) fn new(steps: usize) -> Self {
        let style =
            ProgressStyle::with_template("{bar:24.cyan} {pos}/{len} {msg}").unwrap_or(ProgressStyle::default_bar());
        Self(ProgressBar::new(steps as u64).with_style(style).with_position(0))
    }

    /// The next step begins.
    pub(crate) fn step(&mut self, what: &str) {
        self.0.set_message(what.to_owned());
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Something a command found.
pub(crate) trait Show: Serialize {
    /// Writes it for people.
    fn show(&self, out: &mut dyn Write) -> std::io::Result<()>;
}

/// Prints what was found, for people or as one JSON value.
pub(crate) fn show(found: &impl Show, json: bool) -> Result<(), Failure> {
    let written = if json {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, found)
            .map_err(std::io::Error::from)
            .and_then(|()| writeln!(out))
            .and_then(|()| out.flush())
    } else {
        let mut out = anstream::stdout().lock();
        found.show(&mut out).and_then(|()| out.flush())
    };
    match written {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(Failure::Output),
    }
}

/// Why a command could not be carried out.
#[derive(Debug)]
pub(crate) enum Failure {
    Driver(DriverChoiceError),
    Memory(bursar::Error),
    Trace(bursar::trace::TraceError),
    Output(std::io::Error),
    /// Pinned memory that could not be had.
    Host(bursar::host::HostError),
    Ledger(LedgerError),
    /// Ledgers that cannot be read, among others that were shown: how many, and why the first cannot.
    UnreadableLedgers {
        count: usize,
        first: String,
    },
    /// Workers that do not fit, or what could not be found out about them.
    Fit(bursar::fit::FitError),
    /// A run of workers that did not end well.
    Run(crate::run::RunFailure),
    /// A file that was to be written.
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    /// Options that do not go together.
    Usage(&'static str),
    /// Everything was said already, or whoever should read it does not.
    Told {
        status: u8,
    },
}

impl From<DriverChoiceError> for Failure {
    fn from(error: DriverChoiceError) -> Self {
        Self::Driver(error)
    }
}

impl From<bursar::Error> for Failure {
    fn from(error: bursar::Error) -> Self {
        Self::Memory(error)
    }
}

impl From<bursar::fit::FitError> for Failure {
    fn from(error: bursar::fit::FitError) -> Self {
        match error {
            bursar::fit::FitError::Memory(error) => Self::Memory(error),
            bursar::fit::FitError::Ledger(error) => Self::Ledger(error),
            error => Self::Fit(error),
        }
    }
}

impl From<bursar::host::HostError> for Failure {
    fn from(error: bursar::host::HostError) -> Self {
        match error {
            bursar::host::HostError::Device(error) => Self::Memory(error),
            error => Self::Host(error),
        }
    }
}

impl From<bursar::DriverError> for Failure {
    fn from(error: bursar::DriverError) -> Self {
        Self::Memory(error.into())
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

impl From<bursar::trace::TraceError> for Failure {
    fn from(error: bursar::trace::TraceError) -> Self {
        Self::Trace(error)
    }
}

impl From<bursar::trace::ReplayError> for Failure {
    fn from(error: bursar::trace::ReplayError) -> Self {
        match error {
            bursar::trace::ReplayError::Memory(error) => error.into(),
            bursar::trace::ReplayError::Trace(error) => error.into(),
        }
    }
}

/// Writes a line for people on standard error. One that cannot be written changes nothing.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}

/// The same, unless whoever should read it would have to be waited for.
pub(crate) fn try_to_say(line: fmt::Arguments<'_>) {
    let error = std::io::stderr();
    if let Ok(1) = poll(&mut [PollFd::new(&error, PollFlags::OUT)], Some(&Timespec::default())) {
        say(line);
    }
}

/// Says what went wrong and what to do, and returns the exit status.
pub(crate) fn fail(failure: &Failure) -> ExitCode {
    let (text, advice) = match failure {
        Failure::Driver(error) => {
            (error.to_string(), "run with --driver sim to use simulated devices, or install the NVIDIA driver")
        }
        Failure::Memory(error) => (error.to_string(), "`bursar devices` shows what the machine has"),
        Failure::Trace(error) => {
            (error.to_string(), "a trace is an RMM CSV log, JSON lines, or a PyTorch memory snapshot, gzipped or not")
        }
        Failure::Fit(error) if error.is_capacity() => {
            (error.to_string(), "need less, free some, or go on with one worker by --allow-overflow")
        }
        Failure::Fit(error) => (error.to_string(), "--available SIZE says what there is, whatever the machine says"),
        Failure::Run(failure) => (failure.to_string(), failure.advice()),
        Failure::Ledger(error @ LedgerError::Held { .. }) => {
            (error.to_string(), "`bursar ledger show` shows who holds what")
        }
        Failure::Ledger(error) => (error.to_string(), LEDGER_ADVICE),
        Failure::UnreadableLedgers { count: 1, first } => (first.clone(), LEDGER_ADVICE),
        Failure::UnreadableLedgers { count, first } => (format!("{first} (and {} more)", count - 1), LEDGER_ADVICE),
        Failure::Host(error) if error.is_capacity() => (error.to_string(), "ask for less, or free some"),
        Failure::Host(error) => (error.to_string(), "`bursar help` shows the options of each command"),
        Failure::Output(error) => (error.to_string(), "standard output could not be written"),
        Failure::File { path, error } => {
            (format!("{}: {error}", path.display()), "the file could not be written: choose another place")
        }
        Failure::Usage(what) => ((*what).to_owned(), "`bursar help` shows the options of each command"),
        Failure::Told { status } => return ExitCode::from(*status),
    };
    say(format_args!("{BAD}error:{BAD:#} {text}\n{FAINT}hint: {advice}{FAINT:#}"));
    ExitCode::from(failure.status())
}

/// What is wrong with a ledger says itself what helps.
const LEDGER_ADVICE: &str = "no other ledger is affected: `bursar ledger show` lists them all";

const ANSWER_IS_NO: u8 = 1;
const WRONG_USAGE: u8 = 2;
const MACHINE_FAILED: u8 = 3;

impl Failure {
    fn status(&self) -> u8 {
        use bursar::Error as Memory;
        match self {
            Self::Driver(DriverChoiceError::Unknown { .. }) => WRONG_USAGE,
            Self::Memory(error) if error.is_capacity() => ANSWER_IS_NO,
            Self::Memory(Memory::Capacity { .. }) => ANSWER_IS_NO,
            Self::Memory(
                Memory::InvalidSize { .. }
                | Memory::InvalidAlignment { .. }
                | Memory::InvalidValue { .. }
                | Memory::InvalidNumber { .. },
            ) => WRONG_USAGE,
            Self::Ledger(LedgerError::Held { .. }) => ANSWER_IS_NO,
            Self::Trace(error) if is_a_broken_disk(&error.reason) => MACHINE_FAILED,
            Self::File { error, .. } if is_the_disk(error) => MACHINE_FAILED,
            Self::Fit(error) if error.is_capacity() => ANSWER_IS_NO,
            Self::Run(failure) => failure.status(),
            Self::Told { status } => *status,
            Self::Host(error) if error.is_capacity() => ANSWER_IS_NO,
            Self::Host(bursar::host::HostError::ZeroBytes | bursar::host::HostError::TooLarge { .. }) => WRONG_USAGE,
            Self::Host(_) => MACHINE_FAILED,
            Self::Trace(_) | Self::File { .. } | Self::Usage(_) => WRONG_USAGE,
            Self::Ledger(_) | Self::UnreadableLedgers { .. } => MACHINE_FAILED,
            Self::Driver(_) | Self::Memory(_) | Self::Fit(_) | Self::Output(_) => MACHINE_FAILED,
        }
    }
}

/// Whether a file could not be used though its name was right.
fn is_a_broken_disk(reason: &bursar::trace::Reason) -> bool {
    match reason {
        bursar::trace::Reason::Io(error) => is_the_disk(error),
        _ => false,
    }
}

fn is_the_disk(error: &std::io::Error) -> bool {
    use ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    let wrong_place = [NotFound, NotADirectory, IsADirectory, PermissionDenied, InvalidInput, ReadOnlyFilesystem];
    !wrong_place.contains(&error.kind())
}
