//! Measuring a ledger's device, and what a newcomer could have of it.

use super::Ledger;
use crate::attachment::{LockWait, Look, TryError};
use crate::book::LockedBook;
use crate::format::{Words, node};
use bursar_core::{Bytes, MemoryInfo, Result};

/// The memory of a ledger that a newcomer could have, and the memory that others have.
///
/// ```
/// # use bursar::Bytes;
/// let now = bursar::ledger::Ledger::private(Bytes::gib(8)).availability()?;
/// assert_eq!((now.available, now.charged), (Bytes::gib(8), Bytes::ZERO));
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Availability {
    /// The bytes that a newcomer could have.
    pub available: Bytes,
    /// The bytes that are held or set aside, less what pools of this process could give back.
    pub charged: Bytes,
}

/// Reads what all accounts of living processes are charged with.
struct AllCharged;

/// The bytes that are charged, those of them that are set aside and not drawn, and the limits.
struct Charged {
    charged: u64,
    undrawn: u64,
    limit: u64,
    effective_limit: u64,
}

impl Look for AllCharged {
    type Figures = Charged;

    fn look<W: Words>(&self, locked: &mut LockedBook<'_, W>) -> Charged {
        locked.reclaim_dead_processes();
        let ((charged, undrawn), limit) = (locked.charged_and_undrawn(), locked.field(0, node::CEILING));
        Charged { charged, undrawn, limit, effective_limit: locked.effective_limit() }
    }
}

impl Ledger {
    /// Asks the probe, if there is one, and records what is used outside the ledger.
    pub(crate) fn measure(&self, wait: LockWait) -> Result<Option<MemoryInfo>, TryError> {
        self.probe.as_ref().map(|probe| self.attachment.measure(probe, wait)).transpose()
    }

    /// Returns what a newcomer could have now: what the driver has free and what pools of this process could give back, less
    /// what others have set aside; at most what the limit leaves.
    ///
    /// ```
    /// use bursar::Bytes;
    /// use bursar::device::MemoryInfo;
    /// use bursar::ledger::Ledger;
    ///
    /// # fn main() -> bursar::Result<()> {
    /// let info = MemoryInfo { free: Bytes::gib(6), total: Bytes::gib(8) };
    /// let ledger = Ledger::private(Bytes::gib(8)).measured_by(move || Ok(info));
    /// let aside = ledger.reserve(Bytes::gib(1))?;
    /// assert_eq!(ledger.available()?, Bytes::gib(5));
    /// assert_eq!(ledger.reading()?.unmanaged, Bytes::gib(2));
    /// # drop(aside);
    /// # Ok(())
    /// # }
    /// ```
    pub fn available(&self) -> Result<Bytes> {
        Ok(self.availability()?.available)
    }

    /// Returns what a newcomer could have now, and what those before it have.
    ///
    /// ```
    /// use bursar::Bytes;
    /// use bursar::ledger::Ledger;
    ///
    /// # fn main() -> bursar::Result<()> {
    /// let ledger = Ledger::private(Bytes::gib(8));
    /// let aside = ledger.reserve(Bytes::gib(3))?;
    /// let now = ledger.availability()?;
    /// assert_eq!((now.available, now.charged), (Bytes::gib(5), Bytes::gib(3)));
    /// # drop(aside);
    /// # Ok(())
    /// # }
    /// ```
    pub fn availability(&self) -> Result<Availability> {
        self.attachment.check_usable()?;
        let info = match self.measure(LockWait::poll(&self.attachment)) {
            // What is used outside is recorded by the next who measures.
            Err(TryError::LockUnavailable(_)) => self.probe.as_ref().map(|probe| probe.ask()).transpose()?,
            measured => measured?,
        };
        let cached = self.attachment.reclaimers.cached().get();
        let Charged { charged, undrawn, limit, effective_limit } = self.attachment.look(&AllCharged)?;
        let charged = charged.saturating_sub(cached);
        let within_limit = limit.saturating_sub(charged);
        let on_device = match info {
            Some(info) => info.free.get().saturating_add(cached).saturating_sub(undrawn),
            None => effective_limit.saturating_sub(charged),
        };
        Ok(Availability { available: Bytes(within_limit.min(on_device)), charged: Bytes(charged) })
    }
}
