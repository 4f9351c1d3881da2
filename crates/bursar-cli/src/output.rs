//! One way out: what a command found is data, shown to people or printed as JSON.

use anstyle::{AnsiColor, Style};
use bursar::driver::DriverChoiceError;
use serde::Serialize;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

pub(crate) const HEADING: Style = AnsiColor::Cyan.on_default().bold();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
pub(crate) const FAINT: Style = Style::new().dimmed();

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
    Output(std::io::Error),
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

impl From<bursar::DriverError> for Failure {
    fn from(error: bursar::DriverError) -> Self {
        Self::Memory(error.into())
    }
}

/// Says what went wrong and what to do, and answers the exit status.
pub(crate) fn fail(failure: &Failure) -> ExitCode {
    let (text, advice) = match failure {
        Failure::Driver(error) => {
            (error.to_string(), "run with --driver sim to use simulated devices, or install the NVIDIA driver")
        }
        Failure::Memory(error) => (error.to_string(), "`bursar devices` shows what the machine has"),
        Failure::Output(error) => (error.to_string(), "standard output could not be written"),
    };
    anstream::eprintln!("{BAD}error:{BAD:#} {text}\n{FAINT}hint: {advice}{FAINT:#}");
    ExitCode::from(3)
}
