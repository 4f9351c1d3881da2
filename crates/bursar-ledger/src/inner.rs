//! One process's end of a ledger: what all handles of it share.

use crate::bell::Bell;
use crate::book::{Book, Desk, Key, Refused};
use crate::file::{self, Opened};
use crate::ground::{Ground, Standing};
use crate::layout::{Layout, process};
use crate::patience::Patience;
use crate::reclaim::Reclaimers;
use crate::{LedgerError, Subject};
use bursar_core::Bytes;
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a living process may keep the lock before others say so.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How long the last handle waits for the lock when it is dropped, so that its place can be used again.
const PATIENCE_OF_THE_LAST: Duration = Duration::from_millis(50);
/// The most an account keeps in hand.
const CREDIT_MAX: u64 = 64 << 20;

/// One process's end of a ledger.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) book: Arc<Book<Ground>>,
    pub(crate) subject: Subject,
    /// Where it is; a private one is nowhere.
    file: Option<(PathBuf, std::fs::File)>,
    /// The most an account keeps in hand.
    pub(crate) credit: u64,
    accounts: Mutex<HashMap<usize, Key>>,
    pub(crate) reclaimers: Reclaimers,
    pub(crate) bell: Bell,
    /// Whether its place in the table is taken by it, and not by a predecessor.
    has_arrived: bool,
}

impl Inner {
    /// A ledger of this process alone.
    pub(crate) fn private(subject: Subject) -> io::Result<Self> {
        let book = Book::new(Ground::private(Layout::FILE)?, Layout::FILE, 0);
        file::write_header(book.words(), Layout::FILE, &subject);
        let inner = Self::over(book, subject, None);
        if let Ok(mut desk) = inner.book.lock_as_newcomer(PATIENCE) {
            desk.arrive(std::process::id().into(), &own_name(), file::now_ms());
        }
        Ok(inner)
    }

    /// Joins those who share the file.
    pub(crate) fn join(opened: Opened, subject: Subject) -> Result<Self, LedgerError> {
        let place = file::take_place(&opened)?;
        let Opened { path, mapped, lives, users } = opened;
        let ground = Ground::of_file(Layout::FILE, &mapped, lives, users);
        let ground = ground.map_err(|error| LedgerError::io(&path, "mmap", error))?;
        let mut inner = Self::over(Book::new(ground, Layout::FILE, place), subject, Some((path, mapped)));
        let mut desk = inner.book.lock_as_newcomer(PATIENCE).map_err(|why| inner.no_lock(why))?;
        desk.arrive(std::process::id().into(), &own_name(), file::now_ms());
        let contradiction = desk.contradiction();
        drop(desk);
        inner.has_arrived = true;
        match contradiction {
            Some(what) => Err(LedgerError::Corrupt { file: inner.path(), what: what.into() }),
            None => Ok(inner),
        }
    }

    fn over(book: Book<Ground>, subject: Subject, file: Option<(PathBuf, std::fs::File)>) -> Self {
        let credit = CREDIT_MAX.min(subject.total.get() / 64);
        Self {
            book: Arc::new(book),
            subject,
            file,
            credit,
            accounts: Mutex::default(),
            reclaimers: Reclaimers::default(),
            bell: Bell::default(),
            has_arrived: false,
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.file.is_some()
    }

    /// Where the file is; words for a ledger that has none.
    pub(crate) fn path(&self) -> PathBuf {
        self.file.as_ref().map_or_else(|| PathBuf::from("of this process"), |(path, _)| path.clone())
    }

    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(|(path, _)| path.as_path())
    }

    /// Whether this process may still use it for anything new.
    pub(crate) fn check(&self) -> Result<(), LedgerError> {
        self.look_for_the_file();
        match self.book.words().standing() {
            Standing::Live => Ok(()),
            Standing::Deleted => Err(LedgerError::Deleted { file: self.path() }),
            Standing::Forked => Err(LedgerError::Forked),
        }
    }

    /// Notices when the file has no name any more.
    pub(crate) fn look_for_the_file(&self) {
        if let Some((_, file)) = &self.file
            && self.book.words().is_live()
            && file.metadata().is_ok_and(|facts| facts.nlink() == 0)
        {
            self.book.words().file_is_gone();
        }
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.book.words().standing() == Standing::Forked
    }

    /// Takes the lock, to change something.
    pub(crate) fn desk(&self) -> Result<Desk<'_, Ground>, LedgerError> {
        if self.is_forked() {
            return Err(LedgerError::Forked);
        }
        self.book.lock(PATIENCE).map_err(|why| self.no_lock(why))
    }

    pub(crate) fn charge(&self, key: Key, bytes: u64) -> Result<Result<(), Refused>, LedgerError> {
        self.at_desk(Patience::Usual, |desk| desk.charge(key, bytes, self.credit / 2))
    }

    /// The number and name of the process at a place, as it sees itself.
    pub(crate) fn name_of(&self, place: usize) -> (u32, String) {
        (self.book.peek_process(place, process::PID) as u32, self.book.process_name(place))
    }

    /// A refusal that is no lack of room, as the error it is.
    pub(crate) fn refusal(&self, refused: Refused, what: &'static str, bytes: Bytes) -> bursar_core::Error {
        match refused {
            Refused::Lack(lack) => bursar_core::Error::OutOfBudget {
                requested: bytes,
                remaining: Bytes(lack.remaining),
                limit: Bytes(lack.limit),
            },
            Refused::Cleared => LedgerError::Cleared { file: self.path() }.into(),
            Refused::Full => self.full(what).into(),
        }
    }

    pub(crate) fn full(&self, what: &'static str) -> LedgerError {
        let layout = self.book.layout();
        let max = if what == "waiting requests" { layout.waiters } else { layout.nodes };
        LedgerError::TableFull { file: self.path(), what, max }
    }

    /// This process's account for a tenant: always the same one.
    pub(crate) fn account(&self, tenant: usize) -> Result<Key, LedgerError> {
        self.check()?;
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let known = accounts.get(&tenant).copied();
        let opened = self.at_desk(Patience::Usual, |desk| match known {
            Some(key) if desk.is_current(key) => Ok(key),
            _ => desk.open_account(tenant),
        })?;
        let key = opened.map_err(|_| self.full("accounts"))?;
        accounts.insert(tenant, key);
        Ok(key)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        self.bell.stop(&self.book);
        if self.is_shared() && self.has_arrived {
            if self.book.depart(PATIENCE_OF_THE_LAST) {
                self.book.words().cut();
            } else {
                // What is still held is charged until the process ends; so is what a note could not yet give back.
                self.book.words().keep_for_good();
            }
        }
    }
}

/// What the kernel calls this process.
fn own_name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "unknown".to_owned() } else { name.to_owned() }
}
