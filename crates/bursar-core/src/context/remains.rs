//! Memory that a dropped holder could not give back to the driver.
//!
//! A holder that is dropped gives back what it holds of the device. Where the driver fails, or work may still use the
//! memory, the rest is left to the context, which keeps it, counts it, and tries again: with every trim, before an
//! allocation is refused, and when the context is dropped. What is left keeps no context alive, so that the context is
//! dropped.

use super::DeviceContext;
use crate::{Bytes, DriverError, Status};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Memory or handles of a device that their holder could not give back before it was dropped.
///
/// ```
/// use bursar::Bytes;
/// use bursar::device::{DeviceContext, Remains};
/// use std::time::Duration;
///
/// #[derive(Debug)]
/// struct Nothing;
///
/// impl Remains for Nothing {
///     fn give_back(&mut self, _: &DeviceContext, _: Duration) -> Bytes {
///         Bytes::ZERO
///     }
///     fn bytes(&self) -> Bytes {
///         Bytes::ZERO
///     }
///     fn is_empty(&self) -> bool {
///         true
///     }
/// }
/// ```
pub trait Remains: fmt::Debug + Send {
    /// Gives back what the driver takes by now and returns how much device memory that was. Work that may still use it
    /// is waited for as long as it takes where `patience` is [`Duration::MAX`], and not at all otherwise. Failures are
    /// recorded in the context's fault.
    fn give_back(&mut self, context: &DeviceContext, patience: Duration) -> Bytes;

    /// Returns how much device memory is left.
    fn bytes(&self) -> Bytes;

    /// Returns whether nothing is left, neither memory nor handles.
    fn is_empty(&self) -> bool;
}

/// The number of attempts when the context is dropped, since a failure may be temporary.
const LAST_TRIES: u32 = 3;

/// The remains that one context keeps.
#[derive(Debug, Default)]
pub(super) struct RemainsList {
    all: Mutex<Vec<Box<dyn Remains>>>,
    /// True if something was left since everything was last given back.
    has_any: AtomicBool,
}

impl RemainsList {
    fn all(&self) -> MutexGuard<'_, Vec<Box<dyn Remains>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceContext {
    /// Takes over what a holder could not give back before it was dropped, if anything is left.
    pub fn leave(&self, remains: impl Remains + 'static) {
        if !remains.is_empty() {
            self.left.all().push(Box::new(remains));
            self.left.has_any.store(true, Relaxed);
        }
    }

    /// Returns how much device memory is held by the context alone: its holders were dropped, and the driver has not
    /// taken it back yet. [`trim`](Self::trim) tries again.
    pub fn left_behind(&self) -> Bytes {
        self.left.all().iter().fold(Bytes::ZERO, |sum, remains| sum.saturating_add(remains.bytes()))
    }

    /// Gives back what was left and can be given back by now; returns how much device memory that was.
    pub(super) fn give_back_remains(&self, patience: Duration) -> Bytes {
        let mut all = {
            let mut all = self.left.all();
            self.left.has_any.store(false, Relaxed);
            std::mem::take(&mut *all)
        };
        let mut given = Bytes::ZERO;
        for remains in &mut all {
            given = given.saturating_add(remains.give_back(self, patience));
        }
        all.retain(|remains| !remains.is_empty());
        if !all.is_empty() {
            self.left.all().append(&mut all);
            self.left.has_any.store(true, Relaxed);
        }
        given
    }

    /// Gives back what was left and can be given back by now, at the price of one load where nothing was left.
    pub fn retry_remains(&self) {
        if self.left.has_any.load(Relaxed) {
            self.give_back_remains(Duration::ZERO);
        }
    }

    /// Gives back everything that was left, when the context is dropped.
    pub(super) fn give_back_last_remains(&self) {
        for _ in 0..LAST_TRIES {
            if self.left.all().is_empty() {
                return;
            }
            self.give_back_remains(Duration::MAX);
        }
    }

    /// Asks the driver for memory and, where it has none, asks again after what was left behind has been given back.
    #[inline]
    pub(crate) fn ask_for_memory<T>(&self, ask: impl Fn() -> Result<T, DriverError>) -> Result<T, DriverError> {
        match ask() {
            Ok(granted) => Ok(granted),
            Err(error) => self.ask_again(error, ask),
        }
    }

    #[cold]
    fn ask_again<T>(&self, error: DriverError, ask: impl Fn() -> Result<T, DriverError>) -> Result<T, DriverError> {
        let has_more = error.status == Status::OutOfMemory && self.give_back_remains(Duration::ZERO) > Bytes::ZERO;
        if has_more { ask() } else { Err(error) }
    }
}
