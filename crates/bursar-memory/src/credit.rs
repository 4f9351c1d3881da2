//! The core of a quota: one amount that threads share without meeting.
//!
//! What is left of the limit lies in one account and, in small change, with the threads that used it last. A thread pays from
//! its own change and puts what it gets back there. Only where that does not reach does it go to the account, and before
//! anyone is refused all change is called in: so the decision is made on everything that is left, to the byte.

#[cfg(loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

#[cfg(not(loom))]
const POCKETS: usize = 64;
#[cfg(loom)]
const POCKETS: usize = 2;

/// A thread's change, on a line of its own. Threads beyond the first sixty-four share.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Pocket(AtomicU64);

/// What is left of a limit.
#[derive(Debug)]
pub(crate) struct Credit {
    account: Mutex<Account>,
    pockets: [Pocket; POCKETS],
}

#[derive(Debug)]
struct Account {
    limit: u64,
    /// What nobody uses and no pocket holds; below zero after the limit was lowered under what is in use.
    left: i128,
}

/// What was left, and of what limit, when a payment was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    pub(crate) left: u64,
    pub(crate) limit: u64,
}

impl Credit {
    pub(crate) fn new(limit: u64) -> Self {
        let account = Mutex::new(Account { limit, left: i128::from(limit) });
        Self { account, pockets: std::array::from_fn(|_| Pocket::default()) }
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        #[cfg(not(loom))]
        return self.account.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        #[cfg(loom)]
        return self.account.lock().expect("no panic");
    }

    #[inline]
    fn pocket(&self, thread: usize) -> &AtomicU64 {
        &self.pockets[thread % POCKETS].0
    }

    /// Pays `amount`, or refuses on the strength of everything that is left.
    #[inline]
    pub(crate) fn pay(&self, thread: usize, amount: u64) -> Result<(), Short> {
        let pocket = self.pocket(thread);
        let mut change = pocket.load(Ordering::Relaxed);
        while change >= amount {
            match pocket.compare_exchange_weak(change, change - amount, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => change = now,
            }
        }
        self.withdraw(thread, amount)
    }

    #[cold]
    fn withdraw(&self, thread: usize, amount: u64) -> Result<(), Short> {
        let mut account = self.account();
        if account.left < i128::from(amount) {
            account.left += self.call_in();
        }
        if account.left < i128::from(amount) {
            return Err(Short { left: u64::try_from(account.left).unwrap_or(0), limit: account.limit });
        }
        account.left -= i128::from(amount);
        let change = change(account.limit).min(u64::try_from(account.left).unwrap_or(0) / 2);
        account.left -= i128::from(change);
        self.pocket(thread).fetch_add(change, Ordering::AcqRel);
        Ok(())
    }

    /// Puts `amount` back.
    #[inline]
    pub(crate) fn refund(&self, thread: usize, amount: u64) {
        let held = self.pocket(thread).fetch_add(amount, Ordering::AcqRel).wrapping_add(amount);
        if held > 1 << CHANGE_SHIFT {
            self.deposit(thread, held);
        }
    }

    /// Puts what is more than small change into the account.
    #[cold]
    fn deposit(&self, thread: usize, held: u64) {
        let mut account = self.account();
        if held > 2 * change(account.limit) {
            account.left += i128::from(self.pocket(thread).swap(0, Ordering::AcqRel));
        }
    }

    fn call_in(&self) -> i128 {
        self.pockets.iter().map(|pocket| i128::from(pocket.0.swap(0, Ordering::AcqRel))).sum()
    }

    /// The limit, and what is left of it.
    pub(crate) fn read(&self) -> Short {
        let mut account = self.account();
        account.left += self.call_in();
        Short { left: u64::try_from(account.left).unwrap_or(0), limit: account.limit }
    }

    /// Changes the limit. Below what is in use it refuses everything until enough has come back.
    pub(crate) fn set_limit(&self, limit: u64) {
        let mut account = self.account();
        account.left += self.call_in() + i128::from(limit) - i128::from(account.limit);
        account.limit = limit;
    }
}

/// Less than this is never worth a walk to the account.
const CHANGE_SHIFT: u32 = 16;

/// How much a thread may hold: little enough that all of them together hold a fraction of the limit.
fn change(limit: u64) -> u64 {
    (limit / (POCKETS as u64 * 8)).max(1 << CHANGE_SHIFT).min(limit / POCKETS as u64)
}
