//! The arithmetic of a budget with a limit of its own: one compare-and-swap a request, and nothing to release.
//!
//! The bytes in use are the difference of two running totals: what the budget has granted, which it counts itself, and
//! what the memory below has released, which only the memory below can know. Both are taken modulo 2⁶⁴. A grant is
//! counted before the memory is asked for, so the difference never falls short of what is held. A third total counts
//! the grants that the memory below has confirmed; what is granted and not confirmed is undecided, and may yet be
//! rolled back.

use super::backoff::{Backoff, MAX_ROUNDS};
#[cfg(loom)]
use loom::{
    sync::atomic::{AtomicU64, Ordering},
    thread::yield_now,
};
#[cfg(not(loom))]
use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread::yield_now,
};

/// The most that can be held: totals are compared modulo 2⁶⁴, so a larger difference would read as a negative one.
const MAX_HELD: u64 = i64::MAX.cast_unsigned();

/// The totals of one budget.
#[derive(Debug)]
pub(crate) struct Charge {
    granted: AtomicU64,
    confirmed: AtomicU64,
    limit: AtomicU64,
    backoff: Backoff,
}

/// The totals that were read when a charge did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverLimit {
    pub(crate) used: u64,
    pub(crate) limit: u64,
}

impl OverLimit {
    pub(crate) fn remaining(self) -> u64 {
        self.limit.min(MAX_HELD).saturating_sub(self.used)
    }
}

/// The reason why a request was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeError<E> {
    /// There is no room.
    OverLimit(OverLimit),
    /// The memory below could not be reaped.
    Reap(E),
}

impl Charge {
    /// Makes the totals of a budget of `limit` over memory of which `granted` was ever granted.
    pub(crate) fn new(granted: u64, limit: u64) -> Self {
        let [granted, confirmed, limit] = [granted, granted, limit].map(AtomicU64::new);
        Self { granted, confirmed, limit, backoff: Backoff::new() }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Release);
    }

    fn granted(&self) -> u64 {
        self.granted.load(Ordering::Acquire)
    }

    /// Returns what is held and what is undecided: never less than the truth at the moment the granted total is read.
    pub(crate) fn used(&self, released: impl Fn() -> u64) -> u64 {
        self.totals(self.granted(), released).1
    }

    /// Returns a granted total, no older than `granted`, and its difference to a released total read after it.
    ///
    /// A grant is counted before its memory can be released, so a granted total that is behind a released one was read
    /// too early. If it is still behind when it is read again, memory was freed that this budget never granted, and
    /// nothing that it did is known to be held.
    fn totals(&self, mut granted: u64, released: impl Fn() -> u64) -> (u64, u64) {
        loop {
            let released = released();
            if let Some(used) = difference(granted, released) {
                return (granted, used);
            }
            granted = self.granted();
            if difference(granted, released).is_none() {
                return (granted, 0);
            }
        }
    }

    /// Charges `bytes` if they fit.
    ///
    /// The released total is read after the granted one. If the swap succeeds, the granted total was current and the
    /// released one at most too small, so the limit holds. If the charge is refused, it did not fit at the moment one
    /// of the two was read, beside everything that was undecided then.
    pub(crate) fn try_charge(&self, bytes: u64, released: impl Fn() -> u64) -> Result<(), OverLimit> {
        let mut read = self.granted();
        loop {
            let (granted, used) = self.totals(read, &released);
            let limit = self.limit();
            if !fits(used, bytes, limit) {
                return Err(OverLimit { used, limit });
            }
            let charged = granted.wrapping_add(bytes);
            match self.granted.compare_exchange_weak(granted, charged, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(()),
                Err(current) => read = current,
            }
        }
    }

    /// Charges `bytes`, reaping the memory below with `reap` where they do not fit.
    ///
    /// A request is refused only if it would not have fitted even if everything undecided failed: the confirmed total
    /// is read *before* the reap and the released one *after* it, so the difference is at most what was held and
    /// confirmed at the moment the first was read, less all frees that had completed by then. Otherwise another thread
    /// took what was reaped, or has a request that is undecided, and the request tries again. With nothing undecided and
    /// no other thread, one reap decides.
    pub(crate) fn admit<E>(
        &self,
        bytes: u64,
        released: impl Fn() -> u64,
        reap: impl Fn() -> Result<(), E>,
    ) -> Result<(), ChargeError<E>> {
        self.backoff.yield_to_waiters();
        let Err(mut over) = self.try_charge(bytes, &released) else {
            return Ok(());
        };
        if !fits(0, bytes, over.limit) {
            return Err(ChargeError::OverLimit(over));
        }
        let mut waiting = None;
        for _ in 0..MAX_ROUNDS {
            let confirmed = self.confirmed.load(Ordering::Acquire);
            reap().map_err(ChargeError::Reap)?;
            over = match self.try_charge(bytes, &released) {
                Ok(()) => return Ok(()),
                Err(over) => over,
            };
            let held = difference(confirmed, released()).unwrap_or(0);
            if !fits(held, bytes, over.limit) {
                break;
            }
            waiting.get_or_insert_with(|| self.backoff.wait());
            yield_now();
        }
        Err(ChargeError::OverLimit(over))
    }

    /// Confirms a charge whose memory was granted.
    pub(crate) fn confirm(&self, bytes: u64) {
        self.confirmed.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Counts a place as granted: as much is being released below.
    pub(crate) fn add_place(&self, bytes: u64) {
        self.granted.fetch_add(bytes, Ordering::AcqRel);
        self.confirm(bytes);
    }

    /// Counts a place as granted no more.
    pub(crate) fn remove_place(&self, bytes: u64) {
        self.confirmed.fetch_sub(bytes, Ordering::AcqRel);
        self.roll_back(bytes);
    }

    /// Takes a charge back whose memory was never granted.
    pub(crate) fn roll_back(&self, bytes: u64) {
        self.granted.fetch_sub(bytes, Ordering::AcqRel);
    }
}

fn fits(used: u64, bytes: u64, limit: u64) -> bool {
    used.checked_add(bytes).is_some_and(|sum| sum <= limit.min(MAX_HELD))
}

/// Returns how far one running total is ahead of another, or `None` where it is behind. Totals are compared modulo 2⁶⁴
/// and are less than 2⁶³ apart.
pub(crate) fn difference(total: u64, other: u64) -> Option<u64> {
    let difference = total.wrapping_sub(other);
    (difference.cast_signed() >= 0).then_some(difference)
}
