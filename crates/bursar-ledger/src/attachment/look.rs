//! Reading a ledger whose lock another process may keep.
//!
//! A reading waits a moment for the lock. Then it looks at a copy of the words, in which the unfinished step of whoever has the lock is
//! undone: so a process that is stopped while it has the lock delays no reading. Only where others change words all the time, so that
//! no copy is of one moment, the lock is waited for as usual.

use super::{Attachment, LockWait};
use crate::LedgerError;
use crate::book::{Book, LockedBook, NodeKey};
use crate::format::{Words, WordsSnapshot, header, unsealed};
use std::time::Duration;

/// The pauses after which another copy is made of words that changed while they were copied.
const PAUSES_US: [u64; 5] = [0, 100, 1_000, 2_000, 5_000];

/// Something to read in a ledger. What it changes may be lost.
pub(crate) trait Look {
    /// The figures that are read.
    type Figures;

    /// Reads them.
    fn look<W: Words>(&self, locked: &mut LockedBook<'_, W>) -> Self::Figures;
}

/// Reads the bytes that are charged to a node; zero where it is gone.
pub(crate) struct HeldBy(pub(crate) NodeKey);

impl Look for HeldBy {
    type Figures = u64;

    fn look<W: Words>(&self, locked: &mut LockedBook<'_, W>) -> u64 {
        if locked.is_current(self.0) { locked.settle_held(self.0.node) } else { 0 }
    }
}

impl Attachment {
    /// Looks at the ledger. Fails if a damaged word was met.
    pub(crate) fn look<L: Look>(&self, at: &L) -> Result<L::Figures, LedgerError> {
        match self.with_lock(LockWait::poll(self), |locked| at.look(locked)) {
            Err(error) if error.is_lock_unavailable() => match self.copy() {
                Some(copy) => self.look_at_copy(copy, at),
                None => self.with_lock(LockWait::Usual, |locked| at.look(locked)),
            },
            looked => looked,
        }
    }

    fn look_at_copy<L: Look>(&self, copy: WordsSnapshot, at: &L) -> Result<L::Figures, LedgerError> {
        let layout = self.book.layout();
        let book = Book::new(copy, layout, layout.processes);
        let mut locked = book.lock_snapshot();
        let figures = at.look(&mut locked);
        locked.damage().map_or(Ok(figures), |word| Err(super::lock_wait::damaged(&self.book, word)))
    }

    /// Copies the words at a moment when nobody changes any, if there is one.
    fn copy(&self) -> Option<WordsSnapshot> {
        let (words, count) = (self.book.words(), self.book.layout().words());
        let read = || (0..count).map(|at| words.load(at)).collect::<Vec<u64>>();
        let mut before = read();
        for pause_us in PAUSES_US {
            self.process().kernel().sleep(Duration::from_micros(pause_us));
            let after = read();
            if before == after {
                let high = unsealed(after[header::PROCESSES_HIGH]).unwrap_or(0);
                let high = (high as usize).min(self.book.layout().processes);
                // Its own lock keeps a process out of nothing.
                let alive = (0..high).map(|slot| slot == self.book.slot() || words.alive(slot)).collect();
                return Some(WordsSnapshot::new(after, alive));
            }
            before = after;
        }
        None
    }
}
