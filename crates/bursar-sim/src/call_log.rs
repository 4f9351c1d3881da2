//! The log of the last driver calls, kept as numbers and formatted only when it is read.

use crate::Executor;
use bursar_core::{
    Bytes, DeviceId, DevicePtr, MemoryInfo, Progress, RawContext, RawEvent, RawGraph, RawGraphExec, RawPages,
    RawStream, Status,
};
use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;

/// The number of calls that the log keeps by default.
pub(crate) const CALLS_KEPT: usize = 512;

/// The outcome of a driver call.
///
/// ```
/// use bursar::sim::CallOutcome;
///
/// assert_eq!(CallOutcome::Value(0x100).to_string(), " -> 0x100");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallOutcome {
    /// The call has not returned.
    Running,
    /// The call succeeded.
    Done,
    /// The call succeeded and returned this handle, address or number.
    Value(u64),
    /// The call succeeded and returned the progress of a stream or event.
    Progress(Progress),
    /// The call failed.
    Failed(Status),
}

impl fmt::Display for CallOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str(" …"),
            Self::Done => Ok(()),
            Self::Value(value) => write!(f, " -> {value:#x}"),
            Self::Progress(progress) => write!(f, " -> {progress:?}"),
            Self::Failed(status) => write!(f, " -> {}", status.name()),
        }
    }
}

/// A line of the log: a driver call, or the moment at which the work of an earlier call ran.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::Driver;
///
/// let sim = bursar::sim::Sim::seeded(1);
/// sim.stream_create(DeviceId(0), 0)?;
/// assert_eq!(sim.calls()[0].to_string(), "1: gpu0 stream_create -> 0x10");
/// # Ok::<(), bursar::driver::DriverError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallRecord {
    /// The number of the call, counted from one.
    pub number: u64,
    /// The name of the driver method.
    pub name: &'static str,
    /// The device it was made on.
    pub device: DeviceId,
    /// The stream it was made on, if it takes one.
    pub stream: Option<Executor>,
    /// The address or handle it was passed, or zero.
    pub ptr: u64,
    /// The size it was passed, or zero.
    pub bytes: u64,
    /// The outcome.
    pub outcome: CallOutcome,
    /// True where this line is not a new call: the work that the call submitted ran at this point.
    pub ran: bool,
    /// The place in the program that made the call; `None` where it is unknown.
    pub location: Option<&'static Location<'static>>,
}

impl fmt::Display for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ran {
            return write!(f, "      {} runs: {}", self.number, self.name);
        }
        write!(f, "{}: {} {}", self.number, self.device, self.name)?;
        if let Some(stream) = self.stream {
            write!(f, " on {stream}")?;
        }
        if self.ptr != 0 {
            write!(f, " at {}", DevicePtr(self.ptr))?;
        }
        if self.bytes != 0 {
            write!(f, " of {}", Bytes(self.bytes))?;
        }
        write!(f, "{}", self.outcome)
    }
}

/// The arguments of a call that the log shows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallArguments {
    pub(crate) stream: Option<RawStream>,
    pub(crate) ptr: u64,
    pub(crate) bytes: u64,
    pub(crate) location: Option<&'static Location<'static>>,
}

impl CallArguments {
    pub(crate) fn on(stream: RawStream) -> Self {
        Self { stream: Some(stream), ..Self::default() }
    }

    pub(crate) fn at(self, ptr: u64) -> Self {
        Self { ptr, ..self }
    }

    pub(crate) fn of(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    pub(crate) fn from(self, location: Option<&'static Location<'static>>) -> Self {
        Self { location, ..self }
    }
}

/// A value that a driver call returns, as the log shows it.
pub(crate) trait LoggedResult {
    fn outcome(&self) -> CallOutcome;
}

macro_rules! logged_results {
    ($($type:ty => |$value:ident| $outcome:expr),* $(,)?) => { $(
        impl LoggedResult for $type {
            fn outcome(&self) -> CallOutcome {
                let $value = self;
                $outcome
            }
        }
    )* };
}

logged_results! {
    () => |_value| CallOutcome::Done,
    *mut u8 => |_value| CallOutcome::Done,
    MemoryInfo => |value| CallOutcome::Value(value.free.get()),
    bool => |value| CallOutcome::Value(u64::from(*value)),
    Progress => |value| CallOutcome::Progress(*value),
    DevicePtr => |value| CallOutcome::Value(value.0),
    RawStream => |value| CallOutcome::Value(value.0),
    RawEvent => |value| CallOutcome::Value(value.0),
    RawPages => |value| CallOutcome::Value(value.0),
    RawGraph => |value| CallOutcome::Value(value.0),
    RawGraphExec => |value| CallOutcome::Value(value.0),
    RawContext => |value| CallOutcome::Value(value.0),
}

/// The last calls, oldest first.
#[derive(Debug)]
pub(crate) struct CallLog {
    records: VecDeque<CallRecord>,
    calls: u64,
    kept: usize,
}

impl CallLog {
    /// Creates a log that keeps `kept` lines, at least one.
    pub(crate) fn new(kept: usize) -> Self {
        Self { records: VecDeque::new(), calls: 0, kept: kept.max(1) }
    }

    /// Adds a call that has begun, and returns its number.
    pub(crate) fn begin(
        &mut self,
        name: &'static str,
        device: DeviceId,
        stream: Option<Executor>,
        arguments: CallArguments,
    ) -> u64 {
        self.calls += 1;
        self.push(CallRecord {
            number: self.calls,
            name,
            device,
            stream,
            ptr: arguments.ptr,
            bytes: arguments.bytes,
            outcome: CallOutcome::Running,
            ran: false,
            location: arguments.location,
        });
        self.calls
    }

    pub(crate) fn end(&mut self, number: u64, outcome: CallOutcome) {
        let record = self.records.iter_mut().rev().find(|record| record.number == number && !record.ran);
        if let Some(record) = record {
            record.outcome = outcome;
        }
    }

    pub(crate) fn ran(&mut self, number: u64, name: &'static str, device: DeviceId) {
        self.push(CallRecord {
            number,
            name,
            device,
            stream: None,
            ptr: 0,
            bytes: 0,
            outcome: CallOutcome::Done,
            ran: true,
            location: None,
        });
    }

    fn push(&mut self, record: CallRecord) {
        if self.records.len() == self.kept {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    pub(crate) fn count(&self) -> u64 {
        self.calls
    }

    pub(crate) fn records(&self) -> Vec<CallRecord> {
        self.records.iter().copied().collect()
    }
}
