//! The caches of threads: for each stream that a thread uses, a magazine of blocks it freed there.
//!
//! A thread finds its magazine in one of two ways. On the short path it looks into a small table of its own, the
//! *recent* magazines. The table is direct-mapped: eight entries, indexed by the stream's slot modulo eight, so two
//! streams may evict each other. An entry holds the stream's key and the pool's key: the number of the pool and the
//! number of *alarms* that its context has given. An alarm is a fault that was recorded or a raw handle that was given
//! away, so two comparisons, of the stream and of the pool's key, show that there is nothing new to check. Numbers of
//! pools are never given twice, so only the living pool can use an entry of its own. Where a driver listens, the number
//! of alarms in a key has its topmost bit set, and only the long path, which tells the driver, looks for such keys.
//!
//! On the long path it goes by its index through [`ThreadCaches`], the table of all threads, which whoever drains the
//! caches goes through too.
//!
//! A thread that ends gives back what its caches hold. It never owns the pool for that, even for a moment, but only its
//! state: the last owner of a pool returns memory to the driver, and a thread past its end must not do that.
#![allow(unsafe_code)]

use super::extent::Extent;
use super::magazine::Magazine;
use super::{PagePoolResource, PoolState};
use bursar_core::{FrameSource, OwnerId, STREAM_SLOTS, Stream, ThreadIndex};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The number of threads that have caches at a time; those beyond go to the free lists each time.
const THREADS: usize = 1024;

/// The cache of one thread, on cache lines of its own.
///
/// The totals are of what the thread did without a recent magazine, which counts the rest. Only the thread writes them,
/// so an addition is a load and a store; the last cache belongs to all threads that have none, who add to it together.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ThreadCache {
    granted: AtomicU64,
    released: AtomicU64,
    /// Set while the thread with this index is registered to give its cache back at its end; threads come and go, and
    /// caches stay.
    registered: AtomicBool,
    magazines: Box<[OnceLock<Box<Magazine>>]>,
    /// No stream at this slot or after it has a magazine.
    streams: AtomicUsize,
}

impl ThreadCache {
    fn new(streams: usize) -> Self {
        Self {
            granted: AtomicU64::new(0),
            released: AtomicU64::new(0),
            registered: AtomicBool::new(false),
            magazines: (0..streams).map(|_| OnceLock::new()).collect(),
            streams: AtomicUsize::new(0),
        }
    }

    /// Returns the magazine for a stream, if there is one.
    #[inline]
    fn magazine(&self, slot: usize) -> Option<&Magazine> {
        self.magazines.get(slot)?.get().map(|magazine| &**magazine)
    }

    #[cold]
    fn open_magazine(&self, slot: usize, capacity: u64) -> &Magazine {
        self.streams.fetch_max(slot + 1, Ordering::Release);
        self.magazines[slot].get_or_init(|| Box::new(Magazine::new(capacity)))
    }

    /// Returns the magazines there are, with their streams' slots.
    fn magazines(&self) -> impl Iterator<Item = (usize, &Magazine)> {
        let used = self.magazines[..self.streams.load(Ordering::Acquire)].iter().enumerate();
        used.filter_map(|(slot, magazine)| Some((slot, &**magazine.get()?)))
    }

    /// Counts a grant; for the cache's own thread.
    fn count_granted(&self, bytes: u64) {
        self.granted.store(self.granted.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Release);
    }

    /// Counts a return; for the cache's own thread.
    fn count_released(&self, bytes: u64) {
        self.released.store(self.released.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Release);
    }
}

/// The current thread's cache, or the one of all threads that have none.
#[derive(Clone, Copy, Debug)]
pub(super) struct CurrentThread<'a> {
    cache: &'a ThreadCache,
    own: bool,
    capacity: u64,
}

impl<'a> CurrentThread<'a> {
    /// Returns the thread's magazine for a stream, opening one if need be; `None` where the thread has no cache of its
    /// own.
    pub(super) fn magazine(self, slot: usize) -> Option<&'a Magazine> {
        self.own.then(|| self.cache.magazine(slot).unwrap_or_else(|| self.cache.open_magazine(slot, self.capacity)))
    }

    pub(super) fn count_granted(self, bytes: u64) {
        if self.own {
            self.cache.count_granted(bytes);
        } else {
            self.cache.granted.fetch_add(bytes, Ordering::AcqRel);
        }
    }

    pub(super) fn count_released(self, bytes: u64) {
        if self.own {
            self.cache.count_released(bytes);
        } else {
            self.cache.released.fetch_add(bytes, Ordering::AcqRel);
        }
    }
}

/// The caches of all threads, by the threads' indices.
#[derive(Debug)]
pub(super) struct ThreadCaches {
    caches: Box<[OnceLock<Box<ThreadCache>>]>,
    /// The most that one magazine may hold, in units.
    capacity: u64,
}

impl ThreadCaches {
    /// Makes empty caches whose magazines hold at most `capacity` units each.
    pub(super) fn new(capacity: u64) -> Self {
        Self { caches: (0..=THREADS).map(|_| OnceLock::new()).collect(), capacity }
    }

    /// Returns the current thread's own cache, if it has registered.
    #[inline]
    fn own(&self) -> Option<&ThreadCache> {
        let cache = self.caches[ThreadIndex::known_below(THREADS)?].get()?;
        cache.registered.load(Ordering::Relaxed).then_some(cache)
    }

    /// Returns the current thread's cache. On first use, `register` has the thread's end reported, and returns whether
    /// it will be.
    fn current(&self, register: impl FnOnce(usize) -> bool) -> CurrentThread<'_> {
        let index = ThreadIndex::current().map_or(THREADS, ThreadIndex::get).min(THREADS);
        match self.caches[index].get() {
            Some(cache) if cache.registered.load(Ordering::Relaxed) => {
                CurrentThread { cache, own: index < THREADS, capacity: self.capacity }
            }
            _ => self.open(index, register),
        }
    }

    #[cold]
    fn open(&self, index: usize, register: impl FnOnce(usize) -> bool) -> CurrentThread<'_> {
        let streams = if index < THREADS { STREAM_SLOTS } else { 0 };
        let cache = self.caches[index].get_or_init(|| Box::new(ThreadCache::new(streams)));
        cache.registered.store(index == THREADS || register(index), Ordering::Relaxed);
        CurrentThread { cache, own: index < THREADS, capacity: self.capacity }
    }

    /// Has the next thread with this index register anew.
    fn unregister(&self, index: usize) {
        if let Some(cache) = self.caches[index].get() {
            cache.registered.store(false, Ordering::Relaxed);
        }
    }

    fn all(&self) -> impl Iterator<Item = &ThreadCache> {
        self.caches.iter().filter_map(OnceLock::get).map(|cache| &**cache)
    }

    /// Returns everything that was ever given back, in bytes, modulo 2⁶⁴.
    pub(super) fn released_total(&self) -> u64 {
        self.total(|cache| &cache.released, Magazine::released_total)
    }

    /// Returns what is granted now, in bytes. Returns are read first, and each follows its grant, so it never falls
    /// short.
    pub(super) fn outstanding(&self) -> u64 {
        let released = self.released_total();
        let granted = self.total(|cache| &cache.granted, Magazine::granted_total);
        granted.wrapping_sub(released)
    }

    fn total(&self, of_cache: impl Fn(&ThreadCache) -> &AtomicU64, of_magazine: impl Fn(&Magazine) -> u64) -> u64 {
        self.all().fold(0, |sum, cache| {
            let sum = sum.wrapping_add(of_cache(cache).load(Ordering::Acquire));
            cache.magazines().fold(sum, |sum, (_, magazine)| sum.wrapping_add(of_magazine(magazine)))
        })
    }

    /// Empties the magazines of every thread, or of one, for every stream or one; returns the blocks with their
    /// streams' slots.
    fn drain(&self, thread: Option<usize>, slot: Option<usize>) -> Vec<(usize, Extent)> {
        let mut all = Vec::new();
        let mut some = Vec::new();
        let caches = self.caches[..THREADS].iter().enumerate().filter(|&(index, _)| thread.is_none_or(|t| t == index));
        for cache in caches.filter_map(|(_, cache)| cache.get()) {
            for (of, magazine) in cache.magazines().filter(|&(of, _)| slot.is_none_or(|slot| slot == of)) {
                magazine.drain(&mut some);
                all.extend(some.drain(..).map(|extent| (of, extent)));
            }
        }
        all
    }

    /// Returns what lies in magazines now, in units.
    pub(super) fn units(&self) -> u64 {
        self.all().flat_map(ThreadCache::magazines).map(|(_, magazine)| magazine.units()).sum()
    }
}

impl PoolState {
    /// Returns the current thread's cache, which it gives back when it ends.
    pub(super) fn current_thread(self: &Arc<Self>) -> CurrentThread<'_> {
        self.caches.current(|index| report_thread_end(index, Arc::downgrade(self)))
    }

    /// Empties magazines, of one thread or all and for one stream or all, into the lanes of their streams; returns
    /// whether there was anything. The lists are locked first: a stream that ended between the two would leave its
    /// slot, and what was freed on it, to another.
    pub(super) fn drain(&self, thread: Option<usize>, slot: Option<usize>) -> bool {
        let mut lists = self.lists();
        let drained = self.caches.drain(thread, slot);
        for &(slot, extent @ Extent { at, len }) in &drained {
            if !lists.keep_drained(slot, extent) {
                lists.free_own(slot, at, len);
            }
        }
        !drained.is_empty()
    }

    /// Gives back the cache of the thread with this index, and has the next thread of that index register anew.
    fn thread_ended(&self, index: usize) {
        self.caches.unregister(index);
        self.drain(Some(index), None);
    }
}

/// Has the end of the current thread, which has this index, reported to a pool's state; `false` where the thread is
/// past it.
fn report_thread_end(index: usize, state: Weak<PoolState>) -> bool {
    thread_local! {
        static ON_EXIT: RefCell<ExitHooks> = const { RefCell::new(ExitHooks { process: 0, hooks: Vec::new() }) };
    }

    struct ExitHooks {
        /// The process of the thread. One that is forked off may find the lists locked by a thread that it does not have.
        process: u32,
        hooks: Vec<(usize, Weak<PoolState>)>,
    }

    impl Drop for ExitHooks {
        fn drop(&mut self) {
            forget_recent();
            if self.process != std::process::id() {
                return;
            }
            for (index, state) in self.hooks.drain(..) {
                if let Some(state) = state.upgrade() {
                    state.thread_ended(index);
                }
            }
        }
    }

    // A thread that is ending already leaves its blocks to whoever needs them.
    let hooked = ON_EXIT.try_with(|hooks| {
        let mut hooks = hooks.borrow_mut();
        hooks.process = std::process::id();
        hooks.hooks.retain(|(_, state)| state.strong_count() > 0);
        hooks.hooks.push((index, state));
    });
    hooked.is_ok()
}

/// The number of entries for recent magazines that a thread has.
const RECENT: usize = 8;

/// The magazines that a thread used recently, each for one stream of one pool. What entries have of a kind lies together,
/// so that an entry is found without a multiplication.
struct RecentMagazines {
    /// The [keys](Stream::key) of the streams.
    streams: [Cell<u64>; RECENT],
    /// The keys of the pools; zero where an entry is empty.
    keys: [Cell<u64>; RECENT],
    magazines: [Cell<NonNull<Magazine>>; RECENT],
}

thread_local! {
    static RECENT_MAGAZINES: RecentMagazines = const {
        RecentMagazines {
            streams: [const { Cell::new(0) }; RECENT],
            keys: [const { Cell::new(0) }; RECENT],
            magazines: [const { Cell::new(NonNull::dangling()) }; RECENT],
        }
    };
}

/// Forgets every recent magazine, at the thread's end.
fn forget_recent() {
    RECENT_MAGAZINES.with(|recent| recent.keys.iter().for_each(|key| key.set(0)));
}

/// The number of a pool, not zero and no other pool's, in the upper half of its keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolNumber(u64);

impl PoolNumber {
    pub(super) fn of(owner: OwnerId) -> Self {
        Self(u64::from(owner.get()) << u32::BITS)
    }

    /// Returns the key of recent magazines: the pool's number, and the number of alarms its context has given, as
    /// [`alarms_for_listener`](PagePoolResource::alarms_for_listener) returns it on the long path.
    #[inline(always)]
    const fn key(self, alarms: u32) -> u64 {
        self.0 | alarms as u64
    }
}

impl<F: FrameSource> PagePoolResource<F> {
    /// Returns the thread's recent magazine for a stream that stays and is not being captured, if there was no alarm
    /// since it was remembered and no driver listens, which would have to be told.
    #[inline(always)]
    pub(super) fn recent_magazine(&self, stream: Stream) -> Option<&Magazine> {
        self.recent_magazine_under(self.context.alarms(), stream)
    }

    /// Returns the recent magazine also where a driver listens, for those who tell it.
    pub(super) fn recent_magazine_for_listener(&self, stream: Stream) -> Option<&Magazine> {
        self.recent_magazine_under(self.alarms_for_listener(self.context.alarms()), stream)
    }

    /// Returns a number of alarms with its topmost bit set where a driver listens, so that the short path does not find
    /// entries under it.
    fn alarms_for_listener(&self, alarms: u32) -> u32 {
        alarms | u32::from(self.context.listens()) << 31
    }

    #[inline(always)]
    fn recent_magazine_under(&self, alarms: u32, stream: Stream) -> Option<&Magazine> {
        let key = self.number.key(alarms);
        RECENT_MAGAZINES.with(|recent| {
            let entry = stream.slot() % RECENT;
            let found = recent.streams[entry].get() == stream.key() && recent.keys[entry].get() == key;
            // SAFETY: only `remember_magazine` sets entries. It sets the magazine together with the key, which has this
            // pool's number and no other's, from a reference into the pool's state; a magazine stays where it is for
            // the life of that state, which the pool owns, and the pool is borrowed for the life of the result.
            found.then(|| unsafe { recent.magazines[entry].get().as_ref() })
        })
    }

    /// Remembers the thread's magazine for a stream that the context made, `alarms` having been read before there was
    /// found to be no fault.
    pub(super) fn remember_magazine(&self, stream: Stream, alarms: u32) {
        if self.context.own_stream(stream).is_some()
            && let Some(cache) = self.state.caches.own()
            && let Some(magazine) = cache.magazine(stream.slot())
        {
            RECENT_MAGAZINES.with(|recent| {
                let entry = stream.slot() % RECENT;
                recent.streams[entry].set(stream.key());
                recent.keys[entry].set(self.number.key(self.alarms_for_listener(alarms)));
                recent.magazines[entry].set(magazine.into());
            });
        }
    }
}
