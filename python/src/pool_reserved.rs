//! The count of the memory that a pool holds of its device, with the peak, as PyTorch has it.

use bursar::DeviceId;
use bursar::error::Holding;
use bursar::observe::{Action, Actions, Observer, Record};
use std::sync::{Mutex, PoisonError};

/// The bytes that a pool holds of its device, told by each growth and each trim.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    counts: Mutex<ReservedCounts>,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReservedCounts {
    pub(crate) current: u64,
    pub(crate) peak: u64,
    pub(crate) added: u64,
    pub(crate) removed: u64,
    /// The number of growths.
    pub(crate) growths: u64,
    /// The number of trims.
    pub(crate) trims: u64,
}

impl Reserved {
    pub(crate) fn counts(&self) -> ReservedCounts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reset_peak(&self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.peak = counts.current;
    }

    pub(crate) fn reset_totals(&self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts = ReservedCounts { current: counts.current, peak: counts.peak, ..ReservedCounts::default() };
    }
}

impl Observer for Reserved {
    fn interest(&self) -> Actions {
        Actions::of(&[Action::Grow, Action::Trim])
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn record(&self, record: &Record<'_>) {
        let (mut counts, bytes) = (self.counts.lock().unwrap_or_else(PoisonError::into_inner), record.granted.get());
        match record.action {
            Action::Grow => {
                counts.current += bytes;
                counts.added += bytes;
                counts.growths += 1;
                counts.peak = counts.peak.max(counts.current);
            }
            _ => {
                counts.current = counts.current.saturating_sub(bytes);
                counts.removed += bytes;
                counts.trims += 1;
            }
        }
    }

    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        None
    }
}
