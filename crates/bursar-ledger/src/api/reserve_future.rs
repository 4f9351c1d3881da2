//! Waiting for one's turn without a thread of one's own.

use super::reserve::Request;
use super::{Ledger, Priority, Reservation, Tenant};
use crate::LedgerError;
use crate::attachment::{Patience, Unqueued};
use crate::book::Entry;
use bursar_core::{Bytes, Result};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

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
    /// Which taking of the lock was in the way, and since when.
    stuck: Option<(u64, Instant)>,
}

impl Reserving {
    pub(crate) const fn new(ledger: Ledger, tenant: String, bytes: Bytes, priority: Priority) -> Self {
        Self { ledger, tenant, bytes, priority, entry: None, stuck: None }
    }

    fn join(&self) -> Result<Entry, Unqueued> {
        let patience = Patience::poll(&self.ledger.inner);
        let tenant = Tenant::of(&self.ledger, &self.tenant, patience)?.key();
        self.ledger.inner.watch();
        self.ledger.inner.listen();
        self.ledger.join_queue(Request { tenant, bytes: self.bytes, priority: self.priority }, patience)
    }

    /// Goes on as far as it can without waiting for anybody.
    fn advance(&mut self, context: &Context<'_>) -> Result<Option<Reservation>, Unqueued> {
        let inner = &self.ledger.inner;
        inner.check()?;
        let entry = match self.entry {
            Some(entry) => entry,
            None => *self.entry.insert(self.join()?),
        };
        // Entered before looking, so that a grant in between wakes it.
        inner.bell.remember(entry, context.waker(), self.ledger.probe.as_ref(), &inner.book);
        if !inner.book.has_left_the_queue(entry) {
            return Ok(None);
        }
        inner.bell.forget(entry);
        let collected = self.ledger.collect(entry, Patience::poll(&self.ledger.inner));
        if !collected.as_ref().is_err_and(LedgerError::is_for_want_of_the_lock) {
            self.entry = None;
        }
        Ok(Some(collected?))
    }

    fn leave(&mut self) {
        if let Some(entry) = self.entry.take()
            && !self.ledger.inner.is_forked()
        {
            self.ledger.inner.bell.forget(entry);
            self.ledger.cancel(entry);
        }
    }
}

impl Future for Reserving {
    type Output = Result<Reservation>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let stuck = match self.advance(context) {
            Ok(advanced) => {
                self.stuck = None;
                return advanced.map_or(Poll::Pending, |reserved| Poll::Ready(Ok(reserved)));
            }
            Err(Unqueued::Stuck(stuck)) => stuck,
            Err(Unqueued::Refused(error)) => return Poll::Ready(Err(error)),
        };
        let taking = self.ledger.inner.book.takings();
        let since = match self.stuck {
            Some((seen, since)) if seen == taking => since,
            _ => self.stuck.insert((taking, Instant::now())).1,
        };
        if since.elapsed() >= self.ledger.inner.patience() {
            self.leave();
            return Poll::Ready(Err(stuck.into()));
        }
        self.ledger.inner.listen();
        self.ledger.inner.bell.try_later(context.waker(), &self.ledger.inner.book);
        Poll::Pending
    }
}

impl Drop for Reserving {
    fn drop(&mut self) {
        self.leave();
    }
}
