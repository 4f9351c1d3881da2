//! Measuring what is used of a device outside its ledger.

use super::{Attachment, LockWait, TryError};
use crate::LedgerError;
use bursar_core::{MemoryInfo, Result};
use std::fmt;
use std::time::Duration;

/// The interval at which the driver is asked on behalf of those who wait: nobody notifies us when a program outside
/// Bursar frees memory.
pub(crate) const MEASURE_EVERY: Duration = Duration::from_millis(250);

/// A function that asks a driver how much memory of its device is free.
pub(crate) struct Probe(Box<Ask>);

type Ask = dyn Fn() -> Result<MemoryInfo> + Send + Sync;

impl Probe {
    pub(crate) fn new(ask: impl Fn() -> Result<MemoryInfo> + Send + Sync + 'static) -> Self {
        Self(Box::new(ask))
    }

    /// Asks the driver.
    pub(crate) fn ask(&self) -> Result<MemoryInfo> {
        (self.0)()
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probe")
    }
}

impl Attachment {
    /// Asks the probe and records what is used outside the ledger. The driver is asked without the lock.
    pub(crate) fn measure(&self, probe: &Probe, wait: LockWait) -> Result<MemoryInfo, TryError> {
        let held = || -> Result<u64, LedgerError> {
            let (charged, undrawn) = self.with_lock(wait, |locked| locked.charged_and_undrawn())?;
            Ok(charged.saturating_sub(undrawn))
        };
        let before = held()?;
        let info = probe.ask()?;
        // Memory is charged before it is allocated and released after it is freed, so the larger figure is nearer the
        // truth: what counts as ours too long is never taken for somebody else's.
        let ours = before.max(held()?);
        let unmanaged = info.used().get().saturating_sub(ours);
        self.with_lock(wait, |locked| locked.set_unmanaged(unmanaged))?;
        Ok(info)
    }
}
