//! A process's attachment to a ledger: everything its handles share.
//!
//! [`Attachment`] owns the book over the words of the file. The registry (`registry.rs`) makes one of it for each
//! process and ledger, however often the ledger is opened. `lock_wait.rs` decides how long a call waits for the lock,
//! `look.rs` reads a ledger whose lock another process keeps,
//! `drawn.rs` has the accounts by which the process draws on what others set aside,
//! `wakeups.rs` has the threads that wake futures and reclaim what dead processes held, `reclaimers.rs` the callbacks
//! that give memory back, `publishers.rs` those that say what this process uses, `requests.rs` those that meet what others ask of it, and `probe.rs` measures what is used outside the
//! ledger.

mod drawn;
mod lock_wait;
mod look;
mod probe;
mod publishers;
mod reclaimers;
mod registry;
mod requests;
mod wakeups;

pub(crate) use drawn::OwnNode;
pub(crate) use lock_wait::{LockWait, TryError};
pub(crate) use look::{HeldBy, Look};
pub(crate) use probe::{MEASURE_EVERY, Probe};
pub use publishers::ProcessUsage;
pub(crate) use publishers::{PUBLISH_EVERY, UsageCallback};
pub(crate) use reclaimers::{CallbackSource, ReclaimCallback};
pub(crate) use registry::{open_existing, open_private, open_shared};

use crate::book::{Book, BookError, LockedBook, NodeKey, Shortfall};
use crate::format::{LedgerLayout, process};
use crate::refusal::RefusalReason;
use crate::storage::{self, HandleState, LedgerFile, MappedWords};
use crate::system::{Process, now_ms};
use crate::{LedgerError, Subject};
use bursar_core::Bytes;
use drawn::DrawnAccounts;
use publishers::Publishers;
use reclaimers::Reclaimers;
use requests::Requests;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wakeups::Wakeups;

/// The most credit that an account keeps.
const CREDIT_MAX: u64 = 64 << 20;

/// A process's attachment to a ledger. It ends with the last handle.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) book: Arc<Book<MappedWords>>,
    pub(crate) subject: Subject,
    /// The most credit that an account keeps.
    pub(crate) credit: u64,
    accounts: Mutex<HashMap<usize, NodeKey>>,
    drawn: DrawnAccounts,
    pub(crate) reclaimers: Reclaimers,
    pub(crate) publishers: Publishers,
    requests: Requests,
    pub(crate) wakeups: Wakeups,
}

impl Attachment {
    /// Makes a ledger that is private to this process.
    pub(crate) fn new_private(subject: Subject) -> io::Result<Self> {
        let words = MappedWords::private(Process::this(), LedgerLayout::FILE)?;
        let book = Book::new(words, LedgerLayout::FILE, 0);
        storage::write_header(book.words(), LedgerLayout::FILE, &subject);
        // Nobody else has the lock yet.
        if let Ok(mut locked) = book.lock_as_newcomer(Duration::ZERO) {
            register(&mut locked, Process::this());
        }
        Ok(Self::new(book, subject))
    }

    /// Attaches this process to the ledger in a file.
    pub(crate) fn attach(opened: LedgerFile, subject: Subject, wait: LockWait) -> Result<Self, LedgerError> {
        let slot = storage::claim_slot(&opened)?;
        let path = opened.path.clone();
        let words = MappedWords::of_file(LedgerLayout::FILE, opened);
        let words = words.map_err(|error| LedgerError::io(&path, "mmap", error))?;
        let book = Book::new(words, LedgerLayout::FILE, slot);
        let process = Arc::clone(book.words().process());
        // If this fails, nothing was taken, and the slot is given up with the book.
        let newcomer = match wait {
            LockWait::Usual => book.lock_as_newcomer(process.kernel().lock_timeout()),
            LockWait::Until(ends) => book.lock_as_newcomer_until(ends),
        };
        let mut locked = newcomer.map_err(|why| lock_wait::lock_error(&book, why))?;
        register(&mut locked, &process);
        let inconsistency = locked.find_inconsistency();
        drop(locked);
        match inconsistency {
            Some(what) => Err(LedgerError::Corrupt { file: path, what: what.into() }),
            None => Ok(Self::new(book, subject)),
        }
    }

    fn new(book: Book<MappedWords>, subject: Subject) -> Self {
        let credit = CREDIT_MAX.min(subject.total.get() / 64);
        Self {
            book: Arc::new(book),
            subject,
            credit,
            accounts: Mutex::default(),
            drawn: DrawnAccounts::default(),
            reclaimers: Reclaimers::default(),
            publishers: Publishers::default(),
            requests: Requests::default(),
            wakeups: Wakeups::default(),
        }
    }

    pub(crate) fn process(&self) -> &Arc<Process> {
        self.book.words().process()
    }

    /// Returns how long a living process may keep the lock before others report it.
    pub(crate) fn lock_timeout(&self) -> Duration {
        self.process().kernel().lock_timeout()
    }

    pub(crate) fn has_file(&self) -> bool {
        self.file().is_some()
    }

    /// Returns the path of the file, or words for people where the ledger has none.
    pub(crate) fn path(&self) -> PathBuf {
        path_of(&self.book)
    }

    pub(crate) fn file(&self) -> Option<&Path> {
        self.book.words().path()
    }

    /// Checks that this process may still use the ledger for anything new.
    pub(crate) fn check_usable(&self) -> Result<(), LedgerError> {
        self.book.words().refresh_state();
        match self.book.words().state() {
            HandleState::Live => Ok(()),
            HandleState::Deleted => Err(LedgerError::Deleted { file: self.path() }),
            HandleState::Forked => Err(LedgerError::Forked),
        }
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.book.words().state() == HandleState::Forked
    }

    /// Takes the lock, waiting as long as a call without a deadline does.
    pub(crate) fn lock(&self) -> Result<LockedBook<'_, MappedWords>, LedgerError> {
        if self.is_forked() {
            return Err(LedgerError::Forked);
        }
        self.book.lock(self.lock_timeout()).map_err(|why| lock_wait::lock_error(&self.book, why))
    }

    pub(crate) fn charge(&self, key: NodeKey, bytes: u64) -> Result<Result<(), BookError>, LedgerError> {
        self.with_lock(LockWait::Usual, |locked| locked.charge(key, bytes, self.credit / 2))
    }

    /// Returns the process id, as the process sees it, and the name of the process in a slot.
    pub(crate) fn name_of(&self, slot: usize) -> (u32, String) {
        name_of(&self.book, slot)
    }

    /// Returns the error for a request that the book refused; `what` names the rows of a table that is full.
    pub(crate) fn error_for(&self, refused: BookError, what: &'static str, bytes: Bytes) -> bursar_core::Error {
        match refused {
            BookError::Shortfall(Shortfall { remaining, limit, reason }) => {
                // What others wait for is not there for a charge, which has no turn.
                let remaining = if reason == RefusalReason::Queue { 0 } else { remaining };
                bursar_core::Error::out_of_budget(bytes, Bytes(remaining), Bytes(limit))
            }
            BookError::Cleared => LedgerError::Cleared { file: self.path() }.into(),
            BookError::TableFull => self.table_full(what).into(),
        }
    }

    /// Returns the error for a request that the book refused, as [`Self::error_for`] does, after telling those who watch.
    #[cold]
    pub(crate) fn refuse(
        &self,
        of: NodeKey,
        refused: BookError,
        what: &'static str,
        bytes: Bytes,
    ) -> bursar_core::Error {
        if let BookError::Shortfall(shortfall) = refused {
            self.tell_refusal(of, bytes, shortfall);
        }
        self.error_for(refused, what, bytes)
    }

    /// Counts a refusal, and enters it among the last ones if the lock is to be had at once.
    #[cold]
    pub(crate) fn tell_refusal(&self, of: NodeKey, requested: Bytes, shortfall: Shortfall) {
        if self.is_forked() {
            return;
        }
        self.book.count_refusal(of, shortfall.reason);
        let enter = |locked: &mut LockedBook<'_, MappedWords>| {
            locked.enter_refusal(of, now_ms(), requested.get(), shortfall);
        };
        // The counters know of one that is not entered.
        let _ = self.with_lock(LockWait::poll(self), enter);
    }

    /// Counts a request for a tenant that has left the queue.
    pub(crate) fn count_wait(&self, tenant: NodeKey, waited: Duration) {
        if !self.is_forked() {
            self.book.count_wait(tenant, u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
        }
    }

    pub(crate) fn table_full(&self, what: &'static str) -> LedgerError {
        let layout = self.book.layout();
        let max = if what == "waiting requests" { layout.waiters } else { layout.nodes };
        LedgerError::TableFull { file: self.path(), what, max }
    }

    /// Returns this process's account for a tenant: always the same one.
    pub(crate) fn account(&self, tenant: NodeKey) -> Result<NodeKey, LedgerError> {
        self.check_usable()?;
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let known = accounts.get(&tenant.node).copied();
        let opened = self.with_lock(LockWait::Usual, |locked| match known {
            _ if !locked.is_current(tenant) => Err(BookError::Cleared),
            Some(key) if locked.is_current(key) => Ok(key),
            _ => locked.open_account(tenant.node),
        })?;
        let key = opened.map_err(|refused| match refused {
            BookError::Cleared => LedgerError::Cleared { file: self.path() },
            BookError::TableFull | BookError::Shortfall(_) => self.table_full("accounts"),
        })?;
        accounts.insert(tenant.node, key);
        Ok(key)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        self.wakeups.stop(&self.book);
        if self.has_file() {
            // The lock is waited for a little, so that the slot can be used again.
            if self.book.unregister_process(self.lock_timeout() / 100) {
                self.book.words().close_files();
            } else {
                // What is still held stays charged until the process ends; so does what a note could not give back yet.
                self.book.words().leak_files();
            }
        }
    }
}

/// Enters this process into its slot.
fn register(locked: &mut LockedBook<'_, MappedWords>, process: &Process) {
    let kernel = process.kernel();
    locked.register_process(kernel.pid().into(), &kernel.name(), now_ms());
}

pub(crate) fn path_of(book: &Book<MappedWords>) -> PathBuf {
    book.words().path().map_or_else(|| PathBuf::from("of this process"), Path::to_owned)
}

pub(crate) fn name_of(book: &Book<MappedWords>, slot: usize) -> (u32, String) {
    (book.peek_process(slot, process::PID) as u32, book.process_name(slot))
}
