//! The arithmetic of a budget that pays from an account: what was charged there, and what of it was paid back.
//!
//! Everything is a running total of bytes, modulo 2⁶⁴, in the numbers of the memory below: what requests have entered,
//! what was rolled back, what was confirmed, what the memory below has released, how much of that somebody has claimed
//! for the account, and how much has been paid back there. The account is charged before the memory is asked for, and
//! paid back after the memory below has released it; so it never knows of less than is held.
//!
//! **A refusal of the account is believed only when nothing of this budget is undecided.** The account says what it had
//! left; what was charged and is not held for certain is added, from totals read before the reap and after the refusal.
//! Only if that would not have been enough is the request refused.

use super::backoff::{Backoff, MAX_ROUNDS};
use super::charge::difference;
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

/// The totals of one budget.
#[derive(Debug)]
pub(crate) struct AccountCharge {
    /// The bytes asked of the account, less those it refused.
    entered: AtomicU64,
    rolled_back: AtomicU64,
    confirmed: AtomicU64,
    claimed: AtomicU64,
    paid_back: AtomicU64,
    backoff: Backoff,
}

/// The reason why an account refused a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccountError<E> {
    /// There is no room.
    Full { remaining: u64, limit: u64, error: E },
    /// It takes no charges.
    Closed(E),
}

impl AccountCharge {
    /// Makes the totals over memory that has released `released` bytes and holds `held`, for which the account was
    /// charged.
    pub(crate) fn new(released: u64, held: u64) -> Self {
        let granted = released.wrapping_add(held);
        Self {
            entered: AtomicU64::new(granted),
            rolled_back: AtomicU64::new(0),
            confirmed: AtomicU64::new(granted),
            claimed: AtomicU64::new(released),
            paid_back: AtomicU64::new(released),
            backoff: Backoff::new(),
        }
    }

    /// Returns what was entered and not rolled back: never less than the truth, since what is rolled back was entered
    /// before.
    fn granted(&self) -> u64 {
        let rolled_back = self.rolled_back.load(Ordering::Acquire);
        self.entered.load(Ordering::Acquire).wrapping_sub(rolled_back)
    }

    /// Returns what is held and what is undecided.
    pub(crate) fn used(&self, released: impl Fn() -> u64) -> u64 {
        let released = released();
        ahead(self.granted(), released)
    }

    /// Charges `bytes` with `charge`, reaping the memory below with `reap` where the account has no room.
    ///
    /// A request is refused only if there would have been no room even if everything undecided here failed, as for a
    /// budget with a limit of its own. The account's last refusal says what it had left. What we had charged there and
    /// did not hold for certain is at most what was entered by *afterwards*, less what was rolled back and confirmed
    /// *before* the reap; and what the memory below released meanwhile may not have been paid back yet. Requests of
    /// other budgets on the same account that fail later are not seen.
    pub(crate) fn admit<E>(
        &self,
        bytes: u64,
        charge: impl Fn() -> Result<(), AccountError<E>>,
        released: impl Fn() -> u64,
        reap: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        self.backoff.yield_to_waiters();
        match self.try_charge(bytes, &charge) {
            Ok(()) => return Ok(()),
            Err(AccountError::Full { limit, .. }) if bytes <= limit => {}
            Err(AccountError::Full { error, .. } | AccountError::Closed(error)) => return Err(error),
        }
        let (mut waiting, mut rounds) = (None, 0);
        loop {
            let rolled_back = self.rolled_back.load(Ordering::Acquire);
            let certain = self.confirmed.load(Ordering::Acquire).wrapping_add(rolled_back);
            reap()?;
            let paid_back = self.paid_back.load(Ordering::Acquire);
            let (remaining, error) = match self.try_charge(bytes, &charge) {
                Ok(()) => return Ok(()),
                Err(AccountError::Full { remaining, error, .. }) => (remaining, error),
                Err(AccountError::Closed(error)) => return Err(error),
            };
            let unpaid = ahead(released(), paid_back);
            let undecided = ahead(self.entered.load(Ordering::Acquire), certain);
            let most = remaining.saturating_add(undecided).saturating_add(unpaid);
            rounds += 1;
            if bytes > most || rounds == MAX_ROUNDS {
                return Err(error);
            }
            waiting.get_or_insert_with(|| self.backoff.wait());
            yield_now();
        }
    }

    /// Enters the request before the account is asked, so that whoever finds it charged there finds it here too.
    fn try_charge<E>(
        &self,
        bytes: u64,
        charge: impl Fn() -> Result<(), AccountError<E>>,
    ) -> Result<(), AccountError<E>> {
        self.entered.fetch_add(bytes, Ordering::AcqRel);
        charge().inspect_err(|_| {
            self.entered.fetch_sub(bytes, Ordering::AcqRel);
        })
    }

    /// Confirms a charge whose memory was granted.
    pub(crate) fn confirm(&self, bytes: u64) {
        self.confirmed.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Enters a place that the account was charged for.
    pub(crate) fn enter_place(&self, bytes: u64) {
        self.entered.fetch_add(bytes, Ordering::AcqRel);
        self.confirm(bytes);
    }

    /// Enters a place for which the account stays charged, since what the memory below releases next is not paid back.
    pub(crate) fn keep_place(&self, bytes: u64) {
        self.enter_place(bytes);
        self.claimed.fetch_add(bytes, Ordering::AcqRel);
        self.paid_back.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Undoes [`keep_place`](Self::keep_place) where the memory below did not release anything: what is charged is for that
    /// memory, as before. Whoever released something meanwhile did not pay it back, so that is to be done next.
    pub(crate) fn take_back_place(&self, bytes: u64) {
        self.confirmed.fetch_sub(bytes, Ordering::AcqRel);
        self.roll_back(bytes, |_| ());
        self.paid_back.fetch_sub(bytes, Ordering::AcqRel);
        self.claimed.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Takes a place back; `release` gives it back to the account.
    pub(crate) fn give_up_place(&self, bytes: u64, release: impl FnOnce(u64)) {
        self.confirmed.fetch_sub(bytes, Ordering::AcqRel);
        self.roll_back(bytes, release);
    }

    /// Takes a charge back whose memory was never granted; `release` gives it back to the account, before anyone relies
    /// on it.
    pub(crate) fn roll_back(&self, bytes: u64, release: impl FnOnce(u64)) {
        release(bytes);
        self.rolled_back.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Gives back to the account, with `release`, what the memory below has released and nobody has claimed: once.
    ///
    /// No more than what was granted here is ever paid back, whatever else is freed below.
    pub(crate) fn pay_back(&self, released: impl Fn() -> u64, release: impl FnOnce(u64)) {
        let mut claimed = self.claimed.load(Ordering::Acquire);
        let bytes = loop {
            let released = released();
            let bytes = ahead(released, claimed).min(ahead(self.granted(), claimed));
            if bytes == 0 {
                return;
            }
            let upto = claimed.wrapping_add(bytes);
            match self.claimed.compare_exchange_weak(claimed, upto, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break bytes,
                Err(current) => claimed = current,
            }
        };
        release(bytes);
        self.paid_back.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Ends the charging and returns what is still charged; for whoever has it alone.
    pub(crate) fn close(&mut self) -> u64 {
        ahead(self.granted(), self.claimed.load(Ordering::Acquire))
    }
}

/// Returns how far `total` is ahead of `other`; zero where it is behind.
fn ahead(total: u64, other: u64) -> u64 {
    difference(total, other).unwrap_or(0)
}
