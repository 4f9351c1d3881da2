//! Waits that a signal's handler ends, and that let other threads run.

use crate::failure::Failure;
use pyo3::prelude::*;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The longest that a thread sleeps before it looks for signals.
pub(crate) const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Wakes the thread that waits.
struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future. The exception of a signal's handler ends that, and drops the future.
pub(crate) fn complete<F>(py: Python<'_>, future: F) -> Result<F::Output, Failure>
where
    F: Future + Send,
    F::Output: Send,
{
    let mut future = pin!(future);
    let waker = Arc::new(Unparks(std::thread::current())).into();
    loop {
        let future = future.as_mut();
        let polled = py.detach(|| match future.poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => {
                std::thread::park_timeout(SIGNALS_EVERY);
                None
            }
        });
        match polled {
            Some(output) => return Ok(output),
            None => py.check_signals()?,
        }
    }
}

/// Has `attempt`, which waits for at most as long as it is told, try until it returns something or so many seconds have passed.
/// The exception of a signal's handler ends that.
pub(crate) fn retry<T: Send>(
    py: Python<'_>,
    seconds: f64,
    attempt: impl Fn(Duration) -> Option<T> + Sync,
) -> Result<Option<T>, Failure> {
    // More seconds than a duration has are as good as no end.
    let patience = Duration::try_from_secs_f64(seconds.max(0.0)).ok();
    let ends = patience.and_then(|patience| Instant::now().checked_add(patience));
    loop {
        let left = ends.map_or(SIGNALS_EVERY, |ends| ends.saturating_duration_since(Instant::now()));
        if let Some(done) = py.detach(|| attempt(left.min(SIGNALS_EVERY))) {
            return Ok(Some(done));
        }
        if left.is_zero() {
            return Ok(None);
        }
        py.check_signals()?;
    }
}
