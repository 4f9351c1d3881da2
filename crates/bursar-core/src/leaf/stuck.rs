//! Frees that the driver failed: kept, counted, and tried again.

use crate::{Bytes, DeviceContext, DriverError, Result};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What could not be given back yet.
#[derive(Debug)]
pub(super) struct Stuck<T> {
    /// How many there are, those being tried included.
    count: AtomicUsize,
    items: Mutex<VecDeque<T>>,
}

impl<T> Default for Stuck<T> {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), items: Mutex::default() }
    }
}

impl<T: Copy> Stuck<T> {
    /// Keeps `item`, whose free failed with `error`, and has the device report that.
    #[cold]
    pub(super) fn keep(&self, context: &DeviceContext, item: T, error: DriverError) {
        context.fault().record(error);
        self.count.fetch_add(1, SeqCst);
        self.items().push_back(item);
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    fn items(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries each free that is stuck once more; those that fail again stay, and the first failure is the answer.
    /// `free` answers how many bytes are released.
    #[inline]
    pub(super) fn retry(
        &self,
        context: &DeviceContext,
        free: impl Fn(T) -> Result<Bytes, DriverError>,
    ) -> Result<Bytes> {
        if self.is_empty() { Ok(Bytes::ZERO) } else { self.retry_all(context, free) }
    }

    #[cold]
    fn retry_all(&self, context: &DeviceContext, free: impl Fn(T) -> Result<Bytes, DriverError>) -> Result<Bytes> {
        let (mut released, mut failure) = (Bytes::ZERO, None);
        for _ in 0..self.count.load(SeqCst) {
            let Some(item) = self.items().pop_front() else { break };
            match free(item) {
                Ok(bytes) => {
                    self.count.fetch_sub(1, SeqCst);
                    released = released.saturating_add(bytes);
                }
                Err(error) => {
                    self.items().push_back(item);
                    failure.get_or_insert(error);
                }
            }
        }
        match failure {
            Some(error) => Err(context.failed(error)),
            None => Ok(released),
        }
    }
}
