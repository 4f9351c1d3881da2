//! Measuring a ledger's device, and what a newcomer could have of it.

use super::Ledger;
use crate::attachment::{LockWait, TryError};
use crate::format::node;
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
        let info = self.measure(LockWait::Usual)?;
        let cached = self.attachment.reclaimers.cached().get();
        let ((charged, undrawn), limit, effective_limit) = self.attachment.with_lock(LockWait::Usual, |locked| {
            locked.reclaim_dead_processes();
            (locked.charged_and_undrawn(), locked.field(0, node::CEILING), locked.effective_limit())
        })?;
        let charged = charged.saturating_sub(cached);
        let within_limit = limit.saturating_sub(charged);
        let on_device = match info {
            Some(info) => info.free.get().saturating_add(cached).saturating_sub(undrawn),
            None => effective_limit.saturating_sub(charged),
        };
        Ok(Availability { available: Bytes(within_limit.min(on_device)), charged: Bytes(charged) })
    }
}
