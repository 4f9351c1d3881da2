//! Whoever has the lock sits at the desk: every change is journaled, and what was not finished is undone.
//!
//! A change is entered as (word, old value), then counted, and only then made. Finishing a step sets the count to nothing.
//! So at any instruction the journal says how to get back to the last finished step, and undoing twice does no harm. A
//! killed process stops between two instructions and its stores so far all take effect, so that it suffices for the
//! compiler to keep their order: they are release stores.

use super::Book;
use super::left::{FROZEN, WANTED};
use crate::layout::{STEP_MAX, header, node, waiter};
use crate::words::Words;

/// The lock of a ledger, held. Dropping it undoes the step that was not finished, thaws what was frozen and gives the lock
/// back.
#[derive(Debug)]
pub struct Desk<'a, W: Words> {
    pub(super) book: &'a Book<W>,
    entries: usize,
    frozen: Vec<usize>,
    /// Words somebody may sleep on who should look again.
    rings: Vec<usize>,
}

impl<'a, W: Words> Desk<'a, W> {
    pub(super) fn sit_down(book: &'a Book<W>) -> Self {
        Self { book, entries: 0, frozen: Vec::new(), rings: Vec::new() }
    }

    /// Takes over from a dead owner: undoes its unfinished step, and does what it may not have come to after finishing
    /// one: thawing nodes, and waking those it served.
    pub(super) fn sit_down_for_the_dead(book: &'a Book<W>) -> Self {
        let mut desk = Self::sit_down(book);
        desk.undo();
        desk.frozen = (0..book.layout.nodes).filter(|&node| book.peek(node, node::LEFT) & FROZEN != 0).collect();
        for entry in 0..book.layout.waiters {
            let at = book.layout.waiter_at(entry);
            if desk.get(at + waiter::STATE) & waiter::STATES == waiter::GRANTED {
                desk.ring_waiter(entry);
            }
        }
        desk
    }

    pub(super) fn get(&self, at: usize) -> u64 {
        self.book.words.load(at)
    }

    pub(super) fn set(&mut self, at: usize, value: u64) {
        let (words, layout) = (&self.book.words, self.book.layout);
        assert!(self.entries < STEP_MAX, "no step goes over a table, so none makes more changes than this");
        let entry = layout.journal_at(self.entries);
        words.store(entry, at as u64);
        words.store(entry + 1, words.load(at));
        self.entries += 1;
        words.store(header::JOURNAL, self.entries as u64);
        words.store(at, value);
    }

    /// Finishes a step: from here on it has happened.
    pub(super) fn finish(&mut self) {
        if self.entries > 0 {
            self.book.words.store(header::JOURNAL, 0);
            self.entries = 0;
        }
    }

    /// Whether nothing was changed since the last step was finished.
    pub(super) const fn is_between_steps(&self) -> bool {
        self.entries == 0
    }

    /// Undoes the step that was not finished.
    pub(super) fn undo(&mut self) {
        let (words, layout) = (&self.book.words, self.book.layout);
        let entries = (words.load(header::JOURNAL) as usize).min(layout.journal);
        for entry in (0..entries).rev() {
            let at = layout.journal_at(entry);
            words.store(words.load(at) as usize, words.load(at + 1));
        }
        words.store(header::JOURNAL, 0);
        self.entries = 0;
    }

    /// A word of a node.
    pub fn of(&self, node: usize, field: usize) -> u64 {
        self.get(self.book.layout.node_at(node) + field)
    }

    pub(super) fn put(&mut self, node: usize, field: usize, value: u64) {
        self.set(self.book.layout.node_at(node) + field, value);
    }

    pub(super) fn freeze(&mut self, node: usize) {
        let at = self.book.layout.node_at(node) + node::LEFT;
        let mut word = self.get(at);
        while word & FROZEN == 0 {
            match self.book.words.compare_exchange(at, word, word | FROZEN) {
                Ok(_) => {
                    self.frozen.push(node);
                    return;
                }
                Err(seen) => word = seen,
            }
        }
    }

    pub(super) fn will_thaw(&mut self, node: usize) {
        self.frozen.push(node);
    }

    pub(super) fn is_frozen_here(&self, node: usize) -> bool {
        self.frozen.contains(&node)
    }

    /// After its step is finished, so that nothing an owner does from here on can be undone.
    fn thaw(&mut self) {
        while let Some(node) = self.frozen.pop() {
            let at = self.book.layout.node_at(node) + node::LEFT;
            let flags = if self.is_pressed(node) { WANTED } else { 0 };
            self.book.words.store(at, self.get(at) & !(FROZEN | WANTED) | flags);
        }
    }

    /// Has whoever sleeps on `at` look again, when the desk is left.
    pub(super) fn ring(&mut self, at: usize) {
        if !self.rings.contains(&at) {
            self.rings.push(at);
        }
    }
}

impl<W: Words> Drop for Desk<'_, W> {
    fn drop(&mut self) {
        if self.entries > 0 {
            self.undo();
        }
        loop {
            self.digest_notes();
            self.thaw();
            // Before the lock is given back, so that whoever takes it from a dead owner knows that some were not woken.
            for at in self.rings.drain(..) {
                self.book.words.wake(at, u32::MAX);
            }
            if self.book.unlock() {
                break;
            }
        }
    }
}
