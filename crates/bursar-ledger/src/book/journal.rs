//! The undo journal: the old values of the words that the current step has changed.
//!
//! An entry is two words: the index of a word together with forty bits of a hash of its old value, sealed, and the old
//! value. So a journal in which a bit has changed is neither undone nor believed.

use super::Book;
use crate::format::{Words, digest, header, sealed, unsealed};

const AT: u64 = (1 << 16) - 1;

impl<W: Words> Book<W> {
    /// Records the value of a word as entry `entry` of the current step.
    pub(super) fn record(&self, entry: usize, at: usize) {
        let (words, slot) = (&self.words, self.layout.journal_at(entry));
        let old = words.load(at);
        words.store(slot, sealed(at as u64 | digest(old) << 16));
        words.store(slot + 1, old);
    }

    /// Returns the word an entry is about and its old value, or the word of the entry that is damaged.
    fn journal_entry(&self, entry: usize) -> Result<(usize, u64), usize> {
        let slot = self.layout.journal_at(entry);
        let old = self.words.load(slot + 1);
        let what = unsealed(self.words.load(slot)).filter(|what| what >> 16 == digest(old)).ok_or(slot)?;
        Ok(((what & AT) as usize, old))
    }

    /// Returns the number of valid entries, or the word that is damaged.
    fn entries(&self) -> Result<usize, usize> {
        let entries = unsealed(self.words.load(header::JOURNAL)).map(|entries| entries as usize);
        entries.filter(|&entries| entries <= self.layout.journal).ok_or(header::JOURNAL)
    }

    /// Checks that the journal can be undone. Fails with the word of it that is damaged.
    pub(super) fn check_journal(&self) -> Result<(), usize> {
        (0..self.entries()?).try_for_each(|entry| self.journal_entry(entry).map(|_| ()))
    }

    /// Undoes the unfinished step; none of it, if the journal is damaged.
    pub(super) fn undo(&self) -> Result<(), usize> {
        self.check_journal()?;
        for entry in (0..self.entries()?).rev() {
            let (at, old) = self.journal_entry(entry)?;
            self.words.store(at, old);
        }
        self.words.store(header::JOURNAL, 0);
        Ok(())
    }
}
