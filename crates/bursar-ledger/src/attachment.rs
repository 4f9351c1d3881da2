//! One process's end of a ledger: what all handles of it share.

mod lock_wait;
mod probe;
mod reclaimers;
mod registry;
mod wakeups;

pub(crate) use lock_wait::{Patience, Unqueued};
pub(crate) use probe::{MEASURE_EVERY, Probe};
pub(crate) use reclaimers::Reclaim;
pub(crate) use registry::{existing, private, shared};

use crate::book::{Book, Desk, Key, Refused};
use crate::format::{Layout, process};
use crate::storage::{self, Ground, Opened, Standing};
use crate::system::{Process, now_ms};
use crate::{LedgerError, Subject};
use bursar_core::Bytes;
use reclaimers::Reclaimers;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wakeups::Bell;

/// The most an account keeps in hand.
const CREDIT_MAX: u64 = 64 << 20;

/// One process's end of a ledger.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) book: Arc<Book<Ground>>,
    pub(crate) subject: Subject,
    /// The most an account keeps in hand.
    pub(crate) credit: u64,
    accounts: Mutex<HashMap<usize, Key>>,
    pub(crate) reclaimers: Reclaimers,
    pub(crate) bell: Bell,
}

impl Inner {
    /// A ledger of this process alone.
    pub(crate) fn private(subject: Subject) -> io::Result<Self> {
        let ground = Ground::private(Process::this(), Layout::FILE)?;
        let book = Book::new(ground, Layout::FILE, 0);
        storage::write_header(book.words(), Layout::FILE, &subject);
        // Nobody else has the lock yet.
        if let Ok(mut desk) = book.lock_as_newcomer(Duration::ZERO) {
            arrive(&mut desk, Process::this());
        }
        Ok(Self::over(book, subject))
    }

    /// Joins those who share the file.
    pub(crate) fn join(opened: Opened, subject: Subject) -> Result<Self, LedgerError> {
        let place = storage::take_place(&opened)?;
        let path = opened.path.clone();
        let ground = Ground::of_file(Layout::FILE, opened);
        let ground = ground.map_err(|error| LedgerError::io(&path, "mmap", error))?;
        let book = Book::new(ground, Layout::FILE, place);
        let process = Arc::clone(book.words().process());
        // Whoever fails here has taken nothing, and its place is given up with the book.
        let newcomer = book.lock_as_newcomer(process.kernel().patience());
        let mut desk = newcomer.map_err(|why| lock_wait::no_lock(&book, why))?;
        arrive(&mut desk, &process);
        let contradiction = desk.contradiction();
        drop(desk);
        match contradiction {
            Some(what) => Err(LedgerError::Corrupt { file: path, what: what.into() }),
            None => Ok(Self::over(book, subject)),
        }
    }

    fn over(book: Book<Ground>, subject: Subject) -> Self {
        let credit = CREDIT_MAX.min(subject.total.get() / 64);
        Self {
            book: Arc::new(book),
            subject,
            credit,
            accounts: Mutex::default(),
            reclaimers: Reclaimers::default(),
            bell: Bell::default(),
        }
    }

    pub(crate) fn process(&self) -> &Arc<Process> {
        self.book.words().process()
    }

    /// Returns how long a living process may keep the lock before others say so.
    pub(crate) fn patience(&self) -> Duration {
        self.process().kernel().patience()
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.file().is_some()
    }

    /// Where the file is; words for a ledger that has none.
    pub(crate) fn path(&self) -> PathBuf {
        path_of(&self.book)
    }

    pub(crate) fn file(&self) -> Option<&Path> {
        self.book.words().path()
    }

    /// Whether this process may still use it for anything new.
    pub(crate) fn check(&self) -> Result<(), LedgerError> {
        self.book.words().look_for_the_file();
        match self.book.words().standing() {
            Standing::Live => Ok(()),
            Standing::Gone => Err(LedgerError::Deleted { file: self.path() }),
            Standing::Forked => Err(LedgerError::Forked),
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
        self.book.lock(self.patience()).map_err(|why| lock_wait::no_lock(&self.book, why))
    }

    pub(crate) fn charge(&self, key: Key, bytes: u64) -> Result<Result<(), Refused>, LedgerError> {
        self.at_desk(Patience::Usual, |desk| desk.charge(key, bytes, self.credit / 2))
    }

    /// The number and name of the process at a place, as it sees itself.
    pub(crate) fn name_of(&self, place: usize) -> (u32, String) {
        name_of(&self.book, place)
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
    pub(crate) fn account(&self, tenant: Key) -> Result<Key, LedgerError> {
        self.check()?;
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let known = accounts.get(&tenant.node).copied();
        let opened = self.at_desk(Patience::Usual, |desk| match known {
            _ if !desk.is_current(tenant) => Err(Refused::Cleared),
            Some(key) if desk.is_current(key) => Ok(key),
            _ => desk.open_account(tenant.node),
        })?;
        let key = opened.map_err(|refused| match refused {
            Refused::Cleared => LedgerError::Cleared { file: self.path() },
            Refused::Full | Refused::Lack(_) => self.full("accounts"),
        })?;
        accounts.insert(tenant.node, key);
        Ok(key)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        self.bell.stop(&self.book);
        if self.is_shared() {
            // A moment, so that its place can be used again.
            if self.book.depart(self.patience() / 100) {
                self.book.words().cut();
            } else {
                // What is still held is charged until the process ends; so is what a note could not yet give back.
                self.book.words().keep_for_good();
            }
        }
    }
}

/// Enters this process at its place.
fn arrive(desk: &mut Desk<'_, Ground>, process: &Process) {
    let kernel = process.kernel();
    desk.arrive(kernel.pid().into(), &kernel.name(), now_ms());
}

pub(crate) fn path_of(book: &Book<Ground>) -> PathBuf {
    book.words().path().map_or_else(|| PathBuf::from("of this process"), Path::to_owned)
}

pub(crate) fn name_of(book: &Book<Ground>, place: usize) -> (u32, String) {
    (book.peek_process(place, process::PID) as u32, book.process_name(place))
}
