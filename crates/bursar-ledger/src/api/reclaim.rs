//! Giving back what is borrowed when its owner asks.

use super::Ledger;
use crate::LedgerError;
use crate::attachment::{Attachment, LockWait, ReclaimCallback};
use crate::book::NodeKey;
use bursar_core::Bytes;
use std::sync::{Arc, Weak};

/// A registered reclaim callback. Dropping this removes it.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::Ledger;
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
    attachment: Weak<Attachment>,
    number: u64,
}

impl Reclaimer {
    pub(crate) fn register(ledger: &Ledger, reclaim: Arc<ReclaimCallback>) -> Self {
        let number = ledger.attachment.reclaimers.register(reclaim);
        ledger.attachment.start_listener();
        Self { attachment: Arc::downgrade(&ledger.attachment), number }
    }

    /// Adds a callback that returns the bytes that could be given back: these are [available](Ledger::available) to a newcomer.
    pub fn with_cached(self, cached: impl Fn() -> Bytes + Send + Sync + 'static) -> Self {
        if let Some(attachment) = self.attachment.upgrade() {
            attachment.reclaimers.register_cached(self.number, None, Arc::new(cached));
        }
        self
    }

    /// Adds a callback as [`with_cached`](Self::with_cached) does, about one `source`, a number of the caller's choice such as an
    /// address. Of several about one source only one is asked, so that nothing is added up twice.
    pub fn with_cached_of(self, source: usize, cached: impl Fn() -> Bytes + Send + Sync + 'static) -> Self {
        if let Some(attachment) = self.attachment.upgrade() {
            attachment.reclaimers.register_cached(self.number, Some(source), Arc::new(cached));
        }
        self
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        if let Some(attachment) = self.attachment.upgrade() {
            attachment.reclaimers.unregister(self.number);
        }
    }
}

impl Ledger {
    /// Returns the message of the first panic of a callback, a probe or a waker in this process. Each is also logged by
    /// `tracing`, and ends nothing but the call it came from.
    ///
    /// ```
    /// # use bursar::Bytes;
    /// assert_eq!(bursar::ledger::Ledger::private(Bytes::gib(1)).callback_panic(), None);
    /// ```
    pub fn callback_panic(&self) -> Option<String> {
        self.attachment.reclaimers.first_panic()
    }

    /// Asks the callbacks of this process, if it borrows, for what `tenant` lacks to have `bytes` more within its
    /// guarantee. Returns whether they were asked.
    pub(crate) fn reclaim_in_process(&self, tenant: usize, bytes: Bytes, wait: LockWait) -> Result<bool, LedgerError> {
        let slot = self.attachment.book.slot();
        let (asked, lacking) = self.attachment.with_lock(wait, |locked| {
            let borrows = locked.borrowers().iter().any(|(borrower, _)| *borrower == slot);
            (
                locked.is_within_guarantee(tenant, bytes.get()) && borrows,
                bytes.saturating_sub(Bytes(locked.available())),
            )
        })?;
        if asked {
            // Their return values are not relied on: the next try finds out.
            self.attachment.reclaimers.run(lacking);
        }
        Ok(asked)
    }

    pub(crate) fn reclaim_for(&self, key: NodeKey, bytes: Bytes) -> Result<bool, LedgerError> {
        let tenant = self.attachment.with_lock(LockWait::Usual, |locked| locked.tenant_of(key.node))?;
        self.reclaim_in_process(tenant, bytes, LockWait::Usual)
    }
}
