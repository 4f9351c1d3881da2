//! Frees that the driver failed: kept, counted, and tried again.
//!
//! **A free never fails for its caller** unless the block or stream does not belong there, and then the block comes
//! back. A failure of the driver is recorded in the context's fault, so that the device's next fallible call reports
//! it.

use crate::stream::StreamHold;
use crate::{Bytes, DeviceContext, DriverError, Error, Remains, Result, Status, Stream, StreamMisuse};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A list of frees that the driver failed.
#[derive(Debug)]
pub(super) struct FailedFrees<T> {
    /// The number of them, those being tried included.
    count: AtomicUsize,
    items: Mutex<VecDeque<T>>,
}

impl<T> Default for FailedFrees<T> {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), items: Mutex::default() }
    }
}

/// A function that tries a free once more and returns how many bytes of the device's memory that gives back.
pub(super) type Free<T> = fn(&DeviceContext, &mut T) -> Result<Bytes, DriverError>;

/// The order that a free is made in.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeOrder {
    /// The stream that the free follows.
    pub(super) stream: Stream,
    /// The block's own stream, which `stream` is to come after.
    pub(super) home: Stream,
}

impl FreeOrder {
    /// Holds a stream that comes after both, and returns it. While a stream is being captured into a graph nothing is
    /// submitted to it, and that is the error.
    pub(super) fn hold<'a>(&self, context: &'a DeviceContext) -> Result<(Stream, StreamHold<'a>), DriverError> {
        let held = self.ordered(context).and_then(|stream| Ok((stream, context.hold_for_submitted_free(stream)?)));
        held.map_err(|error| {
            let status = match error {
                Error::StreamMisuse { why: StreamMisuse::Capturing, .. } => Status::Capturing,
                _ => Status::InvalidHandle,
            };
            error.driver_error().unwrap_or(DriverError::new("free", context.device(), status))
        })
    }

    fn ordered(&self, context: &DeviceContext) -> Result<Stream> {
        let stream = context.lasting(self.stream)?;
        if self.home != stream {
            context.order_after(self.home, stream)?;
        }
        Ok(stream)
    }
}

/// Returns whether an error is a failure of the driver, and not a stream that takes no free while it is captured.
fn is_failure(error: &DriverError) -> bool {
    error.status != Status::Capturing
}

/// The frees that were still failing when their leaf was dropped.
struct LeftFrees<T> {
    items: Vec<T>,
    free: Free<T>,
    bytes: fn(&T) -> u64,
}

impl<T: Send> Remains for LeftFrees<T> {
    fn give_back(&mut self, context: &DeviceContext, _: Duration) -> Bytes {
        let mut given = Bytes::ZERO;
        self.items.retain_mut(|item| match (self.free)(context, item) {
            Ok(bytes) => {
                given = given.saturating_add(bytes);
                false
            }
            Err(error) => {
                if is_failure(&error) {
                    context.fault().record(error);
                }
                true
            }
        });
        given
    }

    fn bytes(&self) -> Bytes {
        Bytes(self.items.iter().map(self.bytes).sum())
    }

    fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl<T> fmt::Debug for LeftFrees<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeftFrees").field("frees", &self.items.len()).finish_non_exhaustive()
    }
}

impl<T: Send + 'static> FailedFrees<T> {
    /// Tries every free once more and leaves the rest to the context, when the leaf is dropped.
    pub(super) fn leave(&mut self, context: &DeviceContext, free: Free<T>, bytes: fn(&T) -> u64) {
        let items = std::mem::take(self.items.get_mut().unwrap_or_else(PoisonError::into_inner));
        let mut left = LeftFrees { items: items.into(), free, bytes };
        left.give_back(context, Duration::ZERO);
        context.leave(left);
    }
}

impl<T> FailedFrees<T> {
    /// Keeps `item`, whose free failed with `error`, and has the device report that.
    #[cold]
    pub(super) fn keep(&self, context: &DeviceContext, item: T, error: DriverError) {
        context.fault().record(error);
        self.count.fetch_add(1, SeqCst);
        self.items().push_back(item);
    }

    /// Returns whether there are none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    fn items(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries each of them once more and returns how many bytes were released, as `free` counts them. Those that fail
    /// again stay, and the first failure is the error. Those whose stream is being captured into a graph stay too, and
    /// are no failure: they are tried again once it is not.
    #[inline]
    pub(super) fn retry(
        &self,
        context: &DeviceContext,
        free: impl Fn(&mut T) -> Result<Bytes, DriverError>,
    ) -> Result<Bytes> {
        if self.is_empty() { Ok(Bytes::ZERO) } else { self.retry_all(context, free) }
    }

    #[cold]
    fn retry_all(&self, context: &DeviceContext, free: impl Fn(&mut T) -> Result<Bytes, DriverError>) -> Result<Bytes> {
        let (mut released, mut failure) = (Bytes::ZERO, None);
        for _ in 0..self.count.load(SeqCst) {
            let Some(mut item) = self.items().pop_front() else { break };
            match free(&mut item) {
                Ok(bytes) => {
                    self.count.fetch_sub(1, SeqCst);
                    released = released.saturating_add(bytes);
                }
                Err(error) => {
                    self.items().push_back(item);
                    failure = failure.or(Some(error).filter(is_failure));
                }
            }
        }
        match failure {
            Some(error) => Err(context.failed(error)),
            None => Ok(released),
        }
    }
}
