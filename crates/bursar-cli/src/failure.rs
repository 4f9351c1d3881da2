//! The failures of commands: what is printed for each, and the exit status.

use bursar::device::DeviceContext;
use bursar::driver::DriverChoiceError;
use bursar::ledger::LedgerError;
use bursar::{Bytes, DeviceId};
use std::io::ErrorKind;
use std::path::PathBuf;

/// The failure of a command.
#[derive(Debug)]
pub(crate) enum Failure {
    Driver(DriverChoiceError),
    /// A stage in VRAM without a GPU.
    NoVram(DriverChoiceError),
    Memory(bursar::Error),
    Trace(bursar::trace::TraceError),
    Output(std::io::Error),
    /// Pinned memory that could not be allocated.
    Host(bursar::host::HostError),
    Ledger(LedgerError),
    /// Ledgers that cannot be read, among others that were shown: their number, and the error of the first.
    UnreadableLedgers {
        count: usize,
        first: String,
    },
    /// Workers that do not fit, or a probe that failed.
    Fit(bursar::fit::FitError),
    /// A run of workers that failed.
    Run {
        message: String,
        hint: &'static str,
        status: u8,
    },
    /// A process that could not be asked, or did not do as it was asked.
    Process {
        message: String,
        hint: &'static str,
        status: u8,
    },
    /// A file that could not be written.
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    /// An address that cannot be listened on.
    Listen {
        address: String,
        error: std::io::Error,
    },
    /// A token that cannot be used.
    Token(bursar::metrics::TokenError),
    /// A file that history cannot be kept in.
    History(bursar::metrics::HistoryFileError),
    /// A device that `--devices` names and that is not there, or not usable; and those that are.
    NoSuchDevice {
        name: String,
        usable: Vec<DeviceId>,
    },
    /// An option that asks for more memory than a device has free.
    NoRoom {
        option: &'static str,
        wanted: Bytes,
        free: Bytes,
        device: DeviceId,
    },
    /// A terminal that is not there, or that no frame can be drawn on.
    Terminal {
        why: String,
    },
    /// Options that do not go together.
    Usage(&'static str),
    /// A failure of a command that had printed its data before.
    AfterOutput(Box<Self>),
    /// Everything was reported already, or nobody reads it.
    AlreadyReported {
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

impl From<bursar::driver::DriverError> for Failure {
    fn from(error: bursar::driver::DriverError) -> Self {
        Self::Memory(error.into())
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

impl From<bursar::metrics::TokenError> for Failure {
    fn from(error: bursar::metrics::TokenError) -> Self {
        Self::Token(error)
    }
}

impl From<bursar::metrics::HistoryFileError> for Failure {
    fn from(error: bursar::metrics::HistoryFileError) -> Self {
        Self::History(error)
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

/// The hint for errors of a ledger, which say themselves what helps.
const LEDGER_HINT: &str = "no other ledger is affected: `bursar ledger show` lists them all";

const NO_CUDA_HINT: &str =
    "install the NVIDIA driver, or rehearse on simulated devices with --driver sim or BURSAR_DRIVER=sim";

const NO_VRAM_HINT: &str = "install the NVIDIA driver, use RAM with --pool ram, or rehearse on simulated devices with --driver \
    sim or BURSAR_DRIVER=sim";

const NO_TERMINAL_HINT: &str =
    "`bursar top --once` prints one frame as text, `bursar top --json` a line a second for programs";

const REFUSED: u8 = 1;
const WRONG_USAGE: u8 = 2;
const MACHINE_FAILED: u8 = 3;

impl Failure {
    /// Returns the failure of a stage whose devices could not be opened.
    pub(crate) fn of_stage(self) -> Self {
        match self {
            Self::Driver(error @ DriverChoiceError::NoCuda { .. }) => Self::NoVram(error),
            other => other,
        }
    }

    /// Fails if the device of `context` has less free than `option` asks for.
    pub(crate) fn if_no_room(option: &'static str, wanted: Bytes, context: &DeviceContext) -> Result<(), Self> {
        let device = context.device();
        let free = context.driver().memory(device)?.free;
        if wanted > free { Err(Self::NoRoom { option, wanted, free, device }) } else { Ok(()) }
    }

    /// Returns what went wrong and what to do about it, or none if that was reported already.
    pub(crate) fn text_and_hint(&self) -> Option<(String, &'static str)> {
        Some(match self {
            Self::Driver(error @ DriverChoiceError::NoCuda { .. }) => (error.to_string(), NO_CUDA_HINT),
            Self::Driver(error) => (error.to_string(), "`bursar help` shows how devices are chosen"),
            Self::NoVram(error) => (error.to_string(), NO_VRAM_HINT),
            Self::Memory(error) => (error.to_string(), "`bursar devices` shows what the machine has"),
            Self::Trace(error) => (
                error.to_string(),
                "a trace is an RMM CSV log, JSON lines, records of 16 bytes, or a PyTorch memory snapshot, gzipped or not",
            ),
            Self::Fit(error) if error.is_capacity() => {
                (error.to_string(), "need less, free some, or go on with one worker by --allow-overflow")
            }
            Self::Fit(error) => (error.to_string(), "--available SIZE says what there is, whatever the machine says"),
            Self::Run { message, hint, .. } | Self::Process { message, hint, .. } => (message.clone(), *hint),
            Self::Ledger(error @ LedgerError::Held { .. }) => {
                (error.to_string(), "`bursar ledger show` shows who holds what")
            }
            Self::Ledger(error) => (error.to_string(), LEDGER_HINT),
            Self::UnreadableLedgers { count: 1, first } => (first.clone(), LEDGER_HINT),
            Self::UnreadableLedgers { count, first } => (format!("{first} (and {} more)", count - 1), LEDGER_HINT),
            Self::Host(error) if error.is_capacity() => (error.to_string(), "ask for less, or free some"),
            Self::Host(error) => (error.to_string(), "`bursar help` shows the options of each command"),
            Self::Output(error) => (error.to_string(), "standard output could not be written"),
            Self::File { path, error } => {
                (format!("{}: {error}", path.display()), "the file could not be written: choose another place")
            }
            Self::Listen { address, error } => (format!("cannot listen on {address}: {error}"), listen_hint(error)),
            Self::Token(error) => (
                error.to_string(),
                "make one with `(umask 077; openssl rand -hex 32 >FILE)` and name it by --token-file FILE",
            ),
            Self::History(error) => (error.to_string(), "without --history FILE the history is kept in memory alone"),
            Self::NoSuchDevice { name, usable } => {
                let usable: Vec<_> = usable.iter().map(DeviceId::to_string).collect();
                let there = if usable.is_empty() { "none".to_owned() } else { usable.join(", ") };
                (
                    format!("--devices names {name:?}, which is not there or not usable; usable: {there}"),
                    "`bursar devices` shows each with its number and its UUID",
                )
            }
            Self::NoRoom { option, wanted, free, device } => (
                format!("{option} asks for {wanted}, and {device} has {free} free"),
                "ask for less, or end the programs that use the device: `bursar ledger` shows those of Bursar",
            ),
            Self::Terminal { why } => (why.clone(), NO_TERMINAL_HINT),
            Self::Usage(what) => ((*what).to_owned(), "`bursar help` shows the options of each command"),
            Self::AfterOutput(failure) => return failure.text_and_hint(),
            Self::AlreadyReported { .. } => return None,
        })
    }

    /// Returns whether the command had printed data before it failed.
    pub(crate) const fn follows_output(&self) -> bool {
        matches!(self, Self::AfterOutput(_) | Self::Output(_))
    }

    /// Returns the exit status.
    pub(crate) fn status(&self) -> u8 {
        use bursar::Error as Memory;
        match self {
            Self::Driver(
                DriverChoiceError::Unknown { .. }
                | DriverChoiceError::Variable { .. }
                | DriverChoiceError::SimDevices(_),
            ) => WRONG_USAGE,
            Self::AfterOutput(failure) => failure.status(),
            Self::Memory(error) if error.is_capacity() => REFUSED,
            Self::Memory(Memory::Capacity { .. }) => REFUSED,
            Self::Memory(
                Memory::InvalidSize { .. }
                | Memory::InvalidAlignment { .. }
                | Memory::InvalidValue { .. }
                | Memory::InvalidNumber { .. },
            ) => WRONG_USAGE,
            Self::Ledger(LedgerError::Held { .. }) | Self::NoRoom { .. } => REFUSED,
            Self::Trace(error) if is_trace_disk_error(&error.reason) => MACHINE_FAILED,
            Self::File { error, .. } if is_disk_error(error) => MACHINE_FAILED,
            Self::Listen { error, .. } if error.kind() == ErrorKind::InvalidInput => WRONG_USAGE,
            Self::History(bursar::metrics::HistoryFileError::Io { error, .. }) if is_disk_error(error) => {
                MACHINE_FAILED
            }
            Self::Token(_) | Self::History(_) => WRONG_USAGE,
            Self::Listen { .. } => MACHINE_FAILED,
            Self::Fit(error) if error.is_capacity() => REFUSED,
            Self::Run { status, .. } | Self::Process { status, .. } | Self::AlreadyReported { status } => *status,
            Self::Host(error) if error.is_capacity() => REFUSED,
            Self::Host(bursar::host::HostError::ZeroBytes | bursar::host::HostError::TooLarge { .. }) => WRONG_USAGE,
            Self::Host(_) => MACHINE_FAILED,
            Self::Trace(_) | Self::File { .. } | Self::NoSuchDevice { .. } | Self::Terminal { .. } | Self::Usage(_) => {
                WRONG_USAGE
            }
            Self::Ledger(_) | Self::UnreadableLedgers { .. } => MACHINE_FAILED,
            Self::Driver(_) | Self::NoVram(_) | Self::Memory(_) | Self::Fit(_) | Self::Output(_) => MACHINE_FAILED,
        }
    }
}

/// Returns what helps against an address that cannot be listened on.
fn listen_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse => {
            "another program listens there: end it, or choose another port by --listen ADDRESS:PORT (0 is one that is free)"
        }
        ErrorKind::AddrNotAvailable => "this machine has no such address: `ip address` lists those it has",
        ErrorKind::PermissionDenied => "ports below 1024 need privileges: choose a higher one",
        _ => "an address is an IP address or a name, and a port: 127.0.0.1:9400, [::1]:9400, localhost:9400",
    }
}

/// Returns whether a trace could not be read or written for a reason other than its path.
fn is_trace_disk_error(reason: &bursar::trace::Reason) -> bool {
    match reason {
        bursar::trace::Reason::Io(error) => is_disk_error(error),
        _ => false,
    }
}

/// Returns whether a file could not be used though its path is right.
fn is_disk_error(error: &std::io::Error) -> bool {
    use ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    let wrong_place = [NotFound, NotADirectory, IsADirectory, PermissionDenied, InvalidInput, ReadOnlyFilesystem];
    !wrong_place.contains(&error.kind())
}
