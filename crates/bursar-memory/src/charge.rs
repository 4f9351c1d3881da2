//! The charge core of a budget: one compare-and-swap, and nothing to release.
//!
//! A budget is the difference of two running totals: what it has granted, which it counts itself, and what the memory
//! below has released, which only the memory below can know. Both are taken modulo 2⁶⁴. The grant is counted before the
//! memory is asked for, so the difference never falls short of what is held.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// The totals of one budget.
#[derive(Debug)]
pub(crate) struct Charge {
    granted: AtomicU64,
    limit: AtomicU64,
}

/// A charge that did not fit, and what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) used: u64,
    pub(crate) limit: u64,
}

impl Full {
    pub(crate) fn remaining(self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

impl Charge {
    /// A budget of `limit` over memory of which `granted` was ever granted.
    pub(crate) fn new(granted: u64, limit: u64) -> Self {
        Self { granted: AtomicU64::new(granted), limit: AtomicU64::new(limit) }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Release);
    }

    /// Everything ever granted.
    pub(crate) fn granted(&self) -> u64 {
        self.granted.load(Ordering::Acquire)
    }

    /// What is held: never less than the truth at the moment `granted` is read.
    pub(crate) fn used(&self, released: impl Fn() -> u64) -> u64 {
        loop {
            let granted = self.granted();
            if let Some(used) = difference(granted, released()) {
                return used;
            }
        }
    }

    /// Charges `bytes` if they fit.
    ///
    /// The released total is read after the granted one. If the swap succeeds, the granted total was current and the
    /// released one at most too small, so the limit holds. If the answer is no, it did not fit at the moment one of the
    /// two was read, so no request is refused that would have fitted throughout.
    pub(crate) fn try_charge(&self, bytes: u64, released: impl Fn() -> u64) -> Result<(), Full> {
        let mut granted = self.granted();
        loop {
            let Some(used) = difference(granted, released()) else {
                granted = self.granted();
                continue;
            };
            let limit = self.limit();
            if used.checked_add(bytes).is_none_or(|sum| sum > limit) {
                return Err(Full { used, limit });
            }
            let charged = granted.wrapping_add(bytes);
            match self.granted.compare_exchange_weak(granted, charged, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(()),
                Err(current) => granted = current,
            }
        }
    }

    /// Takes a charge back whose memory was never granted.
    pub(crate) fn roll_back(&self, bytes: u64) {
        self.granted.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Whether `bytes` did not fit at the moment at which `granted` was the granted total, even if everything that had
    /// been released by `released` was free then.
    pub(crate) fn was_full(&self, granted: u64, released: u64, bytes: u64) -> bool {
        difference(granted, released).is_some_and(|used| used.checked_add(bytes).is_none_or(|sum| sum > self.limit()))
    }
}

/// `granted - released`, or `None` where `granted` was read too long ago.
fn difference(granted: u64, released: u64) -> Option<u64> {
    let difference = granted.wrapping_sub(released);
    (difference.cast_signed() >= 0).then_some(difference)
}
