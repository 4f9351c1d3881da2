//! Notes: giving something up without waiting for the lock.
//!
//! A process that gives something up while another has the lock leaves a note. A note is a word that only the handle of
//! its writer has a reason to write: bytes that were returned to a node, or the generation of a node whose handle is
//! gone, of a queue entry that nobody waits for, or of a process that closed the ledger, or the number of a request that
//! nobody waits for. Then the lock's word is
//! flagged, and its owner applies all notes before giving the lock back. An owner that is stopped does so when it
//! continues; if it dies, whoever takes the lock from it looks for all of them. The death of the writer needs no note:
//! all it had is reclaimed.
//!
//! After the ledger was cleared by force, a node or entry may belong to somebody else by the time a note is written. So
//! a note names a generation and never replaces a later one. Applying one twice does no harm: the generation has
//! passed, or nothing is left to do.

use super::{Book, FREE, LockedBook, NodeKey, QueueEntry, RequestKey};
use crate::format::{Words, node, process, sealed, unsealed, waiter};
use std::time::Duration;

impl<W: Words> Book<W> {
    /// Releases: see [`LockedBook::release`]. Never waits.
    pub fn release(&self, key: NodeKey, bytes: u64, keep: u64) {
        if let Some(mut locked) = self.lock_if_free() {
            locked.release(key, bytes, keep);
            return;
        }
        // The generation is checked once more, since a forced clearing may have given the row to somebody else.
        if self.peek(key.node, node::GENERATION) == key.generation {
            // Nobody can return more than was taken, and totals stay far from what the word can hold.
            let bytes = bytes.min(self.peek(key.node, node::TOTAL));
            self.words.fetch_add(self.layout.node_at(key.node) + node::RETURNED, sealed(bytes));
            self.announce_notes();
        }
    }

    /// Closes a node of this process: see [`LockedBook::close`]. Never waits.
    pub fn close(&self, key: NodeKey) {
        if let Some(mut locked) = self.lock_if_free() {
            locked.close(key);
            return;
        }
        self.write_note(self.layout.node_at(key.node) + node::CLOSED, key.generation + 1);
        self.announce_notes();
    }

    /// Leaves the queue: see [`LockedBook::cancel`]. Never waits. What is granted before the note is applied is given
    /// back then.
    pub fn cancel(&self, entry: QueueEntry) {
        if let Some(mut locked) = self.lock_if_free() {
            locked.cancel(entry);
            return;
        }
        self.write_note(self.layout.waiter_at(entry.index) + waiter::ABANDONED, entry.generation());
        self.announce_notes();
    }

    /// Withdraws a request to another process: see [`LockedBook::withdraw_request`]. Never waits. The process finds the
    /// note where it looks whether somebody waits for what it does.
    pub fn withdraw_request(&self, key: RequestKey) {
        if let Some(mut locked) = self.lock_if_free() {
            locked.withdraw_request(key);
            return;
        }
        self.write_note(self.layout.process_at(key.slot) + process::UNWANTED, key.number);
        self.announce_notes();
    }

    /// Removes this process: see [`LockedBook::unregister_process`]. Waits for `timeout` at most, since the slot can be
    /// used again only if the lock was available.
    pub fn unregister_process(&self, timeout: Duration) -> bool {
        if let Ok(mut locked) = self.lock(timeout) {
            return locked.unregister_process();
        }
        let at = self.layout.process_at(self.slot);
        let state = self.peek_process(self.slot, process::STATE);
        if state & process::OCCUPIED != 0 {
            self.write_note(at + process::DEPARTED, state & !process::OCCUPIED);
            self.announce_notes();
        }
        false
    }

    /// Writes a generation unless a later one is there.
    fn write_note(&self, at: usize, generation: u64) {
        self.words.update(at, |noted| unsealed(noted).filter(|noted| *noted < generation).map(|_| sealed(generation)));
    }

    fn announce_notes(&self) {
        if let Some(mut locked) = self.lock_or_flag_notes() {
            locked.apply_notes();
        }
    }

    fn lock_if_free(&self) -> Option<LockedBook<'_, W>> {
        self.lock(Duration::ZERO).ok()
    }
}

impl<W: Words> LockedBook<'_, W> {
    /// Applies all notes, if some were left.
    pub(super) fn apply_pending_notes(&mut self) {
        if self.book.take_notes_flag() {
            self.apply_notes();
        }
    }

    /// Looks for every note there may be and applies it, each in steps of its own.
    pub fn apply_notes(&mut self) {
        let mut any = false;
        for node in self.nodes() {
            any |= self.apply_node_notes(node);
        }
        for entry in 0..self.book.layout.waiters {
            if self.is_abandoned(entry) {
                self.remove_entry(entry);
                any = true;
            }
        }
        for slot in self.slots() {
            let at = self.book.layout.process_at(slot);
            let state = self.get(at + process::STATE);
            if state & process::OCCUPIED != 0 && self.get(at + process::DEPARTED) == state & !process::OCCUPIED {
                self.unregister_slot(slot);
                any = true;
            }
            self.withdraw_unwanted(slot);
        }
        if any {
            self.grant_waiting();
        }
    }

    /// Settles a node to which bytes were returned, returns credit that may not be kept, and closes the node if its
    /// handle is gone. Returns whether there was a note.
    fn apply_node_notes(&mut self, node: usize) -> bool {
        if self.field(node, node::KIND) == FREE {
            return false;
        }
        let returned = self.returned(node) > 0;
        if returned {
            self.settle_path(node);
            if self.must_return_credit(node) {
                self.return_credit(node, self.balance(node));
                self.finish();
            }
        }
        let closed = self.field(node, node::CLOSED) == self.field(node, node::GENERATION).wrapping_add(1);
        if closed {
            self.close_node(node);
        }
        returned || closed
    }
}
