//! Giving back what is borrowed when its owner asks.

use super::Ledger;
use crate::LedgerError;
use crate::attachment::{Inner, Patience, Reclaim};
use crate::book::Key;
use bursar_core::Bytes;
use std::sync::{Arc, Weak};

/// Keeps a callback registered until it is dropped.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_ledger::Ledger;
///
/// let ledger = Ledger::private(Bytes::gib(8));
/// let reclaimer = ledger.on_reclaim(|wanted| {
///     // Trim a pool, and say how much it gave back.
///     wanted
/// });
/// drop(reclaimer);
/// ```
#[must_use = "the callback is asked only while this is kept"]
#[derive(Debug)]
pub struct Reclaimer {
    inner: Weak<Inner>,
    number: u64,
}

impl Reclaimer {
    pub(crate) fn register(ledger: &Ledger, reclaim: Arc<Reclaim>) -> Self {
        let number = ledger.inner.reclaimers.register(reclaim);
        ledger.inner.listen();
        Self { inner: Arc::downgrade(&ledger.inner), number }
    }

    /// Also says what the pool holds without using it: that is [available](Ledger::available) to a newcomer.
    pub fn with_cached(self, cached: impl Fn() -> Bytes + Send + Sync + 'static) -> Self {
        if let Some(inner) = self.inner.upgrade() {
            inner.reclaimers.register_cached(self.number, Arc::new(cached));
        }
        self
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.reclaimers.unregister(self.number);
        }
    }
}

impl Ledger {
    /// The first panic of a reclaim callback, a callback that says what is cached, or a waker, in this process. Each is
    /// also told to `tracing`; it ends nothing but the call it came from.
    ///
    /// ```
    /// # use bursar_core::Bytes;
    /// assert_eq!(bursar_ledger::Ledger::private(Bytes::gib(1)).callback_panic(), None);
    /// ```
    pub fn callback_panic(&self) -> Option<String> {
        self.inner.reclaimers.first_panic()
    }

    /// Asks this process to give back what it borrows, as much as `bytes` more for `tenant` lack, if it may always have
    /// them. Answers whether something was given.
    pub(crate) fn reclaim_here(&self, tenant: usize, bytes: Bytes, patience: Patience) -> Result<bool, LedgerError> {
        let place = self.inner.book.place();
        let (asked, lacking) = self.inner.at_desk(patience, |desk| {
            let borrows = desk.borrowers().iter().any(|(borrower, _)| *borrower == place);
            (desk.is_owed(tenant, bytes.get()) && borrows, bytes.saturating_sub(Bytes(desk.room())))
        })?;
        if asked {
            // Whatever they say that they gave, the account decides.
            self.inner.reclaimers.run(lacking);
        }
        Ok(asked)
    }

    pub(crate) fn reclaim_for(&self, key: Key, bytes: Bytes) -> Result<bool, LedgerError> {
        let tenant = self.inner.at_desk(Patience::Usual, |desk| desk.tenant_of(key.node))?;
        self.reclaim_here(tenant, bytes, Patience::Usual)
    }
}
