//! What is used of a device outside its ledger, and what a newcomer could have.

use crate::patience::{Patience, Unqueued};
use crate::{Ledger, LedgerError};
use bursar_core::{Bytes, MemoryInfo, Result};
use std::fmt;

/// Asks a driver how much of its device is free.
pub(crate) struct Probe(Box<Ask>);

type Ask = dyn Fn() -> Result<MemoryInfo> + Send + Sync;

impl Probe {
    pub(crate) fn new(ask: impl Fn() -> Result<MemoryInfo> + Send + Sync + 'static) -> Self {
        Self(Box::new(ask))
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probe")
    }
}

impl Ledger {
    /// Asks the probe, if there is one, and enters what is used outside the ledger. The driver is asked without the lock.
    pub(crate) fn measure(&self, patience: Patience) -> Result<Option<MemoryInfo>, Unqueued> {
        let Some(probe) = &self.probe else { return Ok(None) };
        let held = || -> Result<u64, LedgerError> {
            let (charged, undrawn) = self.inner.at_desk(patience, |desk| desk.sums())?;
            Ok(charged.saturating_sub(undrawn))
        };
        let before = held()?;
        let info = (probe.0)()?;
        // Memory is charged before it is allocated and released after it is freed, so the larger is nearer the truth: what
        // is counted as ours too long is never taken for somebody else's.
        let ours = before.max(held()?);
        let unmanaged = info.used().get().saturating_sub(ours);
        self.inner.at_desk(patience, |desk| desk.set_unmanaged(unmanaged))?;
        Ok(Some(info))
    }

    /// What a newcomer could have now: what the driver has free and what pools of this process hold without using it, less
    /// what others set aside; at most what the limit leaves.
    ///
    /// ```
    /// use bursar_core::{Bytes, MemoryInfo};
    /// use bursar_ledger::Ledger;
    ///
    /// # fn main() -> bursar_core::Result<()> {
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
        self.inner.check()?;
        let info = self.measure(Patience::Usual)?;
        let cached = self.inner.reclaimers.cached().get();
        let ((charged, undrawn), limit, cap) = self.inner.at_desk(Patience::Usual, |desk| {
            desk.bury_the_dead();
            (desk.sums(), desk.of(0, crate::layout::node::CEILING), desk.cap())
        })?;
        let within_limit = limit.saturating_sub(charged.saturating_sub(cached));
        let on_device = match info {
            Some(info) => info.free.get().saturating_add(cached).saturating_sub(undrawn),
            None => cap.saturating_sub(charged.saturating_sub(cached)),
        };
        Ok(Bytes(within_limit.min(on_device)))
    }
}
