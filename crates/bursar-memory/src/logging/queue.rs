//! What the recording threads and the writer share.

use super::entry::Entry;
use crossbeam_queue::ArrayQueue;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The writer takes what there is, or will look by itself within a millisecond.
const AWAKE: u8 = 0;
/// The writer sleeps until it is called.
const ASLEEP: u8 = 1;
/// The writer has gone: whoever leaves something here takes it out again.
const GONE: u8 = 2;

/// The longest the writer sleeps without a call. Calls are not lost unless the processor reorders an unsynchronised
/// store and load, and then this is how late the writer is.
const SLEEP: Duration = Duration::from_millis(100);

/// A bounded queue of records with one place for all threads, so that it is in the order in which records were offered:
/// a record that was offered before another, on whichever threads, comes out before it. Offering is one
/// compare-and-swap and a copy; it takes no lock, allocates nothing and calls nobody (but for waking a writer that has
/// been idle), and where there is no room the record is dropped and counted.
pub(super) struct Queue {
    entries: ArrayQueue<Entry>,
    state: AtomicU8,
    dropped: AtomicU64,
    written: AtomicU64,
    writer: OnceLock<Thread>,
    last_error: Mutex<Option<Arc<io::Error>>>,
    wishes: Mutex<Wishes>,
    granted: Condvar,
}

/// What the handles want of the writer, and what it has done of that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wishes {
    flushes_wanted: u64,
    flushes_done: u64,
    pub(super) close: bool,
    gone: bool,
}

impl Wishes {
    /// Whether what there is should be written out now.
    pub(super) const fn any(&self) -> bool {
        self.close || self.flushes_wanted > self.flushes_done
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
            wishes: Mutex::default(),
            granted: Condvar::new(),
        }
    }

    /// Leaves a record for the writer, or drops it.
    #[inline]
    pub(super) fn offer(&self, entry: Entry) {
        if self.entries.push(entry).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
        if self.state.load(Relaxed) != AWAKE {
            self.call();
        }
    }

    #[cold]
    fn call(&self) {
        if self.state.load(Relaxed) == GONE {
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

    /// Drops what was left for a writer that has gone.
    fn sweep(&self) {
        while self.entries.pop().is_some() {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn dropped(&self) -> u64 {
        if self.state.load(Relaxed) == GONE {
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

    fn lock(&self) -> MutexGuard<'_, Wishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until everything offered so far is written or dropped; `false` where that takes longer than `patience`.
    pub(super) fn flush(&self, patience: Duration) -> bool {
        let mut wishes = self.lock();
        wishes.flushes_wanted += 1;
        let mine = wishes.flushes_wanted;
        self.wait(wishes, patience, |wishes| wishes.gone || wishes.flushes_done >= mine)
    }

    /// Sends the writer away once everything offered so far is written or dropped, and waits until it has gone; `false`
    /// where that takes longer than `patience`.
    pub(super) fn close(&self, patience: Duration) -> bool {
        let mut wishes = self.lock();
        wishes.close = true;
        self.wait(wishes, patience, |wishes| wishes.gone)
    }

    fn wait(&self, mut wishes: MutexGuard<'_, Wishes>, patience: Duration, met: impl Fn(&Wishes) -> bool) -> bool {
        self.wake();
        let since = Instant::now();
        while !met(&wishes) {
            let Some(left) = patience.checked_sub(since.elapsed()) else { return false };
            (wishes, _) = self.granted.wait_timeout(wishes, left).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

/// The writer's side.
impl Queue {
    /// The thread that takes records out.
    pub(super) fn attended_by(&self, writer: &Thread) {
        self.writer.get_or_init(|| writer.clone());
    }

    pub(super) fn take(&self) -> Option<Entry> {
        self.entries.pop()
    }

    /// How many records are here. Everything offered before is among them; one that is being offered may be too.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    pub(super) fn wishes(&self) -> Wishes {
        *self.lock()
    }

    /// What was wanted when `wishes` was read is done.
    pub(super) fn grant(&self, wishes: Wishes) {
        let mut now = self.lock();
        now.flushes_done = now.flushes_done.max(wishes.flushes_wanted);
        self.granted.notify_all();
    }

    pub(super) fn count_written(&self, records: u64) {
        self.written.fetch_add(records, Relaxed);
    }

    pub(super) fn count_lost(&self, records: u64, error: io::Error) {
        self.dropped.fetch_add(records, Relaxed);
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(error));
    }

    /// Sleeps until a record is offered or something is wanted.
    pub(super) fn sleep(&self) {
        self.state.store(ASLEEP, Relaxed);
        if self.entries.is_empty() && !self.wishes().any() {
            std::thread::park_timeout(SLEEP);
        }
        self.state.store(AWAKE, Relaxed);
    }

    /// The writer goes, for good.
    pub(super) fn leave(&self) {
        self.state.store(GONE, Relaxed);
        self.lock().gone = true;
        self.granted.notify_all();
    }
}
