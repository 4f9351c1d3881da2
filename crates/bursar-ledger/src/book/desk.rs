//! Whoever has the lock sits at the desk: every change is journaled, and what was not finished is undone.
//!
//! A change is entered as (word, old value), then counted, and only then made. Finishing a step sets the count to nothing.
//! So at any instruction the journal says how to get back to the last finished step, and undoing twice does no harm. A
//! killed process stops between two instructions and its stores so far all take effect, so that it suffices for the
//! compiler to keep their order: they are release stores.
//!
//! Every word that is read behind the lock is [sealed](super::seal). Once one is found damaged, no step is finished any
//! more, by anybody: what was begun is undone, and the caller says that the file is damaged.

use super::Book;
use super::left::{FROZEN, WANTED, with_flags};
use crate::format::{Layout, STEP_MAX, Words, header, node, sealed, unsealed, waiter};
use std::cell::Cell;

/// The lock of a ledger, held. Dropping it undoes the step that was not finished, thaws what was frozen and gives the lock
/// back.
#[derive(Debug)]
pub struct Desk<'a, W: Words> {
    pub(super) book: &'a Book<W>,
    entries: usize,
    frozen: Frozen,
    /// Words somebody may sleep on who should look again.
    rings: Vec<usize>,
    /// The first word that was found damaged.
    damage: Cell<Option<usize>>,
}

/// Nodes that thaw when the desk is left.
#[derive(Debug, Default)]
struct Frozen {
    nodes: Vec<usize>,
    marks: [u64; Layout::FILE.nodes.div_ceil(64)],
}

impl Frozen {
    const fn has(&self, node: usize) -> bool {
        self.marks[node / 64 % self.marks.len()] & 1 << (node % 64) != 0
    }

    fn enter(&mut self, node: usize) {
        if !self.has(node) {
            let at = node / 64 % self.marks.len();
            self.marks[at] |= 1 << (node % 64);
            self.nodes.push(node);
        }
    }
}

impl<'a, W: Words> Desk<'a, W> {
    pub(super) fn sit_down(book: &'a Book<W>) -> Self {
        let known = unsealed(book.words.load(header::DAMAGED))
            .map_or(Some(header::DAMAGED), |word| (word as usize).checked_sub(1));
        Self { book, entries: 0, frozen: Frozen::default(), rings: Vec::new(), damage: Cell::new(known) }
    }

    /// Takes over from a dead owner: undoes its unfinished step, and does what it may not have come to after finishing
    /// one: thawing nodes, and waking those it served.
    pub(super) fn sit_down_for_the_dead(book: &'a Book<W>) -> Self {
        let mut desk = Self::sit_down(book);
        desk.undo();
        for node in 0..book.layout.nodes {
            if book.words.load(book.layout.node_at(node) + node::LEFT) & FROZEN != 0 {
                desk.frozen.enter(node);
            }
        }
        for entry in 0..book.layout.waiters {
            let at = book.layout.waiter_at(entry);
            if desk.get(at + waiter::STATE) & waiter::STATES == waiter::GRANTED {
                desk.ring_waiter(entry);
            }
        }
        desk
    }

    /// The first word that was found damaged, if one was: nothing was changed since.
    pub const fn damage(&self) -> Option<usize> {
        self.damage.get()
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.damage.get().is_some()
    }

    /// Remembers that a word is damaged, for everyone: whoever finds it may have nobody to tell.
    pub(super) fn damaged(&self, at: usize) {
        if self.damage.get().is_none() {
            self.damage.set(Some(at));
            self.book.words.store(header::DAMAGED, sealed(at as u64 + 1));
        }
    }

    /// The value of a sealed word; nothing if it is damaged.
    pub(super) fn get(&self, at: usize) -> u64 {
        unsealed(self.raw(at)).unwrap_or_else(|| {
            self.damaged(at);
            0
        })
    }

    pub(super) fn set(&mut self, at: usize, value: u64) {
        self.set_raw(at, sealed(value));
    }

    /// A word as it stands.
    pub(super) fn raw(&self, at: usize) -> u64 {
        self.book.words.load(at)
    }

    pub(super) fn set_raw(&mut self, at: usize, word: u64) {
        assert!(self.entries < STEP_MAX, "no step goes over a table, so none makes more changes than this");
        self.book.enter(self.entries, at);
        self.entries += 1;
        self.book.words.store(header::JOURNAL, sealed(self.entries as u64));
        self.book.words.store(at, word);
    }

    /// Finishes a step: from here on it has happened. If something was found damaged, it has not.
    pub(super) fn finish(&mut self) {
        if self.entries > 0 {
            if self.is_damaged() {
                self.undo();
                return;
            }
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
        if let Err(at) = self.book.undo() {
            self.damaged(at);
        }
        self.entries = 0;
    }

    /// A word of a node.
    pub fn of(&self, node: usize, field: usize) -> u64 {
        debug_assert!(
            !matches!(field, node::LEFT | node::RETURNED | node::FOLDED),
            "these are sealed in their own way"
        );
        self.get(self.book.layout.node_at(node) + field)
    }

    pub(super) fn put(&mut self, node: usize, field: usize, value: u64) {
        self.set(self.book.layout.node_at(node) + field, value);
    }

    pub(super) fn freeze(&mut self, node: usize) {
        let at = self.book.layout.node_at(node) + node::LEFT;
        let mut word = self.raw(at);
        while word & FROZEN == 0 {
            match self.book.words.compare_exchange(at, word, with_flags(word, word | FROZEN)) {
                Ok(_) => break,
                Err(seen) => word = seen,
            }
        }
        self.frozen.enter(node);
    }

    pub(super) fn will_thaw(&mut self, node: usize) {
        self.frozen.enter(node);
    }

    pub(super) const fn is_frozen_here(&self, node: usize) -> bool {
        self.frozen.has(node)
    }

    /// After its step is finished, so that nothing an owner does from here on can be undone.
    fn thaw(&mut self) {
        let frozen = std::mem::take(&mut self.frozen);
        for node in frozen.nodes {
            let at = self.book.layout.node_at(node) + node::LEFT;
            let flags = if self.is_pressed(node) { WANTED } else { 0 };
            self.book.words.store(at, with_flags(self.raw(at), flags));
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
