//! The arithmetic of a quota: one amount that threads share without meeting on one cache line.
//!
//! The rest of the limit lies in one account and, in small amounts, in the credits of the threads that used it last. A
//! thread pays from its own credit and puts what it gets back there. Only where that does not suffice does it go to the
//! account, and before anyone is refused every credit is called in: so the decision is made on everything that is left,
//! to the byte.

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
const THREADS: usize = 64;
#[cfg(loom)]
const THREADS: usize = 2;

/// The credit of a thread, on a cache line of its own. Threads beyond the first sixty-four share.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ThreadCredit(AtomicU64);

/// The rest of a limit.
#[derive(Debug)]
pub(crate) struct Credit {
    account: Mutex<CreditAccount>,
    threads: [ThreadCredit; THREADS],
}

#[derive(Debug)]
struct CreditAccount {
    limit: u64,
    /// The amount that nobody uses and no thread has as credit; below zero after the limit was lowered under what is in
    /// use.
    left: i128,
}

/// The amount that was left, and the limit, when a payment was refused or the credit was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Balance {
    pub(crate) left: u64,
    pub(crate) limit: u64,
}

impl Credit {
    pub(crate) fn new(limit: u64) -> Self {
        let account = Mutex::new(CreditAccount { limit, left: i128::from(limit) });
        Self { account, threads: std::array::from_fn(|_| ThreadCredit::default()) }
    }

    fn account(&self) -> MutexGuard<'_, CreditAccount> {
        #[cfg(not(loom))]
        return self.account.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        #[cfg(loom)]
        return self.account.lock().expect("no panic");
    }

    #[inline]
    fn of_thread(&self, thread: usize) -> &AtomicU64 {
        &self.threads[thread % THREADS].0
    }

    /// Pays `amount`, or refuses on the strength of everything that is left.
    #[inline]
    pub(crate) fn pay(&self, thread: usize, amount: u64) -> Result<(), Balance> {
        let own = self.of_thread(thread);
        let mut credit = own.load(Ordering::Relaxed);
        while credit >= amount {
            match own.compare_exchange_weak(credit, credit - amount, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => credit = now,
            }
        }
        self.withdraw(thread, amount)
    }

    /// Pays `amount` from the account, and takes some credit for the thread besides.
    #[cold]
    fn withdraw(&self, thread: usize, amount: u64) -> Result<(), Balance> {
        let mut account = self.account();
        if account.left < i128::from(amount) {
            account.left += self.call_in();
        }
        if account.left < i128::from(amount) {
            return Err(Balance { left: u64::try_from(account.left).unwrap_or(0), limit: account.limit });
        }
        account.left -= i128::from(amount);
        let credit = thread_credit(account.limit).min(u64::try_from(account.left).unwrap_or(0) / 2);
        account.left -= i128::from(credit);
        self.of_thread(thread).fetch_add(credit, Ordering::AcqRel);
        Ok(())
    }

    /// Puts `amount` back.
    #[inline]
    pub(crate) fn refund(&self, thread: usize, amount: u64) {
        let held = self.of_thread(thread).fetch_add(amount, Ordering::AcqRel).wrapping_add(amount);
        if held > 1 << LEAST_CREDIT_SHIFT {
            self.deposit(thread, held);
        }
    }

    /// Puts a thread's credit into the account if it is more than a thread should have.
    #[cold]
    fn deposit(&self, thread: usize, held: u64) {
        let mut account = self.account();
        if held > 2 * thread_credit(account.limit) {
            account.left += i128::from(self.of_thread(thread).swap(0, Ordering::AcqRel));
        }
    }

    /// Takes the credit of every thread and returns the sum.
    fn call_in(&self) -> i128 {
        self.threads.iter().map(|thread| i128::from(thread.0.swap(0, Ordering::AcqRel))).sum()
    }

    /// Calls in every credit and returns the limit and what is left of it.
    pub(crate) fn balance(&self) -> Balance {
        let mut account = self.account();
        account.left += self.call_in();
        Balance { left: u64::try_from(account.left).unwrap_or(0), limit: account.limit }
    }

    /// Calls in every credit and returns the limit and what is used, which may be more.
    pub(crate) fn reading(&self) -> (u64, u64) {
        let mut account = self.account();
        account.left += self.call_in();
        let used = u64::try_from(i128::from(account.limit) - account.left).unwrap_or(0);
        (account.limit, used)
    }

    /// Changes the limit. Below what is in use it refuses everything until enough has come back.
    pub(crate) fn set_limit(&self, limit: u64) {
        let mut account = self.account();
        account.left += self.call_in() + i128::from(limit) - i128::from(account.limit);
        account.limit = limit;
    }
}

/// The power of two below which a credit is never worth taking the account's lock.
const LEAST_CREDIT_SHIFT: u32 = 16;

/// Returns how much credit a thread may have: little enough that all threads together have a fraction of the limit.
fn thread_credit(limit: u64) -> u64 {
    (limit / (THREADS as u64 * 8)).max(1 << LEAST_CREDIT_SHIFT).min(limit / THREADS as u64)
}
