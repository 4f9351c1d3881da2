//! How long a call waits for the lock of a ledger: as long as its caller said, and else a few seconds.

use crate::LedgerError;
use crate::book::Desk;
use crate::ground::Ground;
use crate::inner::Inner;
use bursar_core::Error;
use std::time::{Duration, Instant};

/// How much later than its deadline a call may return that has to wait for the lock.
const SLACK: Duration = Duration::from_millis(100);
/// How long a poll of a future waits for the lock.
const POLL: Duration = Duration::from_millis(5);

/// How long a call waits for the lock. A lock that is free is taken in any case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// The caller set no deadline: a living owner may keep the lock for so long that it must be stopped.
    Usual,
    /// Not beyond this moment, whoever has it.
    Until(Instant),
}

impl Patience {
    /// That of a call which ends at a deadline.
    pub(crate) fn deadline(ends: Instant) -> Self {
        Self::Until(ends + SLACK)
    }

    /// That of a call which must not wait.
    pub(crate) fn poll() -> Self {
        Self::Until(Instant::now() + POLL)
    }
}

impl Inner {
    /// Takes the lock, to change something.
    pub(crate) fn desk_within(&self, patience: Patience) -> Result<Desk<'_, Ground>, LedgerError> {
        match patience {
            Patience::Usual => self.desk(),
            Patience::Until(_) if self.is_forked() => Err(LedgerError::Forked),
            Patience::Until(ends) => self.book.lock_until(ends).map_err(|stuck| self.stuck(stuck)),
        }
    }
}

/// Why a request did not come to wait.
#[derive(Debug)]
pub(crate) enum Unqueued {
    /// The lock could not be had: it may be tried again.
    Stuck(LedgerError),
    /// Anything else.
    Refused(Error),
}

impl From<LedgerError> for Unqueued {
    fn from(error: LedgerError) -> Self {
        if matches!(error, LedgerError::Stuck { .. }) { Self::Stuck(error) } else { Self::Refused(error.into()) }
    }
}

impl From<Error> for Unqueued {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<Unqueued> for Error {
    fn from(unqueued: Unqueued) -> Self {
        match unqueued {
            Unqueued::Stuck(error) => error.into(),
            Unqueued::Refused(error) => error,
        }
    }
}
