//! How long a call waits for the lock of a ledger: as long as its caller said, and else a few seconds. And what it says if
//! it cannot have it, or finds the file damaged.

use crate::LedgerError;
use crate::book::{Desk, NoLock};
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
            Patience::Until(ends) => self.book.lock_until(ends).map_err(|why| self.no_lock(why)),
        }
    }

    /// Does something behind the lock. If a damaged word was met, nothing was done that depends on it.
    pub(crate) fn at_desk<T>(
        &self,
        patience: Patience,
        act: impl FnOnce(&mut Desk<'_, Ground>) -> T,
    ) -> Result<T, LedgerError> {
        let mut desk = self.desk_within(patience)?;
        let done = act(&mut desk);
        desk.damage().map_or(Ok(done), |word| Err(self.damaged(word)))
    }

    /// Why the lock was not to be had, as the error it is.
    pub(crate) fn no_lock(&self, why: NoLock) -> LedgerError {
        match why {
            NoLock::Stuck { place } => {
                let (pid, name) = self.name_of(place);
                LedgerError::Stuck { file: self.path(), pid, name }
            }
            NoLock::Damaged { word } => self.damaged(word),
        }
    }

    fn damaged(&self, word: usize) -> LedgerError {
        let what = format!("{} is no value", self.book.layout().name_of(word));
        LedgerError::Corrupt { file: self.path(), what: what.into() }
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
