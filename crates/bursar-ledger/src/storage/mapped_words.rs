//! The words of a ledger in memory: mapped from its file, or private to this process.

use super::file::{LedgerFile, liveness_byte};
use super::in_use::InUseLocks;
use crate::format::{LedgerLayout, Words};
use crate::system::{Descriptor, FileId, LockKind, Mapping, Process};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The value of the state word while the ledger may be used.
const LIVE: u64 = 1;
/// The value of the state word after the file was removed or replaced.
const DELETED: u64 = 2;

/// The states of this process's handles to a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleState {
    /// The ledger may be used.
    Live,
    /// The file was removed or replaced while in use.
    Deleted,
    /// This process was forked from the one that opened the ledger.
    Forked,
}

/// The file that words are mapped from, and the locks that this process holds on it.
#[derive(Debug)]
struct Backing {
    path: PathBuf,
    file_id: FileId,
    /// Holds the lock on the liveness byte of this process.
    liveness: Descriptor,
    in_use: InUseLocks,
}

impl Backing {
    fn descriptors(&self) -> impl Iterator<Item = &Descriptor> {
        std::iter::once(&self.liveness).chain(self.in_use.descriptors())
    }
}

/// The words of an open ledger.
#[derive(Debug)]
pub(crate) struct MappedWords {
    map: Mapping,
    /// A word of this process that holds the state of its handles; a forked child finds a zero.
    state_word: Mapping,
    backing: Option<Backing>,
    process: Arc<Process>,
}

impl MappedWords {
    /// Makes words that are private to this process.
    pub(crate) fn private(process: &Arc<Process>, layout: LedgerLayout) -> io::Result<Self> {
        let map = Mapping::private(layout.words())?;
        Ok(Self { map, state_word: Mapping::alias(&new_state_word()?), backing: None, process: Arc::clone(process) })
    }

    /// Maps the words of a file. The lock on the liveness byte belongs to another open file description than the one
    /// that is mapped: otherwise the mapping in a forked child would keep the lock alive.
    pub(crate) fn of_file(layout: LedgerLayout, opened: LedgerFile) -> io::Result<Self> {
        let LedgerFile { path, file_id, mapped, liveness, in_use } = opened;
        let process = Arc::clone(liveness.process());
        let map = process.kernel().map(mapped.file(), layout.words())?;
        let state_word = new_state_word()?;
        liveness.clear_on_fork(&state_word);
        let backing = Some(Backing { path, file_id, liveness, in_use });
        Ok(Self { map, state_word: Mapping::alias(&state_word), backing, process })
    }

    pub(crate) const fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Returns the path of the file; a private ledger has none.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.backing.as_ref().map(|backing| backing.path.as_path())
    }

    pub(crate) fn state(&self) -> HandleState {
        match self.state_word.word(0).load(Ordering::Relaxed) {
            LIVE => HandleState::Live,
            DELETED => HandleState::Deleted,
            _ => HandleState::Forked,
        }
    }

    /// Returns whether [`Self::state`] is [`HandleState::Live`].
    #[inline(always)]
    pub(crate) fn is_live(&self) -> bool {
        self.state_word.word(0).load(Ordering::Relaxed) == LIVE
    }

    /// Updates the state by checking whether the file's name still leads to it.
    pub(crate) fn refresh_state(&self) {
        let Some(backing) = self.backing.as_ref().filter(|_| self.state() != HandleState::Forked) else { return };
        let (from, to) = match backing.in_use.metadata() {
            Ok(metadata) if metadata.file_id == backing.file_id => (DELETED, LIVE),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return,
            _ => (LIVE, DELETED),
        };
        // A child forked meanwhile has a word of its own, and other threads that check find the same.
        let _ = self.state_word.word(0).compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Closes the files, and with them gives up the slot.
    pub(crate) fn close_files(&self) {
        self.backing.iter().flat_map(Backing::descriptors).for_each(Descriptor::close);
    }

    /// Leaves the files open until the process ends, and with them keeps the slot.
    pub(crate) fn leak_files(&self) {
        self.backing.iter().flat_map(Backing::descriptors).for_each(Descriptor::keep_open);
    }
}

fn new_state_word() -> io::Result<Arc<Mapping>> {
    // A whole page, since the system wipes whole pages.
    let state_word = Mapping::private(512)?;
    state_word.wipe_on_fork();
    state_word.word(0).store(LIVE, Ordering::SeqCst);
    Ok(Arc::new(state_word))
}

#[deny(clippy::missing_trait_methods)]
impl Words for MappedWords {
    #[inline(always)]
    fn load(&self, at: usize) -> u64 {
        self.map.load(at)
    }
    #[inline(always)]
    fn store(&self, at: usize, value: u64) {
        #[cfg(test)]
        self.process.kernel().before_write();
        self.map.word(at).store(value, Ordering::Release);
    }
    #[inline(always)]
    fn compare_exchange(&self, at: usize, current: u64, new: u64) -> Result<u64, u64> {
        #[cfg(test)]
        self.process.kernel().before_write();
        self.map.word(at).compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }
    #[inline(always)]
    fn update(&self, at: usize, change: impl Fn(u64) -> Option<u64>) -> bool {
        let cell = self.map.word(at);
        let mut word = cell.load(Ordering::Acquire);
        loop {
            #[cfg(test)]
            self.process.kernel().before_write();
            let Some(new) = change(word) else { return false };
            match cell.compare_exchange(word, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }
    #[inline(always)]
    fn attempt(&self, at: usize, change: impl FnOnce(u64) -> Option<u64>) -> bool {
        let cell = self.map.word(at);
        let word = cell.load(Ordering::Acquire);
        #[cfg(test)]
        self.process.kernel().before_write();
        let new = change(word);
        new.is_some_and(|new| cell.compare_exchange(word, new, Ordering::SeqCst, Ordering::SeqCst).is_ok())
    }
    fn fetch_add(&self, at: usize, value: u64) -> u64 {
        #[cfg(test)]
        self.process.kernel().before_write();
        self.map.word(at).fetch_add(value, Ordering::SeqCst)
    }
    fn wait(&self, at: usize, value: u64, timeout: Option<Duration>) {
        self.process.kernel().wait(self.map.word(at), value, timeout);
    }
    fn wake(&self, at: usize, most: u32) {
        self.process.kernel().wake(self.map.word(at), most);
    }
    fn alive(&self, slot: usize) -> bool {
        // A process that cannot be asked about counts as alive: a charge kept too long is safer than one given away.
        let locked = |liveness: &Descriptor| {
            liveness.kernel().is_locked(liveness.file(), LockKind::Exclusive, liveness_byte(slot))
        };
        self.backing.as_ref().is_some_and(|backing| locked(&backing.liveness).unwrap_or(true))
    }
}
