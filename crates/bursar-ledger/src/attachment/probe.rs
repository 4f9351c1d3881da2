//! Measuring what is used of a device outside its ledger.

use super::{Inner, Patience, Unqueued};
use crate::LedgerError;
use bursar_core::{MemoryInfo, Result};
use std::fmt;
use std::time::Duration;

/// How often those who wait ask the driver what others gave back: nobody says so.
pub(crate) const MEASURE_EVERY: Duration = Duration::from_millis(250);

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

impl Inner {
    /// Asks the probe and enters what is used outside the ledger. The driver is asked without the lock.
    pub(crate) fn measure(&self, probe: &Probe, patience: Patience) -> Result<MemoryInfo, Unqueued> {
        let held = || -> Result<u64, LedgerError> {
            let (charged, undrawn) = self.at_desk(patience, |desk| desk.sums())?;
            Ok(charged.saturating_sub(undrawn))
        };
        let before = held()?;
        let info = (probe.0)()?;
        // Memory is charged before it is allocated and released after it is freed, so the larger is nearer the truth: what
        // is counted as ours too long is never taken for somebody else's.
        let ours = before.max(held()?);
        let unmanaged = info.used().get().saturating_sub(ours);
        self.at_desk(patience, |desk| desk.set_unmanaged(unmanaged))?;
        Ok(info)
    }
}
