//! Frees that the driver failed: kept, counted, and tried again.

use crate::{Bytes, DeviceContext, DriverError, Result};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// What could not be given back yet.
#[derive(Debug)]
pub(super) struct Stuck<T> {
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
        self.put(item);
    }

    fn put(&self, item: T) {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).push_back(item);
        self.count.fetch_add(1, Relaxed);
    }

    fn take(&self) -> Option<T> {
        let item = self.items.lock().unwrap_or_else(PoisonError::into_inner).pop_front()?;
        self.count.fetch_sub(1, Relaxed);
        Some(item)
    }

    /// Tries each free that is stuck once more; those that fail again stay, and the first failure is the answer.
    /// `free` answers how many bytes are released.
    #[inline]
    pub(super) fn retry(
        &self,
        context: &DeviceContext,
        free: impl Fn(T) -> Result<Bytes, DriverError>,
    ) -> Result<Bytes> {
        if self.count.load(Relaxed) == 0 { Ok(Bytes::ZERO) } else { self.retry_all(context, free) }
    }

    #[cold]
    fn retry_all(&self, context: &DeviceContext, free: impl Fn(T) -> Result<Bytes, DriverError>) -> Result<Bytes> {
        let (mut released, mut failure) = (Bytes::ZERO, None);
        for _ in 0..self.count.load(Relaxed) {
            let Some(item) = self.take() else { break };
            match free(item) {
                Ok(bytes) => released = released.saturating_add(bytes),
                Err(error) => {
                    self.put(item);
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
