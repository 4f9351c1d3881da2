//! How long a call waits for the lock of a ledger: as long as its caller said, and else a few seconds. And what it says if
//! it cannot have it, or finds the file damaged.

use super::{Inner, name_of, path_of};
use crate::LedgerError;
use crate::book::{Book, Desk, NoLock};
use crate::storage::Ground;
use bursar_core::Error;
use std::time::{Duration, Instant};

/// How much later than its deadline a call may return that has to wait for the lock.
const SLACK: Duration = Duration::from_millis(100);
/// Which part of the usual patience a poll of a future has: a few milliseconds.
const POLL_PART: u32 = 1000;

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
    pub(crate) fn poll(inner: &Inner) -> Self {
        Self::Until(Instant::now() + inner.patience() / POLL_PART)
    }
}

impl Inner {
    /// Takes the lock, to change something.
    pub(crate) fn desk_within(&self, patience: Patience) -> Result<Desk<'_, Ground>, LedgerError> {
        match patience {
            Patience::Usual => self.desk(),
            Patience::Until(_) if self.is_forked() => Err(LedgerError::Forked),
            Patience::Until(ends) => self.book.lock_until(ends).map_err(|why| no_lock(&self.book, why)),
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
        desk.damage().map_or(Ok(done), |word| Err(damaged(&self.book, word)))
    }
}

/// Returns the error that says why the lock was not to be had.
pub(crate) fn no_lock(book: &Book<Ground>, why: NoLock) -> LedgerError {
    match why {
        NoLock::Stuck { place } => {
            let (pid, name) = name_of(book, place);
            LedgerError::Stuck { file: path_of(book), pid, name }
        }
        NoLock::Busy => LedgerError::Busy { file: path_of(book) },
        NoLock::Damaged { word } => damaged(book, word),
    }
}

fn damaged(book: &Book<Ground>, word: usize) -> LedgerError {
    let what = format!("{} is no value", book.layout().name_of(word));
    LedgerError::Corrupt { file: path_of(book), what: what.into() }
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
        if error.is_for_want_of_the_lock() { Self::Stuck(error) } else { Self::Refused(error.into()) }
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
