//! What this process is told by others: that a request was served, that an owner wants its own back, that one died.

use super::{Inner, MEASURE_EVERY, Patience, Probe};
use crate::book::{Book, Entry};
use crate::format::{Words, process};
use crate::storage::Ground;
use crate::system::{News, Watch};
use bursar_core::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
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
    watch: OnceLock<Option<Arc<dyn Watch>>>,
    stopped: Arc<AtomicBool>,
}

impl Bell {
    fn sleepers(&self) -> MutexGuard<'_, Vec<Sleeper>> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `waker` woken when the entry was served.
    pub(crate) fn remember(&self, entry: Entry, waker: &Waker, probe: Option<&Arc<Probe>>, book: &Book<Ground>) {
        let mut sleepers = self.sleepers();
        let is_new = !sleepers.iter().any(|sleeper| sleeper.entry == entry);
        sleepers.retain(|sleeper| sleeper.entry != entry);
        sleepers.push(Sleeper { entry, waker: waker.clone(), probe: probe.cloned() });
        drop(sleepers);
        if is_new && probe.is_some() {
            // The thread may sleep until it is rung for, and is to measure from now on.
            ring(book);
        }
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

impl Inner {
    /// Starts the thread that is told of grants and of owners that want their own back.
    pub(crate) fn listen(self: &Arc<Self>) {
        self.bell.listening.get_or_init(|| {
            let (book, stopped) = (Arc::clone(&self.book), Arc::clone(&self.bell.stopped));
            let heard = book.words().load(book.bell_at());
            let mut listener = Listener { inner: Arc::downgrade(self), book, stopped, heard };
            self.process().kernel().spawn(Box::new(move || listener.round()))
        });
    }

    /// Starts the thread that is told of deaths; answers whether the kernel tells.
    pub(crate) fn watch(self: &Arc<Self>) -> bool {
        let Some(path) = self.file() else { return true };
        let started = self.bell.watch.get_or_init(|| {
            let kernel = self.process().kernel();
            let watch = kernel.watch(path).ok()?;
            let mut watcher = Watcher { inner: Arc::downgrade(self), watch: Arc::clone(&watch), is_looking: false };
            kernel.spawn(Box::new(move || watcher.round())).then_some(watch)
        });
        started.is_some()
    }

    /// Returns whether something could not be done for want of the lock, and is to be tried again.
    fn answer_the_bell(&self) -> bool {
        self.wake_futures(|entry| self.book.has_left_the_queue(entry));
        if self.book.peek_process(self.book.place(), process::WANTED) == 0 {
            return false;
        }
        match self.at_desk(Patience::poll(self), |desk| desk.take_wanted()) {
            Ok(0) => false,
            Ok(wanted) => {
                self.reclaimers.run(Bytes(wanted));
                false
            }
            Err(why) => why.is_for_want_of_the_lock(),
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
        self.book.words().look_for_the_file();
        if !self.book.words().is_live() {
            self.book.wake_own_waiters();
            self.wake_futures(|_| true);
        }
    }

    fn measure_for_those_who_wait(&self) {
        let probe = self.bell.sleepers().iter().find_map(|sleeper| sleeper.probe.clone());
        if let Some(probe) = probe {
            // A probe that fails says so to whoever asks next.
            let _ = self.reclaimers.contained("a probe", || self.measure(&probe, Patience::poll(self)));
        }
    }

    /// Gives back what the dead left. The kernel tells of a closing before it drops the lock, so a little patience is
    /// needed. Returns whether to look again, since somebody kept the ledger locked.
    fn look_for_the_dead(&self) -> bool {
        for pause_ms in [0, 1, 2, 4, 8, 16, 32, 64] {
            self.process().kernel().sleep(Duration::from_millis(pause_ms));
            match self.at_desk(Patience::poll(self), |desk| desk.bury_the_dead()) {
                Ok(false) => (),
                Ok(true) => return false,
                Err(why) => return why.is_for_want_of_the_lock(),
            }
        }
        false
    }
}

/// The thread that is told of grants and of owners that want their own back.
struct Listener {
    inner: Weak<Inner>,
    /// Outlives the ledger's last handle, so that there is a word to sleep on.
    book: Arc<Book<Ground>>,
    stopped: Arc<AtomicBool>,
    heard: u64,
}

impl Listener {
    /// Looks at what there is to be told, then sleeps until there is more. Returns whether to go on.
    fn round(&mut self) -> bool {
        let Some(alive) = self.inner.upgrade() else { return false };
        let busy = alive.answer_the_bell();
        let later = alive.bell.take_later();
        let measures = alive.bell.sleepers().iter().any(|sleeper| sleeper.probe.is_some());
        drop(alive);
        if self.stopped.load(Ordering::SeqCst) {
            return false;
        }
        if busy || !later.is_empty() {
            self.book.words().process().kernel().sleep(RETRY_EVERY);
            if let Some(alive) = self.inner.upgrade() {
                later.into_iter().for_each(|waker| alive.wake(waker));
            }
            return true;
        }
        let (words, at) = (self.book.words(), self.book.bell_at());
        words.wait(at, self.heard, measures.then_some(MEASURE_EVERY));
        let now = words.load(at);
        if now == self.heard
            && let Some(alive) = self.inner.upgrade()
        {
            alive.measure_for_those_who_wait();
        }
        self.heard = now;
        true
    }
}

/// The thread that is told of deaths, and of what happens to the file.
struct Watcher {
    inner: Weak<Inner>,
    watch: Arc<dyn Watch>,
    /// Whether somebody may have died whose charge could not be given back yet.
    is_looking: bool,
}

impl Watcher {
    /// Waits for news of the file and acts on it. Returns whether to go on.
    fn round(&mut self) -> bool {
        let news = if self.is_looking { Ok(News::default()) } else { self.watch.read() };
        let (Ok(news), Some(alive)) = (news, self.inner.upgrade()) else { return false };
        if news.renamed {
            alive.look_for_the_file_together();
        }
        if news.closed || self.is_looking {
            self.is_looking = alive.look_for_the_dead();
        }
        if self.is_looking {
            alive.process().kernel().sleep(RETRY_EVERY);
        }
        !news.over
    }
}
