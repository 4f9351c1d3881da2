//! The requests that one process makes of another through a ledger, and their ends.

use crate::LedgerError;
use crate::book::{ProcessRequest, RequestEnd};
use bursar_core::{Bytes, Error, SleepReport, WakeReport};
use std::time::Duration;

/// A request that one process makes of another: to put its memory of a device to sleep, or to wake it.
///
/// ```
/// use bursar::ledger::RemoteRequest;
/// use std::time::Duration;
///
/// let request = RemoteRequest::Sleep { keep_place: false, patience: Duration::from_secs(10) };
/// assert_eq!(request.patience(), Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteRequest {
    /// Its memory is to sleep.
    Sleep {
        /// Set where what sleeps stays charged, so that waking is not refused.
        keep_place: bool,
        /// The longest time that uses and streams may be waited for.
        patience: Duration,
    },
    /// Its memory is to wake.
    Wake {
        /// The longest time that the queue of the ledger may be waited in.
        patience: Duration,
    },
}

impl RemoteRequest {
    /// Returns how long it may wait.
    pub const fn patience(&self) -> Duration {
        match *self {
            Self::Sleep { patience, .. } | Self::Wake { patience } => patience,
        }
    }

    pub(crate) fn in_words(self) -> ProcessRequest {
        let (wake, keep_place) = match self {
            Self::Sleep { keep_place, .. } => (false, keep_place),
            Self::Wake { .. } => (true, false),
        };
        let patience_ms = u64::try_from(self.patience().as_millis()).unwrap_or(u64::MAX);
        ProcessRequest { wake, keep_place, patience_ms }
    }
}

impl From<ProcessRequest> for RemoteRequest {
    fn from(ProcessRequest { wake, keep_place, patience_ms }: ProcessRequest) -> Self {
        let patience = Duration::from_millis(patience_ms);
        if wake { Self::Wake { patience } } else { Self::Sleep { keep_place, patience } }
    }
}

/// The result of a request of another process that was met.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::RemoteReport;
/// use bursar::memory::SleepReport;
///
/// let slept = SleepReport { released: Bytes::gib(2), saved: Bytes::gib(1), ..SleepReport::default() };
/// let report = RemoteReport::from(slept);
/// assert_eq!((report.moved, report.copied), (Bytes::gib(2), Bytes::gib(1)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteReport {
    /// The device memory that went back to the driver, or was taken again.
    pub moved: Bytes,
    /// The contents that were copied to the host, or back.
    pub copied: Bytes,
    /// The contents that were given up.
    pub discarded: Bytes,
    /// The part of what was to sleep that stays on the device.
    pub kept: Bytes,
    /// The time that it took.
    pub elapsed: Duration,
    /// Set where it was so before, and nothing was done.
    pub was_so: bool,
}

impl RemoteReport {
    /// Returns the sum of two reports; it was so before only if it was of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            moved: self.moved.saturating_add(other.moved),
            copied: self.copied.saturating_add(other.copied),
            discarded: self.discarded.saturating_add(other.discarded),
            kept: self.kept.saturating_add(other.kept),
            elapsed: self.elapsed + other.elapsed,
            was_so: self.was_so && other.was_so,
        }
    }
}

impl From<SleepReport> for RemoteReport {
    fn from(SleepReport { released, saved, discarded, kept, elapsed, .. }: SleepReport) -> Self {
        Self { moved: released, copied: saved, discarded, kept, elapsed, was_so: false }
    }
}

impl From<WakeReport> for RemoteReport {
    fn from(WakeReport { taken, restored, elapsed }: WakeReport) -> Self {
        Self { moved: taken, copied: restored, elapsed, ..Self::default() }
    }
}

/// The error of a request to another process.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::{Ledger, RemoteError, RemoteRequest};
///
/// let ledger = Ledger::private(Bytes::gib(8));
/// let wake = RemoteRequest::Wake { patience: std::time::Duration::ZERO };
/// assert!(matches!(ledger.ask(std::process::id(), wake), Err(RemoteError::NotListening { .. })));
/// assert!(matches!(ledger.ask(1, wake), Err(RemoteError::NotHere { pid: 1 })));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// No process of that number has the ledger open.
    #[error("process {pid} does not have this ledger open")]
    NotHere {
        /// The process.
        pid: u32,
    },
    /// The process takes no requests.
    #[error("{name} (pid {pid}) does not listen: a program says `sleep_when_asked` to be put to sleep by others")]
    NotListening {
        /// The process.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// Several processes of one number listen, which are of other process namespaces.
    #[error("{count} processes of other namespaces have the number {pid}: nobody can tell which is meant")]
    Ambiguous {
        /// The number.
        pid: u32,
        /// The number of such processes.
        count: usize,
    },
    /// Another request to the process is under way.
    #[error("{name} (pid {pid}) is busy with another request to sleep or wake; try again when it has ended")]
    Busy {
        /// The process.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// The request has ended, and another was made before this process read how.
    #[error("{name} (pid {pid}) has done what was asked, and something else since: nobody knows any more how it went")]
    Overtaken {
        /// The process.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// The process has ended meanwhile.
    #[error("process {pid} has ended")]
    Ended {
        /// The process.
        pid: u32,
    },
    /// The request was withdrawn before it was met.
    #[error("process {pid} was told that nobody waits any more, and is as it was")]
    Withdrawn {
        /// The process.
        pid: u32,
    },
    /// Others have the memory that waking takes.
    #[error("process {pid} was refused {requested} to wake with: {remaining} of {limit} are left; it sleeps on")]
    Refused {
        /// The process.
        pid: u32,
        /// The bytes that waking takes.
        requested: Bytes,
        /// The bytes that are left.
        remaining: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// The process could not do it; it is awake or asleep as it was.
    #[error("process {pid} could not do it: {why}")]
    Failed {
        /// The process.
        pid: u32,
        /// The first 84 bytes of the reason.
        why: String,
    },
    /// The ledger failed.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// The kinds of ends, as they are stored.
const DONE: u64 = 0;
const REFUSED: u64 = 1;
const FAILED: u64 = 2;
const WITHDRAWN: u64 = 3;
const NOT_LISTENING: u64 = 4;

/// The end of a request, as the process that was asked finds it.
#[derive(Clone, Debug)]
pub(crate) enum RemoteEnd {
    Done(RemoteReport),
    Failed(Error),
    Withdrawn,
    NotListening,
    NoThread,
}

impl RemoteEnd {
    pub(crate) fn in_words(&self) -> RequestEnd {
        match self {
            Self::Done(RemoteReport { moved, copied, discarded, kept, elapsed, was_so }) => {
                let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
                let figures = [moved.get(), copied.get(), discarded.get(), kept.get(), micros, (*was_so).into()];
                RequestEnd { outcome: DONE, figures, text: String::new() }
            }
            Self::Failed(error) => {
                let text = error.to_string();
                let (requested, remaining, limit) = match error {
                    Error::OutOfBudget { requested, remaining, limit, .. } => (requested, remaining, limit),
                    Error::OutOfMemory { requested, free, total, .. } => (requested, free, total),
                    _ => return RequestEnd { outcome: FAILED, text, ..RequestEnd::default() },
                };
                let figures = [requested.get(), remaining.get(), limit.get(), 0, 0, 0];
                RequestEnd { outcome: REFUSED, figures, text }
            }
            Self::Withdrawn => RequestEnd { outcome: WITHDRAWN, ..RequestEnd::default() },
            Self::NotListening => RequestEnd { outcome: NOT_LISTENING, ..RequestEnd::default() },
            Self::NoThread => {
                let text = "it could not start a thread".to_owned();
                RequestEnd { outcome: FAILED, text, ..RequestEnd::default() }
            }
        }
    }
}

/// Returns the end of a request as whoever asked sees it.
pub(crate) fn read_end(end: RequestEnd, pid: u32, name: &str) -> Result<RemoteReport, RemoteError> {
    let [first, second, third, fourth, micros, was_so] = end.figures;
    match end.outcome {
        DONE => Ok(RemoteReport {
            moved: Bytes(first),
            copied: Bytes(second),
            discarded: Bytes(third),
            kept: Bytes(fourth),
            elapsed: Duration::from_micros(micros),
            was_so: was_so != 0,
        }),
        REFUSED => {
            Err(RemoteError::Refused { pid, requested: Bytes(first), remaining: Bytes(second), limit: Bytes(third) })
        }
        WITHDRAWN => Err(RemoteError::Withdrawn { pid }),
        NOT_LISTENING => Err(RemoteError::NotListening { pid, name: name.to_owned() }),
        _ => Err(RemoteError::Failed { pid, why: end.text }),
    }
}
