//! Callbacks that give back what is borrowed.

use bursar_core::Bytes;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) type Reclaim = dyn Fn(Bytes) -> Bytes + Send + Sync;
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

    /// Registers a callback and returns its number.
    pub(crate) fn register(&self, reclaim: Arc<Reclaim>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.reclaim.lock().unwrap_or_else(PoisonError::into_inner).push((number, reclaim));
        number
    }

    /// Adds the callback that says what is cached to that of a number.
    pub(crate) fn register_cached(&self, number: u64, cached: Arc<Cached>) {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner).push((number, cached));
    }

    /// Removes the callbacks of a number.
    pub(crate) fn unregister(&self, number: u64) {
        let is_other = |other: u64| other != number;
        self.reclaim.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| is_other(*other));
        self.cached.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| is_other(*other));
    }

    /// Returns the first panic of a callback or a waker.
    pub(crate) fn first_panic(&self) -> Option<String> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
