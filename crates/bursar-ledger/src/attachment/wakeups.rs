//! The threads that react to other processes: a request was granted, memory is asked back, a process died, the file was
//! removed.
//!
//! Whoever waits is woken when another process releases or dies. The *listener* sleeps on the process's `EVENTS` word,
//! which others increment; it wakes futures, runs reclaim callbacks, measures for those who wait and publishes what this process
//! uses. The *watcher*
//! reads inotify events of the file: a process that dies closes the file. Both start when they are first needed.

use super::{Attachment, LockWait, MEASURE_EVERY, PUBLISH_EVERY, Probe};
use crate::book::{Book, QueueEntry};
use crate::format::{Words, process};
use crate::storage::MappedWords;
use crate::system::{FileEvents, Watch};
use bursar_core::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

/// The interval between tries for a lock that was not available.
const RETRY_EVERY: Duration = Duration::from_millis(20);

/// A future that waits, with the probe to measure by for it.
#[derive(Debug)]
struct WaitingFuture {
    entry: QueueEntry,
    waker: Waker,
    probe: Option<Arc<Probe>>,
}

/// The futures to wake, and the threads that do.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    futures: Mutex<Vec<WaitingFuture>>,
    /// Futures that did not get the lock, and try again a little later.
    retries: Mutex<Vec<Waker>>,
    listening: OnceLock<bool>,
    watch: OnceLock<Option<Arc<dyn Watch>>>,
    stopped: Arc<AtomicBool>,
}

impl Wakeups {
    fn futures(&self) -> MutexGuard<'_, Vec<WaitingFuture>> {
        self.futures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `waker` woken when the entry was granted.
    pub(crate) fn register(
        &self,
        entry: QueueEntry,
        waker: &Waker,
        probe: Option<&Arc<Probe>>,
        book: &Book<MappedWords>,
    ) {
        let mut futures = self.futures();
        let is_new = !futures.iter().any(|future| future.entry == entry);
        futures.retain(|future| future.entry != entry);
        futures.push(WaitingFuture { entry, waker: waker.clone(), probe: probe.cloned() });
        drop(futures);
        if is_new && probe.is_some() {
            // The listener may sleep without a timeout, and is to measure from now on.
            signal_self(book);
        }
    }

    pub(crate) fn unregister(&self, entry: QueueEntry) {
        self.futures().retain(|future| future.entry != entry);
    }

    /// Has `waker` woken a little later, to try for the lock again.
    pub(crate) fn retry_later(&self, waker: &Waker, book: &Book<MappedWords>) {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner).push(waker.clone());
        signal_self(book);
    }

    fn take_retries(&self) -> Vec<Waker> {
        std::mem::take(&mut *self.retries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has the listener look whether there is something to do.
    pub(crate) fn wake_listener(&self, book: &Book<MappedWords>) {
        signal_self(book);
    }

    /// Ends the threads, without waiting for them: the last handle may be dropped by one of them.
    pub(crate) fn stop(&self, book: &Book<MappedWords>) {
        self.stopped.store(true, Ordering::SeqCst);
        signal_self(book);
        if let Some(Some(watch)) = self.watch.get() {
            watch.end();
        }
    }
}

/// Wakes the listener of this process.
fn signal_self(book: &Book<MappedWords>) {
    book.words().fetch_add(book.events_at(), 1);
    book.words().wake(book.events_at(), u32::MAX);
}

impl Attachment {
    /// Starts the listener, if it does not run yet.
    pub(crate) fn start_listener(self: &Arc<Self>) {
        self.wakeups.listening.get_or_init(|| {
            let (book, stopped) = (Arc::clone(&self.book), Arc::clone(&self.wakeups.stopped));
            let seen = book.words().load(book.events_at());
            let mut listener = Listener { attachment: Arc::downgrade(self), book, stopped, seen, published: None };
            self.process().kernel().spawn(Box::new(move || listener.round()))
        });
    }

    /// Starts the watcher, if it does not run yet. Returns whether the kernel reports deaths; if not, those who wait
    /// must look for them.
    pub(crate) fn start_watcher(self: &Arc<Self>) -> bool {
        let Some(path) = self.file() else { return true };
        let started = self.wakeups.watch.get_or_init(|| {
            let kernel = self.process().kernel();
            let watch = kernel.watch(path).ok()?;
            let mut watcher =
                Watcher { attachment: Arc::downgrade(self), watch: Arc::clone(&watch), death_pending: false };
            kernel.spawn(Box::new(move || watcher.round())).then_some(watch)
        });
        started.is_some()
    }

    /// Wakes futures whose requests were granted and gives back what was asked for. Returns whether the lock was not
    /// available, so that this has to be tried again.
    fn handle_events(&self) -> bool {
        self.wake_futures(|entry| self.book.has_left_queue(entry));
        if self.book.peek_process(self.book.slot(), process::RETURN_REQUESTED) == 0 {
            return false;
        }
        match self.with_lock(LockWait::poll(self), |locked| locked.take_return_request()) {
            Ok(0) => false,
            Ok(wanted) => {
                self.reclaimers.run(Bytes(wanted));
                false
            }
            Err(why) => why.is_lock_unavailable(),
        }
    }

    fn wake_futures(&self, which: impl Fn(QueueEntry) -> bool) {
        let woken: Vec<WaitingFuture> = {
            let mut futures = self.wakeups.futures();
            let (woken, asleep) = futures.drain(..).partition(|future| which(future.entry));
            *futures = asleep;
            woken
        };
        woken.into_iter().for_each(|future| self.wake(future.waker));
    }

    fn wake(&self, waker: Waker) {
        self.reclaimers.catch_panic("a waker", || waker.wake());
    }

    /// Checks whether the file is gone, and if so wakes everyone of this process who waits, to notice it too.
    fn refresh_state_of_waiters(&self) {
        self.book.words().refresh_state();
        if !self.book.words().is_live() {
            self.book.wake_own_waiters();
            self.wake_futures(|_| true);
        }
    }

    fn measure_for_waiting_futures(&self) {
        let probe = self.wakeups.futures().iter().find_map(|future| future.probe.clone());
        if let Some(probe) = probe {
            // A probe that fails reports it to whoever measures next.
            let _ = self.reclaimers.catch_panic("a probe", || self.measure(&probe, LockWait::poll(self)));
        }
    }

    /// Reclaims what dead processes held. The kernel reports that a file was closed before it drops the locks, so this
    /// is tried for a while. Returns whether to try again, because the lock was not available.
    fn reclaim_after_death(&self) -> bool {
        for pause_ms in [0, 1, 2, 4, 8, 16, 32, 64] {
            self.process().kernel().sleep(Duration::from_millis(pause_ms));
            match self.with_lock(LockWait::poll(self), |locked| locked.reclaim_dead_processes()) {
                Ok(false) => (),
                Ok(true) => return false,
                Err(why) => return why.is_lock_unavailable(),
            }
        }
        false
    }
}

/// The thread that waits for events of this process.
struct Listener {
    attachment: Weak<Attachment>,
    /// Kept alive beyond the last handle, so that there is a word to sleep on.
    book: Arc<Book<MappedWords>>,
    stopped: Arc<AtomicBool>,
    seen: u64,
    /// When it was last said what this process uses.
    published: Option<Instant>,
}

impl Listener {
    /// Says what this process uses if it is time to. Returns how long it is to the next time, if there is one.
    fn publish(&mut self, alive: &Attachment) -> Option<Duration> {
        if alive.publishers.is_empty() {
            self.published = None;
            return None;
        }
        let elapsed = self.published.map(|published| published.elapsed());
        match elapsed.and_then(|elapsed| PUBLISH_EVERY.checked_sub(elapsed)).filter(|left| !left.is_zero()) {
            Some(left) => Some(left),
            None => {
                alive.publish_usage();
                self.published = Some(Instant::now());
                Some(PUBLISH_EVERY)
            }
        }
    }

    /// Handles the events so far, then sleeps until there are more. Returns whether to go on.
    fn round(&mut self) -> bool {
        let Some(alive) = self.attachment.upgrade() else { return false };
        let busy = alive.handle_events() | alive.serve_request();
        let retries = alive.wakeups.take_retries();
        let publishes = self.publish(&alive);
        let measures = alive.wakeups.futures().iter().any(|future| future.probe.is_some()).then_some(MEASURE_EVERY);
        drop(alive);
        if self.stopped.load(Ordering::SeqCst) {
            return false;
        }
        if busy || !retries.is_empty() {
            self.book.words().process().kernel().sleep(RETRY_EVERY);
            if let Some(alive) = self.attachment.upgrade() {
                retries.into_iter().for_each(|waker| alive.wake(waker));
            }
            return true;
        }
        let (words, at) = (self.book.words(), self.book.events_at());
        words.wait(at, self.seen, publishes.into_iter().chain(measures).min());
        let now = words.load(at);
        if now == self.seen
            && let Some(alive) = self.attachment.upgrade()
        {
            alive.measure_for_waiting_futures();
        }
        self.seen = now;
        true
    }
}

/// The thread that waits for events of the file.
struct Watcher {
    attachment: Weak<Attachment>,
    watch: Arc<dyn Watch>,
    /// True if a process may have died whose charge could not be reclaimed yet.
    death_pending: bool,
}

impl Watcher {
    /// Waits for events of the file and handles them. Returns whether to go on.
    fn round(&mut self) -> bool {
        let events = if self.death_pending { Ok(FileEvents::default()) } else { self.watch.read() };
        let (Ok(events), Some(alive)) = (events, self.attachment.upgrade()) else { return false };
        if events.renamed {
            alive.refresh_state_of_waiters();
        }
        if events.closed || self.death_pending {
            self.death_pending = alive.reclaim_after_death();
        }
        if self.death_pending {
            alive.process().kernel().sleep(RETRY_EVERY);
        }
        !events.over
    }
}
