//! Waits that a signal's handler ends, and that let other threads run.

use crate::failure::Failure;
use bursar::sync;
use pyo3::prelude::*;
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
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

/// Runs what waits for memory and streams by itself. A signal ends its waits as if their time were over; then the exception of the
/// signal's handler takes the place of what it returned.
pub(crate) fn until_signal<T: Send>(
    py: Python<'_>,
    run: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let (ran, raised) = py.detach(|| {
        let signals = Rc::new(Signals::default());
        let asked = signals.clone();
        let ran = sync::interruptible(move || asked.is_any(), run);
        (ran, signals.raised.take())
    });
    raised.map_or(ran, |raised| Err(raised.into()))
}

/// The signals of a thread that runs without the interpreter's lock.
#[derive(Default)]
struct Signals {
    looked: Cell<Option<Instant>>,
    raised: RefCell<Option<PyErr>>,
}

impl Signals {
    /// Runs the handlers of signals that have come, now and then, and returns whether one of them has raised an exception.
    fn is_any(&self) -> bool {
        let is_early = self.looked.get().is_some_and(|looked| looked.elapsed() < SIGNALS_EVERY);
        if self.raised.borrow().is_none() && !is_early {
            // An interpreter that ends has no handlers any more.
            let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
            *self.raised.borrow_mut() = raised;
            self.looked.set(Some(Instant::now()));
        }
        self.raised.borrow().is_some()
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
