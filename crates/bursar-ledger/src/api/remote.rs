//! Asking other processes, and being asked.

use super::Ledger;
use crate::attachment::{self, Attachment, LockWait};
use crate::book::{AskRefusal, RequestKey, RequestState};
use crate::format::{Words, process};
use crate::remote::{RemoteError, RemoteReport, RemoteRequest, read_end};
use crate::system::Process;
use crate::{LedgerError, book};
use bursar_core::Result;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The interval at which whoever asks looks whether the process is alive and listens.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The longest time that the end of a request waits to be read before another is made, and the time between two looks.
const UNREAD_FOR: Duration = Duration::from_secs(1);
const LOOK_EVERY_UNREAD: Duration = Duration::from_millis(1);

/// The readiness of a process to be asked by others. Dropping it ends that.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::{Ledger, RemoteReport, RemoteRequest};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ledger = Ledger::private(Bytes::gib(8));
/// let listener = ledger.on_request(|request| match request {
///     RemoteRequest::Sleep { .. } => Ok(RemoteReport { moved: Bytes::gib(2), ..RemoteReport::default() }),
///     RemoteRequest::Wake { .. } => Ok(RemoteReport { was_so: true, ..RemoteReport::default() }),
/// });
///
/// // Another process would ask, by its own handle of the same ledger.
/// let patience = Duration::from_secs(10);
/// let call = ledger.ask(std::process::id(), RemoteRequest::Sleep { keep_place: false, patience })?;
/// let report = call.wait(patience).expect("it takes no time")?;
/// assert_eq!(report.moved, Bytes::gib(2));
/// # drop(listener);
/// # Ok(())
/// # }
/// ```
#[must_use = "the process is asked only while this is kept"]
#[derive(Debug)]
pub struct RemoteListener {
    attachment: Weak<Attachment>,
    number: u64,
}

impl Drop for RemoteListener {
    fn drop(&mut self) {
        if let Some(attachment) = self.attachment.upgrade() {
            attachment.unregister_requests(self.number);
        }
    }
}

/// A request to another process that is under way. Dropping it withdraws the request: one that the process has not taken is
/// gone, and a wait in the queue ends; what it has begun to move it finishes. Dropping waits for nobody: where the ledger's lock is
/// not available, whoever has it next withdraws the request.
///
/// ```
/// use bursar::ledger::{Ledger, RemoteError, RemoteReport, RemoteRequest};
/// use std::time::Duration;
///
/// fn sleep(ledger: &Ledger, pid: u32) -> Result<RemoteReport, RemoteError> {
///     let patience = Duration::from_secs(60);
///     let call = ledger.ask(pid, RemoteRequest::Sleep { keep_place: true, patience })?;
///     loop {
///         if let Some(ended) = call.wait(Duration::from_secs(1)) {
///             return ended;
///         }
///         println!("waiting for {pid}");
///     }
/// }
/// ```
#[must_use = "dropping a call withdraws it"]
#[derive(Debug)]
pub struct RemoteCall {
    ledger: Ledger,
    key: RequestKey,
    pid: u32,
    name: String,
}

impl RemoteCall {
    /// Waits until the request has ended, at most for `timeout`; `None` where it has not.
    pub fn wait(&self, timeout: Duration) -> Option<Result<RemoteReport, RemoteError>> {
        let attachment = &self.ledger.attachment;
        let (began, book) = (Instant::now(), &attachment.book);
        loop {
            let (at, word) = book.request_word(self.key);
            let left = timeout.saturating_sub(began.elapsed());
            if book::Book::<crate::storage::MappedWords>::is_under_way(self.key, word) && !left.is_zero() {
                book.words().wait(at, word, Some(left.min(LOOK_EVERY)));
            }
            let state = match attachment.with_lock(LockWait::Usual, |locked| locked.read_request(self.key)) {
                Ok(state) => state,
                Err(error) if error.is_lock_unavailable() && !left.is_zero() => continue,
                Err(error) => return Some(Err(error.into())),
            };
            match state {
                RequestState::Asked if book.peek_process(self.key.slot, process::LISTENS) == 0 => {
                    return Some(Err(RemoteError::NotListening { pid: self.pid, name: self.name.clone() }));
                }
                RequestState::Asked | RequestState::Taken if left.is_zero() => return None,
                RequestState::Asked | RequestState::Taken => {}
                RequestState::Ended(end) => return Some(read_end(end, self.pid, &self.name)),
                RequestState::Withdrawn => return Some(Err(RemoteError::Withdrawn { pid: self.pid })),
                RequestState::Overtaken => {
                    return Some(Err(RemoteError::Overtaken { pid: self.pid, name: self.name.clone() }));
                }
                RequestState::Gone => return Some(Err(RemoteError::Ended { pid: self.pid })),
            }
        }
    }

    /// Returns the name of the process.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Withdraws the request. Returns whether the process had not taken it, so that nothing has happened; otherwise
    /// [`wait`](Self::wait) tells whether it gave up too, with [`RemoteError::Withdrawn`], or had begun.
    pub fn withdraw(&self) -> Result<bool, LedgerError> {
        self.ledger.attachment.with_lock(LockWait::Usual, |locked| locked.withdraw_request(self.key))
    }
}

impl Drop for RemoteCall {
    fn drop(&mut self) {
        if !self.ledger.attachment.is_forked() {
            self.ledger.attachment.book.withdraw_request(self.key);
        }
    }
}

impl Ledger {
    /// Opens the ledger in a file that exists, shared by all processes that open it.
    ///
    /// ```no_run
    /// use bursar::ledger::Ledger;
    ///
    /// for file in Ledger::list()? {
    ///     println!("{:?}", Ledger::open_file(&file)?.subject());
    /// }
    /// # Ok::<(), bursar::ledger::LedgerError>(())
    /// ```
    pub fn open_file(file: &Path) -> Result<Self, LedgerError> {
        Ok(Self { attachment: attachment::open_existing(Process::this(), file)?, probe: None })
    }

    /// Has this process be asked by others to put its memory to sleep and to wake it. The callback runs on a thread of its
    /// own, one request at a time, and may take long; what several return is added up.
    pub fn on_request(
        &self,
        meet: impl Fn(RemoteRequest) -> Result<RemoteReport> + Send + Sync + 'static,
    ) -> RemoteListener {
        let number = self.attachment.register_requests(Arc::new(meet));
        self.attachment.start_listener();
        RemoteListener { attachment: Arc::downgrade(&self.attachment), number }
    }

    /// Returns whether nobody waits any more for the request that this thread meets, in a callback of
    /// [`on_request`](Self::on_request): it was withdrawn, or whoever made it has ended. A callback that has moved nothing returns
    /// an error then, whatever it is, and the request has not happened.
    ///
    /// ```
    /// use bursar::Bytes;
    /// use bursar::ledger::Ledger;
    ///
    /// assert!(!Ledger::private(Bytes::gib(8)).is_request_withdrawn(), "this thread meets none");
    /// ```
    pub fn is_request_withdrawn(&self) -> bool {
        self.attachment.is_given_up_now()
    }

    /// Asks the process of that number to put its memory to sleep, or to wake it. How the request before ended is left to whoever
    /// made it for a second.
    pub fn ask(&self, pid: u32, request: RemoteRequest) -> Result<RemoteCall, RemoteError> {
        self.attachment.check_usable()?;
        let (began, request) = (Instant::now(), request.in_words());
        loop {
            let overtakes = began.elapsed() >= UNREAD_FOR;
            let asked = self.attachment.with_lock(LockWait::Usual, |locked| {
                locked.reclaim_dead_processes();
                let (all, listening) = locked.processes_of(pid.into());
                match (all.as_slice(), listening.as_slice()) {
                    (&[], _) => Err(RemoteError::NotHere { pid }),
                    (&[slot, ..], &[]) | (_, &[slot]) => Ok((slot, locked.ask(slot, request, overtakes))),
                    (_, listening) => Err(RemoteError::Ambiguous { pid, count: listening.len() }),
                }
            })?;
            let (slot, asked) = asked?;
            let (_, name) = self.attachment.name_of(slot);
            match asked {
                Ok(key) => return Ok(RemoteCall { ledger: self.clone(), key, pid, name }),
                Err(AskRefusal::Gone) => return Err(RemoteError::Ended { pid }),
                Err(AskRefusal::NotListening) => return Err(RemoteError::NotListening { pid, name }),
                Err(AskRefusal::Busy) => return Err(RemoteError::Busy { pid, name }),
                Err(AskRefusal::Unread) => std::thread::sleep(LOOK_EVERY_UNREAD),
            }
        }
    }
}
