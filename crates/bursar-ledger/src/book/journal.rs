//! The undo journal: what stood where, before the step that is being made.
//!
//! An entry is two words: the number of a word with forty bits made of what stood there, sealed, and what stood there. So a
//! journal of which a bit has changed is not undone, and not believed.

use super::Book;
use crate::format::{Words, digest, header, sealed, unsealed};

const AT: u64 = (1 << 16) - 1;

impl<W: Words> Book<W> {
    /// Enters what stands at a word as the `entry`th change of a step.
    pub(super) fn enter(&self, entry: usize, at: usize) {
        let (words, place) = (&self.words, self.layout.journal_at(entry));
        let old = words.load(at);
        words.store(place, sealed(at as u64 | digest(old) << 16));
        words.store(place + 1, old);
    }

    /// The word an entry is about and what stood there, or the word of the entry that is damaged.
    fn entry(&self, entry: usize) -> Result<(usize, u64), usize> {
        let place = self.layout.journal_at(entry);
        let old = self.words.load(place + 1);
        let what = unsealed(self.words.load(place)).filter(|what| what >> 16 == digest(old)).ok_or(place)?;
        Ok(((what & AT) as usize, old))
    }

    /// How many entries count, or the word that is damaged.
    fn entries(&self) -> Result<usize, usize> {
        let entries = unsealed(self.words.load(header::JOURNAL)).map(|entries| entries as usize);
        entries.filter(|&entries| entries <= self.layout.journal).ok_or(header::JOURNAL)
    }

    /// Whether the journal can be undone; if not, which word of it is damaged.
    pub(super) fn check_journal(&self) -> Result<(), usize> {
        (0..self.entries()?).try_for_each(|entry| self.entry(entry).map(|_| ()))
    }

    /// Undoes the step that was not finished; none of it, if the journal is damaged.
    pub(super) fn undo(&self) -> Result<(), usize> {
        self.check_journal()?;
        for entry in (0..self.entries()?).rev() {
            let (at, old) = self.entry(entry)?;
            self.words.store(at, old);
        }
        self.words.store(header::JOURNAL, 0);
        Ok(())
    }
}
