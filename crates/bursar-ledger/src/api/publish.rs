//! Publishing what a process uses of what it holds.

use super::Ledger;
use crate::LedgerError;
use crate::attachment::{Attachment, CallbackSource, LockWait, ProcessUsage, UsageCallback};
use crate::book::PublishedUsage;
use crate::system::now_ms;
use bursar_core::Bytes;
use std::sync::{Arc, Weak};

/// The publication of what a process uses. Dropping it withdraws what was published.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::{Ledger, ProcessUsage};
///
/// # fn main() -> Result<(), bursar::ledger::LedgerError> {
/// let ledger = Ledger::private(Bytes::gib(8));
/// let publisher = ledger.publish(|| ProcessUsage {
///     live: Some(Bytes::gib(2)),
///     holders: vec![("weights".to_owned(), Bytes::gib(2))],
///     ..ProcessUsage::default()
/// });
/// publisher.publish_now();
/// let usage = ledger.reading()?.processes[0].usage.clone().unwrap();
/// assert_eq!((usage.live, &*usage.holders[0].tag), (Bytes::gib(2), "weights"));
///
/// drop(publisher);
/// assert_eq!(ledger.reading()?.processes[0].usage, None);
/// # Ok(())
/// # }
/// ```
#[must_use = "what a process uses is published only while this is kept"]
#[derive(Debug)]
pub struct UsagePublisher {
    attachment: Weak<Attachment>,
    number: u64,
}

impl UsagePublisher {
    /// Publishes now, on this thread, instead of waiting for the next time. Does nothing where another process keeps the lock of
    /// the ledger.
    pub fn publish_now(&self) {
        if let Some(attachment) = self.attachment.upgrade() {
            attachment.publish_usage();
        }
    }
}

impl Drop for UsagePublisher {
    fn drop(&mut self) {
        if let Some(attachment) = self.attachment.upgrade() {
            attachment.withdraw_usage(self.number);
        }
    }
}

impl Ledger {
    /// Publishes what this process uses of what it holds, for those who watch: soon, and then once a second, what `usage`
    /// returns. It is called by a thread of the ledger and must not wait for long. What several say is added up.
    ///
    /// Nothing is published after the process has ended, and nothing of it stays: its usage goes with its place in the ledger.
    pub fn publish(&self, usage: impl Fn() -> ProcessUsage + Send + Sync + 'static) -> UsagePublisher {
        self.publish_from(None, Arc::new(usage))
    }

    /// Publishes as [`publish`](Self::publish) does what is used of one `source`, a number of the caller's choice such as an
    /// address. Of several about one source only one is asked, so that nothing is added up twice.
    ///
    /// ```
    /// use bursar::Bytes;
    /// use bursar::ledger::{Ledger, ProcessUsage};
    ///
    /// let ledger = Ledger::private(Bytes::gib(8));
    /// let usage = || ProcessUsage { live: Some(Bytes::gib(2)), ..ProcessUsage::default() };
    /// let publishers = [7, 7, 8].map(|source| ledger.publish_of(source, usage));
    /// publishers[0].publish_now();
    /// assert_eq!(ledger.reading()?.processes[0].usage.clone().unwrap().live, Bytes::gib(4));
    /// # Ok::<(), bursar::ledger::LedgerError>(())
    /// ```
    pub fn publish_of(
        &self,
        source: usize,
        usage: impl Fn() -> ProcessUsage + Send + Sync + 'static,
    ) -> UsagePublisher {
        self.publish_from(Some(source), Arc::new(usage))
    }

    fn publish_from(&self, source: CallbackSource, usage: Arc<UsageCallback>) -> UsagePublisher {
        let number = self.attachment.publishers.register(source, usage);
        self.attachment.start_listener();
        self.attachment.wakeups.wake_listener(&self.attachment.book);
        UsagePublisher { attachment: Arc::downgrade(&self.attachment), number }
    }

    /// Says that what this process holds in the ledger is what it uses, for programs whose blocks are charged one by one. Readings
    /// show it as it is at their moment, with the most that [`note_peak`](Self::note_peak) was told.
    ///
    /// ```
    /// use bursar::Bytes;
    /// use bursar::ledger::Ledger;
    /// use bursar::memory::Account;
    ///
    /// # fn main() -> bursar::Result<()> {
    /// let ledger = Ledger::private(Bytes::gib(8));
    /// let account = ledger.account()?;
    /// ledger.publish_held()?;
    /// account.charge(Bytes::gib(3))?;
    /// ledger.note_peak(Bytes::gib(3));
    /// account.release(Bytes::gib(1));
    /// let usage = ledger.reading()?.processes[0].usage.clone().unwrap();
    /// assert_eq!((usage.live, usage.peak), (Bytes::gib(2), Bytes::gib(3)));
    /// # account.release(Bytes::gib(2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn publish_held(&self) -> Result<(), LedgerError> {
        self.attachment.check_usable()?;
        let all = PublishedUsage { when: now_ms(), ..PublishedUsage::default() };
        self.attachment.with_lock(LockWait::Usual, |locked| locked.publish_usage(&all))
    }

    /// Takes note that this process, which [publishes what it holds](Self::publish_held), has held so much at a time. Costs one
    /// store, and the caller sees to it that the number only grows.
    pub fn note_peak(&self, bytes: Bytes) {
        if !self.attachment.is_forked() {
            self.attachment.book.publish_peak(bytes.get());
        }
    }
}
