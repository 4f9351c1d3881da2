//! The ledger of a device, as programs see it.

use super::reading::{self, Reading};
use super::{LedgerAccount, Priority, Reclaimer, Reservation, ReserveFuture, ReserveOptions, Tenant};
use crate::attachment::{self, Attachment, LockWait, Probe};
use crate::format::node;
use crate::system::Process;
use crate::{LedgerError, Subject, storage};
use bursar_core::{Bytes, DeviceContext, MemoryInfo, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The ledger of one physical device: how much of it may be held, and by whom.
///
/// A clone is the same ledger, and so is one that is opened again.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::Ledger;
/// use bursar::memory::Account;
///
/// # fn main() -> bursar::Result<()> {
/// let ledger = Ledger::private(Bytes::gib(1));
/// let account = ledger.account()?;
/// account.charge(Bytes::mib(600))?;
/// assert!(account.charge(Bytes::mib(600)).unwrap_err().is_capacity());
/// account.release(Bytes::mib(600));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Ledger {
    pub(crate) attachment: Arc<Attachment>,
    pub(crate) probe: Option<Arc<Probe>>,
}

impl Ledger {
    /// Opens the ledger of `subject` that all processes of this user share, in the folder that `BURSAR_LEDGER_DIR`
    /// names or a folder of the user in shared memory. Makes it if there is none.
    ///
    /// ```no_run
    /// use bursar::Bytes;
    /// use bursar::ledger::{Ledger, Subject};
    ///
    /// let host = Ledger::open(&Subject::host(Bytes::gib(64)))?;
    /// host.set_limit(Bytes::gib(48))?;
    /// # Ok::<(), bursar::ledger::LedgerError>(())
    /// ```
    pub fn open(subject: &Subject) -> Result<Self, LedgerError> {
        Self::open_in(&storage::default_folder(), subject)
    }

    /// Opens the ledger of `subject` in a folder, shared by all processes that open it there. Makes it if there is
    /// none.
    pub fn open_in(folder: &Path, subject: &Subject) -> Result<Self, LedgerError> {
        Self::open_by(Process::this(), folder, subject)
    }

    /// Opens the ledger of `subject` in a folder as [`open_in`](Self::open_in) does, waiting for at most `patience` where another
    /// process has its lock or is just making it.
    pub fn open_within(folder: &Path, subject: &Subject, patience: Duration) -> Result<Self, LedgerError> {
        let wait = LockWait::within(patience);
        Ok(Self { attachment: attachment::open_shared(Process::this(), folder, subject, wait)?, probe: None })
    }

    pub(crate) fn open_by(process: &Arc<Process>, folder: &Path, subject: &Subject) -> Result<Self, LedgerError> {
        Ok(Self { attachment: attachment::open_shared(process, folder, subject, LockWait::Usual)?, probe: None })
    }

    /// Makes a ledger that is private to this process.
    ///
    /// # Panics
    /// If the system has no memory for it: 512 KiB.
    pub fn private(total: Bytes) -> Self {
        let attachment = Attachment::new_private(Subject { name: "private".to_owned(), ..Subject::host(total) });
        Self { attachment: Arc::new(attachment.expect("512 KiB can be mapped")), probe: None }
    }

    /// Opens the ledger of a device: shared with other processes if they can open the device too, and measured by the
    /// device's driver.
    pub fn for_device(context: &Arc<DeviceContext>) -> Result<Self, LedgerError> {
        Self::open_device(context, LockWait::Usual)
    }

    /// Opens the ledger of a device as [`for_device`](Self::for_device) does, waiting for at most `patience` where another process
    /// has its lock or is just making it.
    pub fn for_device_within(context: &Arc<DeviceContext>, patience: Duration) -> Result<Self, LedgerError> {
        Self::open_device(context, LockWait::within(patience))
    }

    fn open_device(context: &Arc<DeviceContext>, wait: LockWait) -> Result<Self, LedgerError> {
        let attachment = if context.facts().shared {
            attachment::open_shared(
                Process::this(),
                &storage::default_folder(),
                &Subject::device(context.facts()),
                wait,
            )?
        } else {
            attachment::open_private(context)?
        };
        let context = Arc::clone(context);
        Ok(Self { attachment, probe: None }.measured_by(move || Ok(context.driver().memory(context.device())?)))
    }

    /// Returns whether both are handles of one ledger.
    ///
    /// ```
    /// use bursar::Bytes;
    /// use bursar::ledger::Ledger;
    ///
    /// let ledger = Ledger::private(Bytes::gib(1));
    /// assert!(ledger.is_same(&ledger.clone()) && !ledger.is_same(&Ledger::private(Bytes::gib(1))));
    /// ```
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.attachment, &other.attachment)
    }

    /// Returns this ledger with `probe` to measure what is used of the device outside the ledger. Handles made from it
    /// measure too.
    #[must_use]
    pub fn measured_by(self, probe: impl Fn() -> Result<MemoryInfo> + Send + Sync + 'static) -> Self {
        Self { attachment: self.attachment, probe: Some(Arc::new(Probe::new(probe))) }
    }

    /// Returns the folder that ledgers are in; it need not exist.
    pub fn folder() -> Result<PathBuf, LedgerError> {
        Ok(storage::default_folder())
    }

    /// Returns the files of all ledgers in that folder.
    pub fn list() -> Result<Vec<PathBuf>, LedgerError> {
        Self::list_in(&storage::default_folder())
    }

    /// Returns the files of all ledgers in a folder, which need not exist.
    pub fn list_in(folder: &Path) -> Result<Vec<PathBuf>, LedgerError> {
        storage::ledgers(folder)
    }

    /// Reads the ledger in a file without opening it: nothing is changed. A file that has not the name of its device is an error.
    pub fn inspect(file: &Path) -> Result<Reading, LedgerError> {
        let (subject, snapshot) = storage::inspect(Process::this(), file)?;
        Ok(reading::read(snapshot, subject))
    }

    /// Reads the ledger of `subject` in a folder without opening it; none where nobody has made one. A file about another device is an
    /// error, and so is one that was moved or removed while programs use it: what they hold is unknown then, and not nothing.
    ///
    /// ```no_run
    /// use bursar::Bytes;
    /// use bursar::ledger::{Ledger, Subject};
    ///
    /// let host = Ledger::inspect_in(&Ledger::folder()?, &Subject::host(Bytes::gib(64)))?;
    /// println!("{} held", host.map_or(Bytes::ZERO, |reading| reading.held));
    /// # Ok::<(), bursar::ledger::LedgerError>(())
    /// ```
    pub fn inspect_in(folder: &Path, subject: &Subject) -> Result<Option<Reading>, LedgerError> {
        let found = storage::inspect_in(Process::this(), folder, subject)?;
        Ok(found.map(|(subject, snapshot)| reading::read(snapshot, subject)))
    }

    /// Returns the device, or host memory, that the ledger is for.
    pub fn subject(&self) -> &Subject {
        &self.attachment.subject
    }

    /// Returns the file of the ledger; a private ledger has none.
    pub fn file(&self) -> Option<&Path> {
        self.attachment.file()
    }

    /// Returns the limit of what all may hold together.
    pub fn limit(&self) -> Bytes {
        Bytes(self.attachment.book.peek(0, node::CEILING))
    }

    /// Sets the limit of what all may hold together. A higher one counts at once; one below what is in use refuses
    /// everybody until less is.
    pub fn set_limit(&self, limit: Bytes) -> Result<(), LedgerError> {
        self.attachment.check_usable()?;
        self.attachment.with_lock(LockWait::Usual, |locked| locked.set_limit(limit.get()))
    }

    /// Returns the tenant of that name, made if there is none. The empty name is the tenant of those who name none.
    pub fn tenant(&self, name: &str) -> Result<Tenant, LedgerError> {
        Tenant::find_or_make(self, name, LockWait::Usual)
    }

    /// Returns this process's account for the tenant without a name: always the same one.
    pub fn account(&self) -> Result<LedgerAccount, LedgerError> {
        self.tenant("")?.account()
    }

    /// Reserves `bytes`, or refuses at once.
    pub fn reserve(&self, bytes: Bytes) -> Result<Reservation> {
        self.tenant("")?.reserve(bytes)
    }

    /// Reserves `bytes` with options, or refuses at once.
    pub fn reserve_with(&self, bytes: Bytes, options: &ReserveOptions) -> Result<Reservation> {
        self.tenant("")?.reserve_with(bytes, options)
    }

    /// Reserves `bytes`, waiting for its turn until `deadline` has passed.
    pub fn reserve_within(&self, bytes: Bytes, deadline: Duration, priority: Priority) -> Result<Reservation> {
        let find = |wait| Ok(Tenant::find_or_make(self, "", wait)?.key());
        self.reserve_with_deadline(find, deadline, bytes, &ReserveOptions::new().priority(priority))
    }

    /// Reserves `bytes` when its turn comes. Dropping the future leaves the queue.
    pub fn reserve_async(&self, bytes: Bytes, priority: Priority) -> ReserveFuture {
        self.reserve_async_with(bytes, ReserveOptions::new().priority(priority))
    }

    /// Reserves `bytes` with options when its turn comes. Dropping the future leaves the queue.
    pub fn reserve_async_with(&self, bytes: Bytes, options: ReserveOptions) -> ReserveFuture {
        self.reserve_async_for("", bytes, options)
    }

    /// Reserves `bytes` for the tenant of that name, made if there is none, when its turn comes. Nothing is waited for before the
    /// future is polled.
    pub fn reserve_async_for(&self, tenant: &str, bytes: Bytes, options: ReserveOptions) -> ReserveFuture {
        ReserveFuture::new(self.clone(), tenant.to_owned(), bytes, options)
    }

    /// Registers a callback that is asked to give back so many bytes when a tenant within its guarantee wants what this
    /// process borrows. It returns how many bytes it gave back.
    pub fn on_reclaim(&self, reclaim: impl Fn(Bytes) -> Bytes + Send + Sync + 'static) -> Reclaimer {
        Reclaimer::register(self, Arc::new(reclaim))
    }

    /// Returns who holds what.
    pub fn reading(&self) -> Result<Reading, LedgerError> {
        if self.attachment.is_forked() {
            return Err(LedgerError::Forked);
        }
        Ok(reading::read(reading::snapshot_of(&self.attachment)?, self.attachment.subject.clone()))
    }

    /// Removes every account, reservation and tenant, and sets the limit to all there is. Refused, unless forced, while
    /// another process has the ledger open or this one holds something or waits. Handles made before then return
    /// [`LedgerError::Cleared`], those of this process in any case.
    pub fn clear(&self, force: bool) -> Result<(), LedgerError> {
        self.attachment.check_usable()?;
        let (reading, own) = (self.reading()?, self.attachment.process().kernel().pid());
        let cleared = self.attachment.with_lock(LockWait::Usual, |locked| {
            locked.reclaim_dead_processes();
            let clears = force
                || locked.charged_and_undrawn().0 == 0 && locked.queue().is_empty() && !locked.is_open_elsewhere();
            if clears {
                locked.clear(self.attachment.subject.total.get());
            }
            clears
        })?;
        let processes = || {
            let others = reading.processes.iter().filter(|process| process.pid != own || process.has_something());
            others.map(ToString::to_string).collect()
        };
        cleared.then_some(()).ok_or_else(|| LedgerError::Held { file: self.attachment.path(), processes: processes() })
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("file", &self.file()).field("limit", &self.limit()).finish_non_exhaustive()
    }
}
