//! The ledger of a device, as programs see it.

use super::reading::{self, Reading};
use super::{LedgerAccount, Priority, Reclaimer, Reservation, Reserving, Tenant};
use crate::attachment::{self, Inner, Patience, Probe};
use crate::format::node;
use crate::system::Process;
use crate::{LedgerError, Subject, storage};
use bursar_core::{Bytes, DeviceContext, MemoryInfo, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The ledger of one physical device: what may be held of it, and by whom.
///
/// A clone is the same ledger, and so is one that is opened again.
///
/// ```
/// use bursar_core::{Account, Bytes};
/// use bursar_ledger::Ledger;
///
/// # fn main() -> bursar_core::Result<()> {
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
    pub(crate) inner: Arc<Inner>,
    pub(crate) probe: Option<Arc<Probe>>,
}

impl Ledger {
    /// The ledger of `subject` that all processes of this user share, in the folder that `BURSAR_LEDGER_DIR` names or one
    /// of the user's own in shared memory.
    ///
    /// ```no_run
    /// use bursar_core::Bytes;
    /// use bursar_ledger::{Ledger, Subject};
    ///
    /// let host = Ledger::open(&Subject::host(Bytes::gib(64)))?;
    /// host.set_limit(Bytes::gib(48))?;
    /// # Ok::<(), bursar_ledger::LedgerError>(())
    /// ```
    pub fn open(subject: &Subject) -> Result<Self, LedgerError> {
        Self::open_in(&storage::chosen(), subject)
    }

    /// The ledger of `subject` that all processes share which open it in this folder.
    pub fn open_in(folder: &Path, subject: &Subject) -> Result<Self, LedgerError> {
        Self::open_by(Process::this(), folder, subject)
    }

    pub(crate) fn open_by(process: &Arc<Process>, folder: &Path, subject: &Subject) -> Result<Self, LedgerError> {
        Ok(Self { inner: attachment::shared(process, folder, subject)?, probe: None })
    }

    /// A ledger of this process alone, kept the same way.
    ///
    /// # Panics
    /// If the system has no memory for it: 256 KiB.
    pub fn private(total: Bytes) -> Self {
        let inner = Inner::private(Subject { name: "private".to_owned(), ..Subject::host(total) });
        Self { inner: Arc::new(inner.expect("256 KiB can be mapped")), probe: None }
    }

    /// The ledger of a device: shared with other processes if they can open the device too, and measured by its driver.
    pub fn for_device(context: &Arc<DeviceContext>) -> Result<Self, LedgerError> {
        let inner = if context.facts().shared {
            attachment::shared(Process::this(), &storage::chosen(), &Subject::device(context.facts()))?
        } else {
            attachment::private(context)?
        };
        let context = Arc::clone(context);
        Ok(Self { inner, probe: None }.measured_by(move || Ok(context.driver().memory(context.device())?)))
    }

    /// Has this handle, and what is made of it, ask `probe` what is used of the device outside the ledger.
    #[must_use]
    pub fn measured_by(self, probe: impl Fn() -> Result<MemoryInfo> + Send + Sync + 'static) -> Self {
        Self { inner: self.inner, probe: Some(Arc::new(Probe::new(probe))) }
    }

    /// The folder that ledgers are kept in; it need not exist.
    pub fn folder() -> Result<PathBuf, LedgerError> {
        Ok(storage::chosen())
    }

    /// The files of all ledgers in that folder.
    pub fn list() -> Result<Vec<PathBuf>, LedgerError> {
        storage::ledgers(&storage::chosen())
    }

    /// Reads the ledger in a file without joining those who use it: nothing is changed.
    pub fn inspect(file: &Path) -> Result<Reading, LedgerError> {
        let (subject, sheet) = storage::look_at(Process::this(), file)?;
        Ok(reading::read(sheet, subject))
    }

    /// What the ledger is about.
    pub fn subject(&self) -> &Subject {
        &self.inner.subject
    }

    /// The file it shares with other processes, if it does.
    pub fn file(&self) -> Option<&Path> {
        self.inner.file()
    }

    /// What all may hold together.
    pub fn limit(&self) -> Bytes {
        Bytes(self.inner.book.peek(0, node::CEILING))
    }

    /// Changes what all may hold together: raised at once; lowered below what is in use, it refuses until that is less.
    pub fn set_limit(&self, limit: Bytes) -> Result<(), LedgerError> {
        self.inner.check()?;
        self.inner.at_desk(Patience::Usual, |desk| desk.set_limit(limit.get()))
    }

    /// The tenant of that name, made if there is none. The empty name is the tenant of those who name none.
    pub fn tenant(&self, name: &str) -> Result<Tenant, LedgerError> {
        Tenant::of(self, name, Patience::Usual)
    }

    /// This process's account, for those who name no tenant: always the same one.
    pub fn account(&self) -> Result<LedgerAccount, LedgerError> {
        self.tenant("")?.account()
    }

    /// Sets `bytes` aside, or refuses at once.
    pub fn reserve(&self, bytes: Bytes) -> Result<Reservation> {
        self.tenant("")?.reserve(bytes)
    }

    /// Sets `bytes` aside, waiting for its turn until `deadline` has passed.
    pub fn reserve_within(&self, bytes: Bytes, deadline: Duration, priority: Priority) -> Result<Reservation> {
        let find = |patience| Ok(Tenant::of(self, "", patience)?.key());
        self.reserve_waiting(find, (bytes, deadline, priority))
    }

    /// Sets `bytes` aside when its turn comes. Dropping the future leaves the queue.
    pub fn reserve_async(&self, bytes: Bytes, priority: Priority) -> Reserving {
        Reserving::new(self.clone(), String::new(), bytes, priority)
    }

    /// Has `reclaim` asked to give so much back when an owner wants what this process borrows; it answers what it gave.
    pub fn on_reclaim(&self, reclaim: impl Fn(Bytes) -> Bytes + Send + Sync + 'static) -> Reclaimer {
        Reclaimer::register(self, Arc::new(reclaim))
    }

    /// Who holds what.
    pub fn reading(&self) -> Result<Reading, LedgerError> {
        if self.inner.is_forked() {
            return Err(LedgerError::Forked);
        }
        Ok(reading::read(reading::copied(&self.inner)?, self.inner.subject.clone()))
    }

    /// Forgets every account, reservation and tenant, and puts the limit back to all there is. Refused while another process
    /// has the ledger open, or this one holds something or waits, unless forced: then their handles answer that the ledger
    /// was cleared. Handles of this process do so in any case.
    pub fn clear(&self, force: bool) -> Result<(), LedgerError> {
        self.inner.check()?;
        let (reading, own) = (self.reading()?, self.inner.process().kernel().pid());
        let cleared = self.inner.at_desk(Patience::Usual, |desk| {
            desk.bury_the_dead();
            let clears = force || desk.sums().0 == 0 && desk.queue().is_empty() && !desk.has_company();
            if clears {
                desk.clear(self.inner.subject.total.get());
            }
            clears
        })?;
        let holders = || {
            let others = reading.processes.iter().filter(|process| process.pid != own || process.has_something());
            others.map(ToString::to_string).collect()
        };
        cleared.then_some(()).ok_or_else(|| LedgerError::Held { file: self.inner.path(), holders: holders() })
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("file", &self.file()).field("limit", &self.limit()).finish_non_exhaustive()
    }
}
