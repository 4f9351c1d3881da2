//! Waiting for one's turn without a thread of one's own.

use crate::book::Entry;
use crate::waiting::Request;
use crate::{Ledger, Priority, Reservation};
use bursar_core::{Bytes, Result};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A reservation whose turn will come. It joins the queue when it is first polled, needs no runtime, and leaves the queue
/// when it is dropped.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_ledger::{Ledger, Priority};
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
///
/// # fn main() -> bursar_core::Result<()> {
/// let ledger = Ledger::private(Bytes::gib(1));
/// let all = ledger.reserve(Bytes::gib(1))?;
/// let mut turn = pin!(ledger.reserve_async(Bytes::mib(1), Priority::NORMAL));
/// let mut context = Context::from_waker(Waker::noop());
/// assert!(turn.as_mut().poll(&mut context).is_pending());
/// drop(all);
/// assert!(turn.as_mut().poll(&mut context).is_ready());
/// # Ok(())
/// # }
/// ```
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct Reserving {
    ledger: Ledger,
    tenant: String,
    bytes: Bytes,
    priority: Priority,
    entry: Option<Entry>,
}

impl Reserving {
    pub(crate) const fn new(ledger: Ledger, tenant: String, bytes: Bytes, priority: Priority) -> Self {
        Self { ledger, tenant, bytes, priority, entry: None }
    }

    fn join(&self) -> Result<Entry> {
        let tenant = self.ledger.tenant(&self.tenant)?.node()?;
        self.ledger.inner.watch();
        self.ledger.inner.listen();
        self.ledger.join_queue(Request { tenant, bytes: self.bytes, priority: self.priority })
    }
}

impl Future for Reserving {
    type Output = Result<Reservation>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let entry = match self.entry {
            Some(entry) => entry,
            None => match self.join() {
                Ok(entry) => *self.entry.insert(entry),
                Err(error) => return Poll::Ready(Err(error)),
            },
        };
        if let Err(error) = self.ledger.inner.check() {
            return Poll::Ready(Err(error.into()));
        }
        // Entered before looking, so that a grant in between wakes it.
        self.ledger.inner.bell.remember(entry, context.waker(), self.ledger.probe.as_ref());
        if !self.ledger.inner.book.has_left_the_queue(entry) {
            return Poll::Pending;
        }
        self.ledger.inner.bell.forget(entry);
        self.entry = None;
        Poll::Ready(self.ledger.collect(entry))
    }
}

impl Drop for Reserving {
    fn drop(&mut self) {
        if let Some(entry) = self.entry
            && !self.ledger.inner.is_forked()
        {
            self.ledger.inner.bell.forget(entry);
            self.ledger.cancel(entry);
        }
    }
}
