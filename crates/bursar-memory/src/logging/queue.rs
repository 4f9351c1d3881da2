//! The queue between the threads that record and the writer.

use super::entry::Entry;
use crossbeam_queue::ArrayQueue;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The writer is taking records, or polls within a millisecond.
const AWAKE: u8 = 0;
/// The writer sleeps until it is woken.
const ASLEEP: u8 = 1;
/// The writer has exited: whoever pushes a record takes it out again.
const EXITED: u8 = 2;

/// The longest that the writer sleeps without being woken. Wake-ups are not lost unless the processor reorders an
/// unsynchronised store and load, and then this is how late the writer is.
const SLEEP: Duration = Duration::from_millis(100);

/// A bounded queue of records, one for all threads, so that it is in the order in which records were pushed:
/// a record that was pushed before another, on whichever threads, comes out before it. A push is one
/// compare-and-swap and a copy; it takes no lock, allocates nothing and calls nobody (but for waking a writer that has
/// been idle), and where there is no room the record is dropped and counted.
pub(super) struct Queue {
    entries: ArrayQueue<Entry>,
    state: AtomicU8,
    dropped: AtomicU64,
    written: AtomicU64,
    writer: OnceLock<Thread>,
    last_error: Mutex<Option<Arc<io::Error>>>,
    requests: Mutex<Requests>,
    completed: Condvar,
}

/// The requests of the handles to the writer, and the ones it has completed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Requests {
    flushes_requested: u64,
    flushes_done: u64,
    pub(super) close: bool,
    exited: bool,
}

impl Requests {
    /// Returns whether everything should be written out now.
    pub(super) const fn any(&self) -> bool {
        self.close || self.flushes_requested > self.flushes_done
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("waiting", &self.entries.len()).finish_non_exhaustive()
    }
}

impl Queue {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            entries: ArrayQueue::new(capacity),
            state: AtomicU8::new(AWAKE),
            dropped: AtomicU64::new(0),
            written: AtomicU64::new(0),
            writer: OnceLock::new(),
            last_error: Mutex::default(),
            requests: Mutex::default(),
            completed: Condvar::new(),
        }
    }

    /// Pushes a record for the writer, or drops it.
    #[inline]
    pub(super) fn push(&self, entry: Entry) {
        if self.entries.push(entry).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
        if self.state.load(Relaxed) != AWAKE {
            self.notify();
        }
    }

    #[cold]
    fn notify(&self) {
        if self.state.load(Relaxed) == EXITED {
            self.sweep();
        } else if self.state.compare_exchange(ASLEEP, AWAKE, Relaxed, Relaxed).is_ok() {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }

    /// Drops what was pushed for a writer that has exited.
    fn sweep(&self) {
        while self.entries.pop().is_some() {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn dropped(&self) -> u64 {
        if self.state.load(Relaxed) == EXITED {
            self.sweep();
        }
        self.dropped.load(Relaxed)
    }

    pub(super) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    pub(super) fn last_error(&self) -> Option<Arc<io::Error>> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until everything pushed so far is written or dropped; returns `false` where that takes longer than
    /// `patience`.
    pub(super) fn flush(&self, patience: Duration) -> bool {
        let mut requests = self.lock();
        requests.flushes_requested += 1;
        let mine = requests.flushes_requested;
        self.wait(requests, patience, |requests| requests.exited || requests.flushes_done >= mine)
    }

    /// Has the writer exit once everything pushed so far is written or dropped, and waits until it has; returns `false`
    /// where that takes longer than `patience`.
    pub(super) fn close(&self, patience: Duration) -> bool {
        let mut requests = self.lock();
        requests.close = true;
        self.wait(requests, patience, |requests| requests.exited)
    }

    fn wait(
        &self,
        mut requests: MutexGuard<'_, Requests>,
        patience: Duration,
        met: impl Fn(&Requests) -> bool,
    ) -> bool {
        self.wake();
        let since = Instant::now();
        while !met(&requests) {
            let Some(left) = patience.checked_sub(since.elapsed()) else { return false };
            (requests, _) = self.completed.wait_timeout(requests, left).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

/// The writer's side.
impl Queue {
    /// Sets the thread that takes records out.
    pub(super) fn set_writer(&self, writer: &Thread) {
        self.writer.get_or_init(|| writer.clone());
    }

    pub(super) fn take(&self) -> Option<Entry> {
        self.entries.pop()
    }

    /// Returns how many records are here. Everything pushed before is among them; one that is being pushed may be too.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    pub(super) fn requests(&self) -> Requests {
        *self.lock()
    }

    /// Completes the requests that were there when `requests` was read.
    pub(super) fn complete(&self, requests: Requests) {
        let mut now = self.lock();
        now.flushes_done = now.flushes_done.max(requests.flushes_requested);
        self.completed.notify_all();
    }

    pub(super) fn count_written(&self, records: u64) {
        self.written.fetch_add(records, Relaxed);
    }

    pub(super) fn count_lost(&self, records: u64, error: io::Error) {
        self.dropped.fetch_add(records, Relaxed);
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(error));
    }

    /// Sleeps until a record is pushed or there is a request.
    pub(super) fn sleep(&self) {
        self.state.store(ASLEEP, Relaxed);
        if self.entries.is_empty() && !self.requests().any() {
            std::thread::park_timeout(SLEEP);
        }
        self.state.store(AWAKE, Relaxed);
    }

    /// Marks the writer as gone for good.
    pub(super) fn exit(&self) {
        self.state.store(EXITED, Relaxed);
        self.lock().exited = true;
        self.completed.notify_all();
    }
}
