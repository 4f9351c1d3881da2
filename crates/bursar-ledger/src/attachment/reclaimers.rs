//! The callbacks by which a process gives back what it borrows.

use bursar_core::Bytes;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) type ReclaimCallback = dyn Fn(Bytes) -> Bytes + Send + Sync;
type CachedCallback = dyn Fn() -> Bytes + Send + Sync;

/// The source that callbacks speak of, by a number of their own: of several about one source, one is asked. Without a number, each
/// speaks of something else.
pub(crate) type CallbackSource = Option<usize>;

/// Leaves one callback of each source.
pub(crate) fn of_each_source<C>(callbacks: &mut Vec<C>, source: impl Fn(&C) -> CallbackSource) {
    let mut seen = Vec::new();
    callbacks.retain(|callback| match source(callback) {
        Some(source) if seen.contains(&source) => false,
        Some(source) => {
            seen.push(source);
            true
        }
        None => true,
    });
}

/// The callbacks of this process: those that give memory back, and those that say how much they could.
#[derive(Default)]
pub(crate) struct Reclaimers {
    next: AtomicU64,
    reclaim: Mutex<Vec<(u64, Arc<ReclaimCallback>)>>,
    cached: Mutex<Vec<(u64, CallbackSource, Arc<CachedCallback>)>>,
    /// The message of the first panic of a callback, a probe or a waker.
    panic: Mutex<Option<String>>,
}

thread_local! {
    /// True while callbacks run: one that charges something must not be called again for the same.
    static RECLAIMING: Cell<bool> = const { Cell::new(false) };
}

impl Reclaimers {
    /// Calls one callback after the other until `wanted` bytes are given back. Returns what was given back. Must be
    /// called with nothing locked.
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
            let more = self.catch_panic("a reclaim callback", || reclaim(wanted.saturating_sub(given)));
            given = given.saturating_add(more.unwrap_or(Bytes::ZERO));
        }
        RECLAIMING.set(false);
        given
    }

    /// Registers a callback and returns its number.
    pub(crate) fn register(&self, reclaim: Arc<ReclaimCallback>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.reclaim.lock().unwrap_or_else(PoisonError::into_inner).push((number, reclaim));
        number
    }

    /// Adds a callback that says what is cached, under the number of another callback.
    pub(crate) fn register_cached(&self, number: u64, source: CallbackSource, cached: Arc<CachedCallback>) {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner).push((number, source, cached));
    }

    /// Removes the callbacks of a number.
    pub(crate) fn unregister(&self, number: u64) {
        let is_other = |other: u64| other != number;
        self.reclaim.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| is_other(*other));
        self.cached.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, ..)| is_other(*other));
    }

    /// Returns the message of the first panic of a callback, a probe or a waker.
    pub(crate) fn first_panic(&self) -> Option<String> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the bytes that pools of this process could give back, according to their callbacks.
    pub(crate) fn cached(&self) -> Bytes {
        let mut callbacks = self.cached.lock().unwrap_or_else(PoisonError::into_inner).clone();
        of_each_source(&mut callbacks, |(_, source, _)| *source);
        let sizes =
            callbacks.iter().filter_map(|(.., cached)| self.catch_panic("a callback for what is cached", || cached()));
        sizes.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// Runs a function of the program. If it panics, the panic is logged, the first one is remembered, and `None` is
    /// returned.
    pub(crate) fn catch_panic<T>(&self, what: &str, run: impl FnOnce() -> T) -> Option<T> {
        let caught = catch_unwind(AssertUnwindSafe(run));
        let text = match &caught {
            Ok(_) => return caught.ok(),
            Err(reason) => format!("{what} panicked: {}", panic_message(&**reason)),
        };
        tracing::error!("{text}");
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
        // The payload of the panic may itself panic when dropped.
        std::mem::forget(caught);
        None
    }
}

/// Returns the message of a panic.
fn panic_message(reason: &(dyn Any + Send)) -> &str {
    let text = reason.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| reason.downcast_ref::<&str>().copied()).unwrap_or("(no message)")
}

impl fmt::Debug for Reclaimers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaimers").finish_non_exhaustive()
    }
}
