//! The words of a ledger in memory: mapped from its file, or this process's own.

use crate::layout::Layout;
use crate::mmap::Mapping;
use crate::sys::{self, Kind, Tether};
use crate::words::Words;
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Where in a ledger file the bytes are that processes lock while they live. No data is there.
pub(crate) const LIVES_AT: i64 = 1 << 40;

/// All is well.
const LIVE: u64 = 1;
/// The file has no name any more.
const DELETED: u64 = 2;

/// How this process stands to a ledger it opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It may use it.
    Live,
    /// The file was removed while in use.
    Deleted,
    /// It was forked from the process that opened it.
    Forked,
}

/// The words, and what ties this process to them.
#[derive(Debug)]
pub struct Ground {
    map: Mapping,
    /// One word that says how this process stands; a forked child finds a zero.
    mark: Mapping,
    tether: Option<Tether>,
    /// Keeps others from making a new file while this one is in use.
    users: Option<Tether>,
}

impl Ground {
    /// Words of this process alone.
    pub(crate) fn private(layout: Layout) -> io::Result<Self> {
        Ok(Self { map: Mapping::private(layout.words())?, mark: new_mark()?, tether: None, users: None })
    }

    /// The words of a file. `lives` is another opening of it, and has the lock of this process's place: were it the one
    /// that is mapped, the map in a forked child would keep the lock.
    pub(crate) fn of_file(layout: Layout, mapped: &File, lives: File, users: File) -> io::Result<Self> {
        let map = Mapping::of_file(mapped, layout.words())?;
        let mut ground = Self { map, mark: new_mark()?, tether: None, users: None };
        let too_many = || io::Error::other("too many ledgers are open in this process");
        ground.tether = Some(Tether::new(lives, Some(ground.mark.word_for_tether(0))).ok_or_else(too_many)?);
        ground.users = Some(Tether::new(users, None).ok_or_else(too_many)?);
        Ok(ground)
    }

    pub(crate) fn standing(&self) -> Standing {
        match self.mark.word(0).load(Ordering::Relaxed) {
            LIVE => Standing::Live,
            DELETED => Standing::Deleted,
            _ => Standing::Forked,
        }
    }

    /// Whether there is nothing to say about [`Self::standing`].
    #[inline(always)]
    pub(crate) fn is_live(&self) -> bool {
        self.mark.word(0).load(Ordering::Relaxed) == LIVE
    }

    pub(crate) fn file_is_gone(&self) {
        let _ = self.mark.word(0).compare_exchange(LIVE, DELETED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Gives up the place.
    pub(crate) fn cut(&self) {
        self.tether.iter().chain(&self.users).for_each(Tether::cut);
    }

    /// Keeps the place until the process ends.
    pub(crate) fn keep_for_good(&self) {
        self.tether.iter().chain(&self.users).for_each(Tether::keep_for_good);
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.cut();
    }
}

fn new_mark() -> io::Result<Mapping> {
    // A page, since the kernel wipes whole pages.
    let mark = Mapping::private(512)?;
    mark.wipe_on_fork();
    mark.word(0).store(LIVE, Ordering::SeqCst);
    Ok(mark)
}

impl Words for Ground {
    #[inline(always)]
    fn load(&self, at: usize) -> u64 {
        self.map.load(at)
    }
    #[inline(always)]
    fn store(&self, at: usize, value: u64) {
        self.map.word(at).store(value, Ordering::Release);
    }
    #[inline(always)]
    fn compare_exchange(&self, at: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.map.word(at).compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }
    #[inline(always)]
    fn update(&self, at: usize, change: impl Fn(u64) -> Option<u64>) -> bool {
        let place = self.map.word(at);
        let mut word = place.load(Ordering::Acquire);
        loop {
            let Some(new) = change(word) else { return false };
            match place.compare_exchange(word, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }
    #[inline(always)]
    fn attempt(&self, at: usize, change: impl FnOnce(u64) -> Option<u64>) -> bool {
        let place = self.map.word(at);
        let word = place.load(Ordering::Acquire);
        let new = change(word);
        new.is_some_and(|new| place.compare_exchange(word, new, Ordering::SeqCst, Ordering::SeqCst).is_ok())
    }
    fn fetch_add(&self, at: usize, value: u64) -> u64 {
        self.map.word(at).fetch_add(value, Ordering::SeqCst)
    }
    fn wait(&self, at: usize, value: u64, timeout: Option<Duration>) {
        self.map.wait(at, value, timeout);
    }
    fn wake(&self, at: usize, most: u32) {
        sys::wake(self.map.word(at), most);
    }
    fn alive(&self, place: usize) -> bool {
        // Whoever cannot be asked about lives: a charge kept too long is safer than one given away.
        let locked = |fd| sys::is_locked(fd, Kind::Exclusive, LIVES_AT + place as i64, 1).unwrap_or(true);
        self.tether.as_ref().map(Tether::fd).is_some_and(locked)
    }
}
