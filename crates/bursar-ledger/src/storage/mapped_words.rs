//! The words of a ledger in memory: mapped from its file, or this process's own.

use super::file::{Opened, life_of};
use super::in_use::Anchors;
use crate::format::{Layout, Words};
use crate::system::{Identity, Lock, Mapping, Process, Tether};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// All is well.
const LIVE: u64 = 1;
/// The file's name leads to it no more.
const GONE: u64 = 2;

/// How this process stands to a ledger it opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It may use it.
    Live,
    /// The file was removed or replaced while in use.
    Gone,
    /// It was forked from the process that opened it.
    Forked,
}

/// The file that words are mapped from, and the locks that tie this process to it.
#[derive(Debug)]
struct Home {
    path: PathBuf,
    identity: Identity,
    /// Has the lock of this process's place.
    lives: Tether,
    anchors: Anchors,
}

impl Home {
    fn tethers(&self) -> impl Iterator<Item = &Tether> {
        std::iter::once(&self.lives).chain(self.anchors.tethers())
    }
}

/// The words, and what ties this process to them.
#[derive(Debug)]
pub(crate) struct Ground {
    map: Mapping,
    /// One word that says how this process stands; a forked child finds a zero.
    mark: Mapping,
    home: Option<Home>,
    process: Arc<Process>,
}

impl Ground {
    /// Words of this process alone.
    pub(crate) fn private(process: &Arc<Process>, layout: Layout) -> io::Result<Self> {
        let map = Mapping::private(layout.words())?;
        Ok(Self { map, mark: Mapping::again(&new_mark()?), home: None, process: Arc::clone(process) })
    }

    /// The words of a file. The lock of the place is that of another opening than the one that is mapped: the map in a
    /// forked child would keep it.
    pub(crate) fn of_file(layout: Layout, opened: Opened) -> io::Result<Self> {
        let Opened { path, identity, mapped, lives, anchors } = opened;
        let process = Arc::clone(lives.process());
        let map = process.kernel().map(mapped.file(), layout.words())?;
        let mark = new_mark()?;
        lives.mark(&mark);
        let home = Some(Home { path, identity, lives, anchors });
        Ok(Self { map, mark: Mapping::again(&mark), home, process })
    }

    pub(crate) const fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Where the file is; a private ledger has none.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.home.as_ref().map(|home| home.path.as_path())
    }

    pub(crate) fn standing(&self) -> Standing {
        match self.mark.word(0).load(Ordering::Relaxed) {
            LIVE => Standing::Live,
            GONE => Standing::Gone,
            _ => Standing::Forked,
        }
    }

    /// Whether there is nothing to say about [`Self::standing`].
    #[inline(always)]
    pub(crate) fn is_live(&self) -> bool {
        self.mark.word(0).load(Ordering::Relaxed) == LIVE
    }

    /// Notices whether the file's name still leads to it, and whether it does so again.
    pub(crate) fn look_for_the_file(&self) {
        let Some(home) = self.home.as_ref().filter(|_| self.standing() != Standing::Forked) else { return };
        let (from, to) = match home.anchors.facts() {
            Ok(facts) if facts.identity == home.identity => (GONE, LIVE),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return,
            _ => (LIVE, GONE),
        };
        // A fork meanwhile has its own word, and whoever else looks sees the same.
        let _ = self.mark.word(0).compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Gives up the place.
    pub(crate) fn cut(&self) {
        self.home.iter().flat_map(Home::tethers).for_each(Tether::cut);
    }

    /// Keeps the place until the process ends.
    pub(crate) fn keep_for_good(&self) {
        self.home.iter().flat_map(Home::tethers).for_each(Tether::keep_for_good);
    }
}

fn new_mark() -> io::Result<Arc<Mapping>> {
    // A page, since the system wipes whole pages.
    let mark = Mapping::private(512)?;
    mark.wipe_on_fork();
    mark.word(0).store(LIVE, Ordering::SeqCst);
    Ok(Arc::new(mark))
}

impl Words for Ground {
    #[inline(always)]
    fn load(&self, at: usize) -> u64 {
        self.map.load(at)
    }
    #[inline(always)]
    fn store(&self, at: usize, value: u64) {
        #[cfg(test)]
        self.process.kernel().writes();
        self.map.word(at).store(value, Ordering::Release);
    }
    #[inline(always)]
    fn compare_exchange(&self, at: usize, current: u64, new: u64) -> Result<u64, u64> {
        #[cfg(test)]
        self.process.kernel().writes();
        self.map.word(at).compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }
    #[inline(always)]
    fn update(&self, at: usize, change: impl Fn(u64) -> Option<u64>) -> bool {
        let place = self.map.word(at);
        let mut word = place.load(Ordering::Acquire);
        loop {
            #[cfg(test)]
            self.process.kernel().writes();
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
        #[cfg(test)]
        self.process.kernel().writes();
        let new = change(word);
        new.is_some_and(|new| place.compare_exchange(word, new, Ordering::SeqCst, Ordering::SeqCst).is_ok())
    }
    fn fetch_add(&self, at: usize, value: u64) -> u64 {
        #[cfg(test)]
        self.process.kernel().writes();
        self.map.word(at).fetch_add(value, Ordering::SeqCst)
    }
    fn wait(&self, at: usize, value: u64, timeout: Option<Duration>) {
        self.process.kernel().wait(self.map.word(at), value, timeout);
    }
    fn wake(&self, at: usize, most: u32) {
        self.process.kernel().wake(self.map.word(at), most);
    }
    fn alive(&self, place: usize) -> bool {
        // Whoever cannot be asked about lives: a charge kept too long is safer than one given away.
        let locked = |lives: &Tether| lives.kernel().is_locked(lives.file(), Lock::Exclusive, life_of(place));
        self.home.as_ref().is_some_and(|home| locked(&home.lives).unwrap_or(true))
    }
}
