//! The lock of a ledger, held: every change is journaled, and an unfinished step is undone.
//!
//! A change is recorded as (word, old value), then counted, and only then made. Finishing a step sets the count to
//! zero. So at any instruction the journal says how to get back to the last finished step, and undoing twice does no
//! harm. A killed process stops between two instructions and its stores so far all take effect, so it suffices that the
//! compiler keeps their order: they are release stores.
//!
//! Every word that is read behind the lock is [sealed]. Once one is found damaged, no step is finished any more, by any
//! process: what was begun is undone, and the caller reports that the file is damaged.

use super::Book;
use super::balance::{FROZEN, RETURN_CREDIT, with_flags};
use crate::format::{LedgerLayout, STEP_MAX, Words, header, node, sealed, unsealed, waiter};
use std::cell::Cell;

/// The lock of a ledger, held, with the operations that need it. Dropping it undoes the unfinished step, applies notes,
/// thaws what was frozen, wakes those who were granted something and gives the lock back.
#[derive(Debug)]
pub struct LockedBook<'a, W: Words> {
    pub(super) book: &'a Book<W>,
    entries: usize,
    frozen: FrozenNodes,
    /// Words to wake sleepers on when the lock is given back.
    wakes: Vec<usize>,
    /// The first word that was found damaged.
    damage: Cell<Option<usize>>,
}

/// The set of nodes that thaw when the lock is given back.
#[derive(Debug, Default)]
struct FrozenNodes {
    nodes: Vec<usize>,
    marks: [u64; LedgerLayout::FILE.nodes.div_ceil(64)],
}

impl FrozenNodes {
    const fn contains(&self, node: usize) -> bool {
        self.marks[node / 64 % self.marks.len()] & 1 << (node % 64) != 0
    }

    fn insert(&mut self, node: usize) {
        if !self.contains(node) {
            let at = node / 64 % self.marks.len();
            self.marks[at] |= 1 << (node % 64);
            self.nodes.push(node);
        }
    }
}

impl<'a, W: Words> LockedBook<'a, W> {
    pub(super) fn new(book: &'a Book<W>) -> Self {
        let known = unsealed(book.words.load(header::DAMAGED))
            .map_or(Some(header::DAMAGED), |word| (word as usize).checked_sub(1));
        Self { book, entries: 0, frozen: FrozenNodes::default(), wakes: Vec::new(), damage: Cell::new(known) }
    }

    /// Takes over from a dead owner: undoes its unfinished step, and does what it may not have come to after finishing
    /// one, which is thawing nodes and waking those whose requests it granted.
    pub(super) fn take_over(book: &'a Book<W>) -> Self {
        let mut locked = Self::new(book);
        locked.undo();
        for node in 0..book.layout.nodes {
            if book.words.load(book.layout.node_at(node) + node::BALANCE) & FROZEN != 0 {
                locked.frozen.insert(node);
            }
        }
        for entry in 0..book.layout.waiters {
            let at = book.layout.waiter_at(entry);
            if locked.get(at + waiter::STATE) & waiter::STATES == waiter::GRANTED {
                locked.wake_waiter(entry);
            }
        }
        locked
    }

    /// Returns the first word that was found damaged, if one was: nothing has been changed since.
    pub const fn damage(&self) -> Option<usize> {
        self.damage.get()
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.damage.get().is_some()
    }

    /// Records in the file that a word is damaged: whoever finds it may have nobody to tell.
    pub(super) fn record_damage(&self, at: usize) {
        if self.damage.get().is_none() {
            self.damage.set(Some(at));
            self.book.words.store(header::DAMAGED, sealed(at as u64 + 1));
        }
    }

    /// Returns the value of a sealed word; 0 if it is damaged.
    pub(super) fn get(&self, at: usize) -> u64 {
        unsealed(self.raw(at)).unwrap_or_else(|| {
            self.record_damage(at);
            0
        })
    }

    pub(super) fn set(&mut self, at: usize, value: u64) {
        self.set_raw(at, sealed(value));
    }

    /// Returns a word as it is stored.
    pub(super) fn raw(&self, at: usize) -> u64 {
        self.book.words.load(at)
    }

    pub(super) fn set_raw(&mut self, at: usize, word: u64) {
        assert!(self.entries < STEP_MAX, "no step walks a table, so none makes more changes than this");
        self.book.record(self.entries, at);
        self.entries += 1;
        self.book.words.store(header::JOURNAL, sealed(self.entries as u64));
        self.book.words.store(at, word);
    }

    /// Finishes a step: from here on it has happened. If a word was found damaged, the step is undone instead.
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

    /// Returns whether nothing was changed since the last step was finished.
    pub(super) const fn is_between_steps(&self) -> bool {
        self.entries == 0
    }

    /// Undoes the unfinished step.
    pub(super) fn undo(&mut self) {
        if let Err(at) = self.book.undo() {
            self.record_damage(at);
        }
        self.entries = 0;
    }

    /// Returns a field of a node.
    pub fn field(&self, node: usize, field: usize) -> u64 {
        debug_assert!(
            !matches!(field, node::BALANCE | node::RETURNED | node::SETTLED),
            "these are sealed in their own way"
        );
        self.get(self.book.layout.node_at(node) + field)
    }

    pub(super) fn set_field(&mut self, node: usize, field: usize, value: u64) {
        self.set(self.book.layout.node_at(node) + field, value);
    }

    pub(super) fn freeze(&mut self, node: usize) {
        let at = self.book.layout.node_at(node) + node::BALANCE;
        let mut word = self.raw(at);
        while word & FROZEN == 0 {
            match self.book.words.compare_exchange(at, word, with_flags(word, word | FROZEN)) {
                Ok(_) => break,
                Err(seen) => word = seen,
            }
        }
        self.frozen.insert(node);
    }

    pub(super) fn will_thaw(&mut self, node: usize) {
        self.frozen.insert(node);
    }

    pub(super) const fn is_frozen(&self, node: usize) -> bool {
        self.frozen.contains(node)
    }

    /// Thaws every frozen node. Called after the step is finished, so that nothing an owner does from here on can be
    /// undone.
    fn thaw(&mut self) {
        let frozen = std::mem::take(&mut self.frozen);
        for node in frozen.nodes {
            let at = self.book.layout.node_at(node) + node::BALANCE;
            let flags = if self.must_return_credit(node) { RETURN_CREDIT } else { 0 };
            self.book.words.store(at, with_flags(self.raw(at), flags));
        }
    }

    /// Wakes those who sleep on `at` when the lock is given back.
    pub(super) fn wake_on_unlock(&mut self, at: usize) {
        if !self.wakes.contains(&at) {
            self.wakes.push(at);
        }
    }
}

impl<W: Words> Drop for LockedBook<'_, W> {
    fn drop(&mut self) {
        if self.entries > 0 {
            self.undo();
        }
        loop {
            self.apply_pending_notes();
            self.thaw();
            // Before the lock is given back: whoever takes it from a dead owner then knows that some may not have been
            // woken.
            for at in self.wakes.drain(..) {
                self.book.words.wake(at, u32::MAX);
            }
            if self.book.unlock() {
                break;
            }
        }
    }
}
