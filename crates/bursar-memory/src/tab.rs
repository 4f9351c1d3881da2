//! The charge core of a budget that pays from an account: what was charged there, and what of it was paid back.
//!
//! Everything is a running total of bytes, modulo 2⁶⁴, in the numbers of the memory below: what requests have entered,
//! what was rolled back, what was confirmed, what the memory below has released, how much of that somebody has claimed for
//! the account, and how much has been paid back there. The account is charged before the memory is asked for, and paid
//! back after the memory below has released it; so it never knows of less than is held.

use crate::courtesy::{Courtesy, ROUNDS};
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
pub(crate) struct Tab {
    /// What was asked of the account, less what it refused.
    entered: AtomicU64,
    rolled_back: AtomicU64,
    confirmed: AtomicU64,
    claimed: AtomicU64,
    paid_back: AtomicU64,
    courtesy: Courtesy,
}

/// How an account says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum No<E> {
    /// There is no room.
    Full { remaining: u64, limit: u64, error: E },
    /// It cannot be asked.
    Closed(E),
}

impl Tab {
    /// Over memory that has released `released` bytes and holds `held`, for which the account was charged.
    pub(crate) fn new(released: u64, held: u64) -> Self {
        let granted = released.wrapping_add(held);
        Self {
            entered: AtomicU64::new(granted),
            rolled_back: AtomicU64::new(0),
            confirmed: AtomicU64::new(granted),
            claimed: AtomicU64::new(released),
            paid_back: AtomicU64::new(released),
            courtesy: Courtesy::new(),
        }
    }

    /// What was entered and not rolled back: never less than the truth, since what is rolled back was entered before.
    fn granted(&self) -> u64 {
        let rolled_back = self.rolled_back.load(Ordering::Acquire);
        self.entered.load(Ordering::Acquire).wrapping_sub(rolled_back)
    }

    /// What is held and what is undecided.
    pub(crate) fn used(&self, released: impl Fn() -> u64) -> u64 {
        let released = released();
        ahead(self.granted(), released)
    }

    /// Charges `bytes` with `charge`, looking for room with `look` where the account has none.
    ///
    /// A request is refused only if there would have been no room even if everything undecided here failed, as for a
    /// budget with a limit of its own. What the account had left at its last answer is known from that answer. What we had
    /// charged there and did not hold for certain is at most what was entered by *afterwards*, less what was rolled back
    /// and confirmed *before* the look; and what the memory below released meanwhile may not have been paid back yet.
    /// Requests of other budgets on the same account that fail later are not seen.
    pub(crate) fn admit<E>(
        &self,
        bytes: u64,
        charge: impl Fn() -> Result<(), No<E>>,
        released: impl Fn() -> u64,
        look: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        self.courtesy.hold_back();
        match self.attempt(bytes, &charge) {
            Ok(()) => return Ok(()),
            Err(No::Full { limit, .. }) if bytes <= limit => {}
            Err(No::Full { error, .. } | No::Closed(error)) => return Err(error),
        }
        let (mut waiting, mut rounds) = (None, 0);
        loop {
            let rolled_back = self.rolled_back.load(Ordering::Acquire);
            let certain = self.confirmed.load(Ordering::Acquire).wrapping_add(rolled_back);
            look()?;
            let paid_back = self.paid_back.load(Ordering::Acquire);
            let (remaining, error) = match self.attempt(bytes, &charge) {
                Ok(()) => return Ok(()),
                Err(No::Full { remaining, error, .. }) => (remaining, error),
                Err(No::Closed(error)) => return Err(error),
            };
            let unpaid = ahead(released(), paid_back);
            let undecided = ahead(self.entered.load(Ordering::Acquire), certain);
            let most = remaining.saturating_add(undecided).saturating_add(unpaid);
            rounds += 1;
            if bytes > most || rounds == ROUNDS {
                return Err(error);
            }
            waiting.get_or_insert_with(|| self.courtesy.wait());
            yield_now();
        }
    }

    /// Enters the request before the account is asked, so that whoever finds it charged there finds it here too.
    fn attempt<E>(&self, bytes: u64, charge: impl Fn() -> Result<(), No<E>>) -> Result<(), No<E>> {
        self.entered.fetch_add(bytes, Ordering::AcqRel);
        charge().inspect_err(|_| {
            self.entered.fetch_sub(bytes, Ordering::AcqRel);
        })
    }

    /// Confirms a charge whose memory was granted.
    pub(crate) fn confirm(&self, bytes: u64) {
        self.confirmed.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Takes a charge back whose memory was never granted; `pay` gives it back to the account, before anyone relies on it.
    pub(crate) fn roll_back(&self, bytes: u64, pay: impl FnOnce(u64)) {
        pay(bytes);
        self.rolled_back.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Pays back with `pay` what the memory below has released and nobody has claimed, once.
    ///
    /// No more than what was granted here is ever paid back, whatever else is freed below.
    pub(crate) fn settle(&self, released: impl Fn() -> u64, pay: impl FnOnce(u64)) {
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
        pay(bytes);
        self.paid_back.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Ends the tab: what is still charged, for whoever has it alone.
    pub(crate) fn close(&mut self) -> u64 {
        ahead(self.granted(), self.claimed.load(Ordering::Acquire))
    }
}

/// How far `total` is ahead of `other`; nothing where it is behind.
fn ahead(total: u64, other: u64) -> u64 {
    let difference = total.wrapping_sub(other);
    if difference.cast_signed() > 0 { difference } else { 0 }
}
