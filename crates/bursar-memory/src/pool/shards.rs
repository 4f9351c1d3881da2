//! What each thread keeps of a pool: its magazines, and what it was granted and gave back.

use super::magazine::{Kept, Magazine};
use super::shelf::Shelf;
use bursar_core::{STREAM_SLOTS, ThreadIndex};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{OnceLock, Weak};

/// How many threads have magazines at a time; those beyond go to the middle each time.
const THREADS: usize = 1024;

/// One thread's place, on cache lines of its own. The totals are of what it did without a magazine at hand, which counts the
/// rest. Only that thread writes them, so an addition is a load and a
/// store; the last place is everybody else's, who add to it together.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Shard {
    granted: AtomicU64,
    released: AtomicU64,
    /// Whether the thread whose place it is has entered it; threads come and go, and places stay.
    entered: AtomicBool,
    magazines: Box<[OnceLock<Box<Magazine>>]>,
    /// No stream at this place or after it has a magazine.
    streams: AtomicUsize,
}

impl Shard {
    fn new(streams: usize) -> Self {
        Self {
            granted: AtomicU64::new(0),
            released: AtomicU64::new(0),
            entered: AtomicBool::new(false),
            magazines: (0..streams).map(|_| OnceLock::new()).collect(),
            streams: AtomicUsize::new(0),
        }
    }

    /// The magazine for a stream, if there is one.
    #[inline]
    pub(super) fn magazine(&self, place: usize) -> Option<&Magazine> {
        self.magazines.get(place)?.get().map(|magazine| &**magazine)
    }

    #[cold]
    fn open_magazine(&self, place: usize, most: u64) -> &Magazine {
        self.streams.fetch_max(place + 1, Ordering::Release);
        self.magazines[place].get_or_init(|| Box::new(Magazine::new(most)))
    }

    /// The magazines there are, with their streams' places.
    fn magazines(&self) -> impl Iterator<Item = (usize, &Magazine)> {
        let used = self.magazines[..self.streams.load(Ordering::Acquire)].iter().enumerate();
        used.filter_map(|(place, magazine)| Some((place, &**magazine.get()?)))
    }

    /// Counts a grant; for the thread whose place it is.
    fn granted(&self, bytes: u64) {
        self.granted.store(self.granted.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Release);
    }

    /// Counts a return; for the thread whose place it is.
    fn released(&self, bytes: u64) {
        self.released.store(self.released.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Release);
    }
}

/// The current thread's place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Here<'a> {
    shard: &'a Shard,
    own: bool,
    most: u64,
}

impl<'a> Here<'a> {
    /// The thread's magazine for a stream, if it may have one.
    pub(super) fn magazine(self, place: usize) -> Option<&'a Magazine> {
        self.own.then(|| self.shard.magazine(place).unwrap_or_else(|| self.shard.open_magazine(place, self.most)))
    }

    pub(super) fn granted(self, bytes: u64) {
        if self.own {
            self.shard.granted(bytes);
        } else {
            self.shard.granted.fetch_add(bytes, Ordering::AcqRel);
        }
    }

    pub(super) fn released(self, bytes: u64) {
        if self.own {
            self.shard.released(bytes);
        } else {
            self.shard.released.fetch_add(bytes, Ordering::AcqRel);
        }
    }
}

/// The places of all threads.
#[derive(Debug)]
pub(super) struct Shards {
    places: Box<[OnceLock<Box<Shard>>]>,
    /// What may lie in one magazine, in units.
    most: u64,
}

impl Shards {
    pub(super) fn new(most: u64) -> Self {
        Self { places: (0..=THREADS).map(|_| OnceLock::new()).collect(), most }
    }

    /// The current thread's own place, if it has entered it.
    #[inline]
    pub(super) fn own(&self) -> Option<&Shard> {
        let shard = self.places[ThreadIndex::known_below(THREADS)?].get()?;
        shard.entered.load(Ordering::Relaxed).then_some(shard)
    }

    /// The current thread's place; `first` is told when the thread enters it, and answers whether it will be told to leave.
    pub(super) fn here(&self, first: impl FnOnce(usize) -> bool) -> Here<'_> {
        let index = ThreadIndex::current().map_or(THREADS, ThreadIndex::get).min(THREADS);
        match self.places[index].get() {
            Some(shard) if shard.entered.load(Ordering::Relaxed) => {
                Here { shard, own: index < THREADS, most: self.most }
            }
            _ => self.enter(index, first),
        }
    }

    #[cold]
    fn enter(&self, index: usize, first: impl FnOnce(usize) -> bool) -> Here<'_> {
        let streams = if index < THREADS { STREAM_SLOTS } else { 0 };
        let shard = self.places[index].get_or_init(|| Box::new(Shard::new(streams)));
        shard.entered.store(index == THREADS || first(index), Ordering::Relaxed);
        Here { shard, own: index < THREADS, most: self.most }
    }

    /// Lets the next thread of this number enter anew.
    pub(super) fn leave(&self, index: usize) {
        if let Some(shard) = self.places[index].get() {
            shard.entered.store(false, Ordering::Relaxed);
        }
    }

    fn all(&self) -> impl Iterator<Item = &Shard> {
        self.places.iter().filter_map(OnceLock::get).map(|shard| &**shard)
    }

    /// Everything that was given back, in bytes, modulo 2⁶⁴.
    pub(super) fn released_total(&self) -> u64 {
        self.total(|shard| &shard.released, Magazine::released_total)
    }

    /// What is granted now, in bytes. Returns are read first, and each follows its grant, so it never falls short.
    pub(super) fn outstanding(&self) -> u64 {
        let released = self.released_total();
        let granted = self.total(|shard| &shard.granted, Magazine::granted_total);
        granted.wrapping_sub(released)
    }

    fn total(&self, of_shard: impl Fn(&Shard) -> &AtomicU64, of_magazine: impl Fn(&Magazine) -> u64) -> u64 {
        self.all().fold(0, |sum, shard| {
            let sum = sum.wrapping_add(of_shard(shard).load(Ordering::Acquire));
            shard.magazines().fold(sum, |sum, (_, magazine)| sum.wrapping_add(of_magazine(magazine)))
        })
    }

    /// Empties the magazines of every thread, or of one, for every stream or one; answers the blocks with their streams'
    /// places.
    pub(super) fn drain(&self, thread: Option<usize>, place: Option<usize>) -> Vec<(usize, Kept)> {
        let mut all = Vec::new();
        let mut some = Vec::new();
        let shards = self.places[..THREADS].iter().enumerate().filter(|&(index, _)| thread.is_none_or(|t| t == index));
        for shard in shards.filter_map(|(_, shard)| shard.get()) {
            for (at, magazine) in shard.magazines().filter(|&(at, _)| place.is_none_or(|place| place == at)) {
                magazine.drain(&mut some);
                all.extend(some.drain(..).map(|kept| (at, kept)));
            }
        }
        all
    }

    /// What lies in magazines now, in units.
    pub(super) fn kept(&self) -> u64 {
        self.all().flat_map(Shard::magazines).map(|(_, magazine)| magazine.kept()).sum()
    }
}

/// Tells `whom` when the current thread, which has this number, ends; `false` where that is past.
pub(super) fn at_thread_end(index: usize, whom: Weak<Shelf>) -> bool {
    thread_local! {
        static LAST_WILL: RefCell<Will> = const { RefCell::new(Will(Vec::new())) };
    }

    struct Will(Vec<(usize, Weak<Shelf>)>);

    impl Drop for Will {
        fn drop(&mut self) {
            super::hand::forget();
            for (index, whom) in self.0.drain(..) {
                if let Some(whom) = whom.upgrade() {
                    whom.thread_ended(index);
                }
            }
        }
    }

    // A thread that is ending already leaves its blocks to whoever needs them.
    let written = LAST_WILL.try_with(|will| {
        let mut will = will.borrow_mut();
        will.0.retain(|(_, whom)| whom.strong_count() > 0);
        will.0.push((index, whom));
    });
    written.is_ok()
}
