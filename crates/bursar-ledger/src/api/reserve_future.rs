//! The future that waits for a reservation.

use super::reserve::{QueuedRequest, ReserveRequest};
use super::{Ledger, Reservation, ReserveOptions, Tenant};
use crate::LedgerError;
use crate::attachment::{LockWait, TryError};
use bursar_core::{Bytes, Result};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

/// A future that resolves to a reservation when its turn comes. It joins the queue when it is first polled, needs no
/// runtime, and leaves the queue when it is dropped.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::{Ledger, Priority};
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
///
/// # fn main() -> bursar::Result<()> {
/// let ledger = Ledger::private(Bytes::gib(1));
/// let all = ledger.reserve(Bytes::gib(1))?;
/// let mut future = pin!(ledger.reserve_async(Bytes::mib(1), Priority::NORMAL));
/// let mut context = Context::from_waker(Waker::noop());
/// assert!(future.as_mut().poll(&mut context).is_pending());
/// drop(all);
/// assert!(future.as_mut().poll(&mut context).is_ready());
/// # Ok(())
/// # }
/// ```
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct ReserveFuture {
    ledger: Ledger,
    tenant: String,
    bytes: Bytes,
    options: ReserveOptions,
    queued: Option<QueuedRequest>,
    /// The acquisition of the lock that was in the way, and since when.
    stuck: Option<(u64, Instant)>,
}

impl ReserveFuture {
    pub(crate) const fn new(ledger: Ledger, tenant: String, bytes: Bytes, options: ReserveOptions) -> Self {
        Self { ledger, tenant, bytes, options, queued: None, stuck: None }
    }

    /// Leaves the queue, and reserves at once or refuses. A request that was in the queue is refused as one whose time ran out. The
    /// lock is waited for no longer than a deadline that has passed allows, so that a stopped process which has it delays nobody.
    ///
    /// ```
    /// use bursar::Bytes;
    /// use bursar::ledger::{Ledger, Priority};
    ///
    /// # fn main() -> bursar::Result<()> {
    /// let ledger = Ledger::private(Bytes::gib(1));
    /// let all = ledger.reserve_async(Bytes::gib(1), Priority::NORMAL).now()?;
    /// assert!(ledger.reserve_async(Bytes(1), Priority::NORMAL).now().unwrap_err().is_capacity());
    /// # drop(all);
    /// # Ok(())
    /// # }
    /// ```
    pub fn now(self) -> Result<Reservation> {
        self.now_with(|| false)
    }

    /// Reserves as [`now`](Self::now) does. One that was in no queue, and that there is no room for, calls `make_room` before it is
    /// refused, and tries once more if that returns true; it counts as refused only then.
    ///
    /// ```
    /// use bursar::Bytes;
    /// use bursar::ledger::{Ledger, Priority};
    ///
    /// # fn main() -> bursar::Result<()> {
    /// let ledger = Ledger::private(Bytes::gib(1));
    /// let mut cached = Some(ledger.reserve(Bytes::gib(1))?);
    /// ledger.reserve_async(Bytes::gib(1), Priority::NORMAL).now_with(|| cached.take().is_some())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn now_with(mut self, make_room: impl FnOnce() -> bool) -> Result<Reservation> {
        let (attachment, wait) = (&self.ledger.attachment, LockWait::deadline(Instant::now()));
        attachment.check_usable()?;
        if let Some(queued) = self.queued.take() {
            attachment.wakeups.unregister(queued.entry);
            return self.ledger.end_wait(queued, self.bytes, &self.options, wait);
        }
        let tenant = Tenant::find_or_make(&self.ledger, &self.tenant, wait)?.key();
        let request = ReserveRequest { tenant, bytes: self.bytes, options: &self.options };
        self.ledger.reserve_now(request, wait, make_room)
    }

    fn join(&self) -> Result<QueuedRequest, TryError> {
        let wait = LockWait::poll(&self.ledger.attachment);
        let tenant = Tenant::find_or_make(&self.ledger, &self.tenant, wait)?.key();
        self.ledger.attachment.start_watcher();
        self.ledger.attachment.start_listener();
        self.ledger.join_queue(ReserveRequest { tenant, bytes: self.bytes, options: &self.options }, wait)
    }

    /// Goes on as far as it can without blocking.
    fn advance(&mut self, context: &Context<'_>) -> Result<Option<Reservation>, TryError> {
        let attachment = &self.ledger.attachment;
        attachment.check_usable()?;
        let queued = match self.queued {
            Some(queued) => queued,
            None => *self.queued.insert(self.join()?),
        };
        let entry = queued.entry;
        // Registered before the state is read, so that a grant in between wakes it.
        attachment.wakeups.register(entry, context.waker(), self.ledger.probe.as_ref(), &attachment.book);
        if !attachment.book.has_left_queue(entry) {
            return Ok(None);
        }
        attachment.wakeups.unregister(entry);
        let collected = self.ledger.take_grant(entry, &self.options.label, LockWait::poll(&self.ledger.attachment));
        if !collected.as_ref().is_err_and(LedgerError::is_lock_unavailable) {
            self.queued = None;
            self.ledger.count_wait(queued);
        }
        Ok(Some(collected?))
    }

    fn leave(&mut self) {
        if let Some(queued) = self.queued.take()
            && !self.ledger.attachment.is_forked()
        {
            self.ledger.attachment.wakeups.unregister(queued.entry);
            self.ledger.cancel(queued);
        }
    }
}

impl Future for ReserveFuture {
    type Output = Result<Reservation>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let stuck = match self.advance(context) {
            Ok(advanced) => {
                self.stuck = None;
                return advanced.map_or(Poll::Pending, |reserved| Poll::Ready(Ok(reserved)));
            }
            Err(TryError::LockUnavailable(stuck)) => stuck,
            Err(TryError::Failed(error)) => return Poll::Ready(Err(error)),
        };
        let acquisition = self.ledger.attachment.book.acquisitions();
        let since = match self.stuck {
            Some((seen, since)) if seen == acquisition => since,
            _ => self.stuck.insert((acquisition, Instant::now())).1,
        };
        if since.elapsed() >= self.ledger.attachment.lock_timeout() {
            self.leave();
            return Poll::Ready(Err(stuck.into()));
        }
        self.ledger.attachment.start_listener();
        self.ledger.attachment.wakeups.retry_later(context.waker(), &self.ledger.attachment.book);
        Poll::Pending
    }
}

impl Drop for ReserveFuture {
    fn drop(&mut self) {
        self.leave();
    }
}
