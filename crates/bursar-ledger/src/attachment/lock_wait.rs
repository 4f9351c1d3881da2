//! How long a call waits for the lock of a ledger: as long as its caller said, and else a few seconds. And what it says if
//! it cannot have it, or finds the file damaged.

use super::{Attachment, name_of, path_of};
use crate::LedgerError;
use crate::book::{Book, LockError, LockedBook};
use crate::storage::MappedWords;
use bursar_core::Error;
use std::time::{Duration, Instant};

/// How much later than its deadline a call may return that has to wait for the lock.
const SLACK: Duration = Duration::from_millis(100);
/// Which part of the usual patience a poll of a future has: a few milliseconds.
const POLL_PART: u32 = 1000;

/// How long a call waits for the lock. A lock that is free is taken in any case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LockWait {
    /// The caller set no deadline: a living owner may keep the lock for so long that it must be stopped.
    Usual,
    /// Not beyond this moment, whoever has it.
    Until(Instant),
}

impl LockWait {
    /// That of a call which ends at a deadline.
    pub(crate) fn deadline(ends: Instant) -> Self {
        Self::Until(ends + SLACK)
    }

    /// That of a call which must not wait.
    pub(crate) fn poll(attachment: &Attachment) -> Self {
        Self::Until(Instant::now() + attachment.lock_timeout() / POLL_PART)
    }
}

impl Attachment {
    /// Takes the lock, to change something.
    pub(crate) fn lock_within(&self, wait: LockWait) -> Result<LockedBook<'_, MappedWords>, LedgerError> {
        match wait {
            LockWait::Usual => self.lock(),
            LockWait::Until(_) if self.is_forked() => Err(LedgerError::Forked),
            LockWait::Until(ends) => self.book.lock_until(ends).map_err(|why| lock_error(&self.book, why)),
        }
    }

    /// Does something behind the lock. If a damaged word was met, nothing was done that depends on it.
    pub(crate) fn with_lock<T>(
        &self,
        wait: LockWait,
        act: impl FnOnce(&mut LockedBook<'_, MappedWords>) -> T,
    ) -> Result<T, LedgerError> {
        let mut locked = self.lock_within(wait)?;
        let done = act(&mut locked);
        locked.damage().map_or(Ok(done), |word| Err(damaged(&self.book, word)))
    }
}

/// Returns the error that says why the lock was not to be had.
pub(crate) fn lock_error(book: &Book<MappedWords>, why: LockError) -> LedgerError {
    match why {
        LockError::Stuck { slot } => {
            let (pid, name) = name_of(book, slot);
            LedgerError::Stuck { file: path_of(book), pid, name }
        }
        LockError::Busy => LedgerError::Busy { file: path_of(book) },
        LockError::Damaged { word } => damaged(book, word),
    }
}

fn damaged(book: &Book<MappedWords>, word: usize) -> LedgerError {
    let what = format!("{} is no value", book.layout().name_of(word));
    LedgerError::Corrupt { file: path_of(book), what: what.into() }
}

/// Why a request did not come to wait.
#[derive(Debug)]
pub(crate) enum TryError {
    /// The lock could not be had: it may be tried again.
    LockUnavailable(LedgerError),
    /// Anything else.
    Failed(Error),
}

impl From<LedgerError> for TryError {
    fn from(error: LedgerError) -> Self {
        if error.is_lock_unavailable() { Self::LockUnavailable(error) } else { Self::Failed(error.into()) }
    }
}

impl From<Error> for TryError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<TryError> for Error {
    fn from(unqueued: TryError) -> Self {
        match unqueued {
            TryError::LockUnavailable(error) => error.into(),
            TryError::Failed(error) => error,
        }
    }
}
