//! Giving back what is borrowed when its owner asks.

use crate::book::Key;
use crate::inner::Inner;
use crate::patience::Patience;
use crate::{Ledger, LedgerError};
use bursar_core::Bytes;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

type Reclaim = dyn Fn(Bytes) -> Bytes + Send + Sync;
type Cached = dyn Fn() -> Bytes + Send + Sync;

/// Who in this process can give something back, and who knows what that might be.
#[derive(Default)]
pub(crate) struct Reclaimers {
    next: AtomicU64,
    reclaim: Mutex<Vec<(u64, Arc<Reclaim>)>>,
    cached: Mutex<Vec<(u64, Arc<Cached>)>>,
    /// The first panic of a callback or a waker.
    panic: Mutex<Option<String>>,
}

thread_local! {
    /// A callback that charges something must not be asked again for the same.
    static RECLAIMING: Cell<bool> = const { Cell::new(false) };
}

impl Reclaimers {
    /// Asks one after the other until `wanted` is given back; answers what was. Called with nothing locked.
    pub(crate) fn run(&self, wanted: Bytes) -> Bytes {
        if RECLAIMING.replace(true) {
            return Bytes::ZERO;
        }
        let callbacks = self.reclaim.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut given = Bytes::ZERO;
        for (_, reclaim) in callbacks {
            if given >= wanted {
                break;
            }
            let more = self.contained("a reclaim callback", || reclaim(wanted.saturating_sub(given)));
            given = given.saturating_add(more.unwrap_or(Bytes::ZERO));
        }
        RECLAIMING.set(false);
        given
    }

    /// What this process's pools hold without using it, as far as they say.
    pub(crate) fn cached(&self) -> Bytes {
        let callbacks = self.cached.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let told =
            callbacks.iter().filter_map(|(_, cached)| self.contained("a callback for what is cached", || cached()));
        told.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// Runs what a program gave us. A panic ends that alone: it is told, the first is kept, and nothing is returned.
    pub(crate) fn contained<T>(&self, what: &str, run: impl FnOnce() -> T) -> Option<T> {
        let caught = catch_unwind(AssertUnwindSafe(run));
        let text = match &caught {
            Ok(_) => return caught.ok(),
            Err(reason) => format!("{what} panicked: {}", words_of(&**reason)),
        };
        tracing::error!("{text}");
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
        // What was thrown may itself panic when dropped.
        std::mem::forget(caught);
        None
    }
}

/// The text of a panic, if it has one.
fn words_of(reason: &(dyn Any + Send)) -> &str {
    let text = reason.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| reason.downcast_ref::<&str>().copied()).unwrap_or("it said nothing")
}

impl fmt::Debug for Reclaimers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaimers").finish_non_exhaustive()
    }
}

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
        let reclaimers = &ledger.inner.reclaimers;
        let number = reclaimers.next.fetch_add(1, Ordering::Relaxed);
        reclaimers.reclaim.lock().unwrap_or_else(PoisonError::into_inner).push((number, reclaim));
        ledger.inner.listen();
        Self { inner: Arc::downgrade(&ledger.inner), number }
    }

    /// Also says what the pool holds without using it: that is [available](Ledger::available) to a newcomer.
    pub fn with_cached(self, cached: impl Fn() -> Bytes + Send + Sync + 'static) -> Self {
        if let Some(inner) = self.inner.upgrade() {
            let cached: Arc<Cached> = Arc::new(cached);
            inner.reclaimers.cached.lock().unwrap_or_else(PoisonError::into_inner).push((self.number, cached));
        }
        self
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            let is_other = |number: u64| number != self.number;
            inner.reclaimers.reclaim.lock().unwrap_or_else(PoisonError::into_inner).retain(|(n, _)| is_other(*n));
            inner.reclaimers.cached.lock().unwrap_or_else(PoisonError::into_inner).retain(|(n, _)| is_other(*n));
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
        self.inner.reclaimers.panic.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
