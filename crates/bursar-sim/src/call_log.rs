//! The last driver calls, kept compactly and put into words only when someone asks.

use crate::Executor;
use bursar_core::{
    Bytes, DeviceId, DevicePtr, MemoryInfo, Progress, RawContext, RawEvent, RawPages, RawStream, Status,
};
use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;

/// How many calls the log keeps unless somebody wants more.
pub(crate) const CALLS_KEPT: usize = 512;

/// How a call ended.
///
/// ```
/// use bursar_sim::CallOutcome;
///
/// assert_eq!(CallOutcome::Value(0x100).to_string(), " -> 0x100");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallOutcome {
    /// It has not returned.
    Running,
    /// It succeeded.
    Done,
    /// It succeeded and answered this.
    Value(u64),
    /// It answered how far something has come.
    Progress(Progress),
    /// It failed.
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

/// One line of the log: a driver call, or the moment at which what one submitted ran.
///
/// ```
/// use bursar_core::{DeviceId, Driver};
///
/// let sim = bursar_sim::Sim::seeded(1);
/// sim.stream_create(DeviceId(0), 0)?;
/// assert_eq!(sim.calls()[0].to_string(), "1: gpu0 stream_create -> 0x10");
/// # Ok::<(), bursar_core::DriverError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallRecord {
    /// Its number, counted from one.
    pub number: u64,
    /// The method of the driver.
    pub name: &'static str,
    /// The device it named.
    pub device: DeviceId,
    /// The stream it named, if it takes one.
    pub stream: Option<Executor>,
    /// The address or handle it was given, or zero.
    pub ptr: u64,
    /// The size it was given, or zero.
    pub bytes: u64,
    /// How it ended.
    pub outcome: CallOutcome,
    /// The call is not new: what it submitted ran at this point.
    pub ran: bool,
    /// Where in the program it was made; `None` where nobody said.
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

/// What a call was given, as far as the log shows it.
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

/// What a call can answer with, as far as the log shows it.
pub(crate) trait LoggedResult {
    fn shown(&self) -> CallOutcome;
}

macro_rules! shown {
    ($($type:ty => |$value:ident| $outcome:expr),* $(,)?) => { $(
        impl LoggedResult for $type {
            fn shown(&self) -> CallOutcome {
                let $value = self;
                $outcome
            }
        }
    )* };
}

shown! {
    () => |_value| CallOutcome::Done,
    *mut u8 => |_value| CallOutcome::Done,
    MemoryInfo => |value| CallOutcome::Value(value.free.get()),
    bool => |value| CallOutcome::Value(u64::from(*value)),
    Progress => |value| CallOutcome::Progress(*value),
    DevicePtr => |value| CallOutcome::Value(value.0),
    RawStream => |value| CallOutcome::Value(value.0),
    RawEvent => |value| CallOutcome::Value(value.0),
    RawPages => |value| CallOutcome::Value(value.0),
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
    /// A log that keeps so many lines.
    pub(crate) fn new(kept: usize) -> Self {
        Self { records: VecDeque::new(), calls: 0, kept: kept.max(1) }
    }

    /// Counts a call and answers its number.
    pub(crate) fn begin(
        &mut self,
        name: &'static str,
        device: DeviceId,
        stream: Option<Executor>,
        given: CallArguments,
    ) -> u64 {
        self.calls += 1;
        self.push(CallRecord {
            number: self.calls,
            name,
            device,
            stream,
            ptr: given.ptr,
            bytes: given.bytes,
            outcome: CallOutcome::Running,
            ran: false,
            location: given.location,
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
