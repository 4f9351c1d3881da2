//! Waiting for the lock of a ledger, and the errors of calls that do not get it or find the file damaged.

use super::{Attachment, name_of, path_of};
use crate::LedgerError;
use crate::book::{Book, LockError, LockedBook};
use crate::storage::MappedWords;
use bursar_core::Error;
use std::time::{Duration, Instant};

/// The time by which a call that waits for the lock may exceed its deadline.
const SLACK: Duration = Duration::from_millis(100);
/// The fraction of the usual timeout that a poll of a future waits: a few milliseconds.
const POLL_PART: u32 = 1000;

/// The time a call waits for the lock. A lock that is free is taken in any case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LockWait {
    /// The caller set no deadline: the wait ends when a living owner keeps the lock for so long that it is most likely
    /// stopped.
    Usual,
    /// The wait ends at this moment, whoever has the lock.
    Until(Instant),
}

impl LockWait {
    /// Returns the wait of a call that ends at a deadline.
    pub(crate) fn deadline(ends: Instant) -> Self {
        Self::Until(ends + SLACK)
    }

    /// Returns the wait of a call that ends after so long.
    pub(crate) fn within(patience: Duration) -> Self {
        Instant::now().checked_add(patience).map_or(Self::Usual, Self::Until)
    }

    /// Returns how long the call may take from now on.
    pub(crate) fn patience(self) -> Duration {
        match self {
            Self::Usual => Duration::MAX,
            Self::Until(ends) => ends.saturating_duration_since(Instant::now()),
        }
    }

    /// Returns the wait of a call that must not block.
    pub(crate) fn poll(attachment: &Attachment) -> Self {
        Self::Until(Instant::now() + attachment.lock_timeout() / POLL_PART)
    }
}

impl Attachment {
    /// Takes the lock.
    pub(crate) fn lock_within(&self, wait: LockWait) -> Result<LockedBook<'_, MappedWords>, LedgerError> {
        match wait {
            LockWait::Usual => self.lock(),
            LockWait::Until(_) if self.is_forked() => Err(LedgerError::Forked),
            LockWait::Until(ends) => self.book.lock_until(ends).map_err(|why| lock_error(&self.book, why)),
        }
    }

    /// Runs `act` behind the lock. Fails if a damaged word was met; then nothing was done that depends on it.
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

/// Returns the error for a lock that could not be taken.
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

pub(super) fn damaged(book: &Book<MappedWords>, word: usize) -> LedgerError {
    let what = format!("{} holds no valid value", book.layout().name_of(word));
    LedgerError::Corrupt { file: path_of(book), what: what.into() }
}

/// The error of a call that may be tried again.
#[derive(Debug)]
pub(crate) enum TryError {
    /// The lock was not available: the call may be tried again.
    LockUnavailable(LedgerError),
    /// Any other error.
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
    fn from(error: TryError) -> Self {
        match error {
            TryError::LockUnavailable(error) => error.into(),
            TryError::Failed(error) => error,
        }
    }
}
