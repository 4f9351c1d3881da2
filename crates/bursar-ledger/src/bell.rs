//! What this process is told by others: that a request was served, that an owner wants its own back, that one died.

use crate::book::{Book, Entry};
use crate::ground::Ground;
use crate::inner::Inner;
use crate::layout::process;
use crate::measure::Probe;
use crate::patience::Patience;
use crate::sys::Watch;
use crate::waiting::MEASURE_EVERY;
use crate::words::Words;
use crate::{Ledger, LedgerError};
use bursar_core::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::thread;
use std::time::Duration;

/// How often to try for a lock that could not be had.
const RETRY_EVERY: Duration = Duration::from_millis(20);

/// A future that waits, and how to measure for it.
#[derive(Debug)]
struct Sleeper {
    entry: Entry,
    waker: Waker,
    probe: Option<Arc<Probe>>,
}

/// Who is to be woken, and the threads that do.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    sleepers: Mutex<Vec<Sleeper>>,
    /// Futures that could not have the lock, and try again a little later.
    later: Mutex<Vec<Waker>>,
    listening: OnceLock<bool>,
    watch: OnceLock<Option<Arc<Watch>>>,
    stopped: Arc<AtomicBool>,
}

impl Bell {
    fn sleepers(&self) -> MutexGuard<'_, Vec<Sleeper>> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `waker` woken when the entry was served.
    pub(crate) fn remember(&self, entry: Entry, waker: &Waker, probe: Option<&Arc<Probe>>) {
        let mut sleepers = self.sleepers();
        sleepers.retain(|sleeper| sleeper.entry != entry);
        sleepers.push(Sleeper { entry, waker: waker.clone(), probe: probe.cloned() });
    }

    pub(crate) fn forget(&self, entry: Entry) {
        self.sleepers().retain(|sleeper| sleeper.entry != entry);
    }

    /// Has `waker` woken a little later, to try for the lock again.
    pub(crate) fn try_later(&self, waker: &Waker, book: &Book<Ground>) {
        self.later.lock().unwrap_or_else(PoisonError::into_inner).push(waker.clone());
        ring(book);
    }

    fn take_later(&self) -> Vec<Waker> {
        std::mem::take(&mut *self.later.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the threads, without waiting for them: the last handle may be dropped by one of them.
    pub(crate) fn stop(&self, book: &Book<Ground>) {
        self.stopped.store(true, Ordering::SeqCst);
        ring(book);
        if let Some(Some(watch)) = self.watch.get() {
            watch.end();
        }
    }
}

/// Has the listening thread of this process look around.
fn ring(book: &Book<Ground>) {
    book.words().fetch_add(book.bell_at(), 1);
    book.words().wake(book.bell_at(), u32::MAX);
}

fn spawn(run: impl FnOnce() + Send + 'static) -> bool {
    thread::Builder::new().name("bursar-ledger".to_owned()).spawn(run).is_ok()
}

impl Inner {
    /// Starts the thread that is told of grants and of owners that want their own back.
    pub(crate) fn listen(self: &Arc<Self>) {
        self.bell.listening.get_or_init(|| {
            let (inner, book) = (Arc::downgrade(self), Arc::clone(&self.book));
            let stopped = Arc::clone(&self.bell.stopped);
            spawn(move || hear(&inner, &book, &stopped))
        });
    }

    /// Starts the thread that is told of deaths; answers whether the kernel tells.
    pub(crate) fn watch(self: &Arc<Self>) -> bool {
        let Some(path) = self.file() else { return true };
        let started = self.bell.watch.get_or_init(|| {
            let watch = Arc::new(Watch::new(path).ok()?);
            let (inner, ears) = (Arc::downgrade(self), Arc::clone(&watch));
            spawn(move || keep_watch(&inner, &ears)).then_some(watch)
        });
        started.is_some()
    }

    /// Returns whether something could not be done for want of the lock, and is to be tried again.
    fn answer_the_bell(&self) -> bool {
        self.wake_futures(|entry| self.book.has_left_the_queue(entry));
        if self.book.peek_process(self.book.place(), process::WANTED) == 0 {
            return false;
        }
        match self.at_desk(Patience::poll(), |desk| desk.take_wanted()) {
            Ok(0) => false,
            Ok(wanted) => {
                self.reclaimers.run(Bytes(wanted));
                false
            }
            Err(why) => matches!(why, LedgerError::Stuck { .. }),
        }
    }

    fn wake_futures(&self, which: impl Fn(Entry) -> bool) {
        let woken: Vec<Sleeper> = {
            let mut sleepers = self.bell.sleepers();
            let (woken, asleep) = sleepers.drain(..).partition(|sleeper| which(sleeper.entry));
            *sleepers = asleep;
            woken
        };
        woken.into_iter().for_each(|sleeper| self.wake(sleeper.waker));
    }

    fn wake(&self, waker: Waker) {
        self.reclaimers.contained("a waker", || waker.wake());
    }

    /// Notices whether the file is gone, and has everyone of this process who waits notice it too.
    fn look_for_the_file_together(&self) {
        self.look_for_the_file();
        if !self.book.words().is_live() {
            self.book.wake_own_waiters();
            self.wake_futures(|_| true);
        }
    }

    fn measure_for_those_who_wait(self: &Arc<Self>) {
        let probe = self.bell.sleepers().iter().find_map(|sleeper| sleeper.probe.clone());
        if probe.is_some() {
            // A probe that fails says so to whoever asks next.
            let ledger = Ledger { inner: Arc::clone(self), probe };
            let _ = self.reclaimers.contained("a probe", || ledger.measure(Patience::poll()));
        }
    }

    /// Looks after what the dead left. The kernel tells of a closing before it drops the lock, so a little patience is
    /// needed.
    fn look_for_the_dead(&self) {
        for pause_ms in [0, 1, 2, 4, 8, 16, 32, 64] {
            thread::sleep(Duration::from_millis(pause_ms));
            if self.desk().is_ok_and(|mut desk| desk.bury_the_dead()) {
                return;
            }
        }
    }
}

fn hear(inner: &Weak<Inner>, book: &Arc<Book<Ground>>, stopped: &AtomicBool) {
    let mut heard = book.words().load(book.bell_at());
    loop {
        let Some(alive) = inner.upgrade() else { return };
        let busy = alive.answer_the_bell();
        let later = alive.bell.take_later();
        let measures = alive.bell.sleepers().iter().any(|sleeper| sleeper.probe.is_some());
        drop(alive);
        if stopped.load(Ordering::SeqCst) {
            return;
        }
        if busy || !later.is_empty() {
            thread::sleep(RETRY_EVERY);
            if let Some(alive) = inner.upgrade() {
                later.into_iter().for_each(|waker| alive.wake(waker));
            }
            continue;
        }
        book.words().wait(book.bell_at(), heard, measures.then_some(MEASURE_EVERY));
        let now = book.words().load(book.bell_at());
        if now == heard
            && let Some(alive) = inner.upgrade()
        {
            alive.measure_for_those_who_wait();
        }
        heard = now;
    }
}

fn keep_watch(inner: &Weak<Inner>, watch: &Watch) {
    while let Ok(news) = watch.read() {
        let Some(alive) = inner.upgrade() else { return };
        if news.renamed {
            alive.look_for_the_file_together();
        }
        if news.over {
            return;
        }
        if news.closed {
            alive.look_for_the_dead();
        }
    }
}
