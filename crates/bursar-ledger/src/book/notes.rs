//! Giving up without waiting: what a process cannot do because another has the lock, it leaves as a note.
//!
//! A note is a word that only its writer's handle means, written without the lock: bytes that were returned to a node, the
//! life of a node whose handle is gone, of an entry of the queue that nobody waits for, or of a process that closed the
//! ledger. Then the lock's word says that there are notes, and whoever has the lock digests them before giving it back. An
//! owner that is stopped does so when it continues; if it dies, whoever takes the lock from it looks for all of them. The
//! writer's own death needs no note: all it had is given back when it is buried.
//!
//! A node or entry may be somebody else's by the time a note is written, after the ledger was cleared by force. So a note
//! names a life, and never replaces a later one. Digesting one twice does no harm: the life has passed, or nothing is left.

use super::{Book, Desk, Entry, FREE, Key};
use crate::format::{Words, node, process, sealed, unsealed, waiter};
use std::time::Duration;

impl<W: Words> Book<W> {
    /// Releases: see [`Desk::release`]. Never waits.
    pub fn release(&self, key: Key, bytes: u64, keep: u64) {
        if let Some(mut desk) = self.lock_if_free() {
            desk.release(key, bytes, keep);
            return;
        }
        // The life is looked at once more, since a forced clearing may have given the node to somebody else.
        if self.peek(key.node, node::LIFE) == key.life {
            // Nobody can give back more than was taken, and what that is stays far from what the word can hold.
            let bytes = bytes.min(self.peek(key.node, node::TOTAL));
            self.words.fetch_add(self.layout.node_at(key.node) + node::RETURNED, sealed(bytes));
            self.have_notes_digested();
        }
    }

    /// Gives up a node of this process: see [`Desk::close`]. Never waits.
    pub fn close(&self, key: Key) {
        if let Some(mut desk) = self.lock_if_free() {
            desk.close(key);
            return;
        }
        self.note(self.layout.node_at(key.node) + node::CLOSED, key.life + 1);
        self.have_notes_digested();
    }

    /// Leaves the queue: see [`Desk::cancel`]. Never waits. What is granted before the note is read is given back then.
    pub fn cancel(&self, entry: Entry) {
        if let Some(mut desk) = self.lock_if_free() {
            desk.cancel(entry);
            return;
        }
        self.note(self.layout.waiter_at(entry.index) + waiter::ABANDONED, entry.life());
        self.have_notes_digested();
    }

    /// Leaves: see [`Desk::depart`]. Waits for `patience` at most, since the place can be used again only if the lock was
    /// to be had.
    pub fn depart(&self, patience: Duration) -> bool {
        if let Ok(mut desk) = self.lock(patience) {
            return desk.depart();
        }
        let at = self.layout.process_at(self.place);
        let state = self.peek_process(self.place, process::STATE);
        if state & process::TAKEN != 0 {
            self.note(at + process::DEPARTED, state & !process::TAKEN);
            self.have_notes_digested();
        }
        false
    }

    /// Writes a life where no later one stands.
    fn note(&self, at: usize, life: u64) {
        self.words.update(at, |noted| unsealed(noted).filter(|noted| *noted < life).map(|_| sealed(life)));
    }

    fn have_notes_digested(&self) {
        if let Some(mut desk) = self.lock_or_leave_a_note() {
            desk.digest();
        }
    }

    fn lock_if_free(&self) -> Option<Desk<'_, W>> {
        self.lock(Duration::ZERO).ok()
    }
}

impl<W: Words> Desk<'_, W> {
    /// Does what notes ask for, if some were left.
    pub(super) fn digest_notes(&mut self) {
        if self.book.take_note() {
            self.digest();
        }
    }

    /// Looks for every note there may be, and does what it asks for, each in steps of its own.
    pub fn digest(&mut self) {
        let mut any = false;
        for node in self.nodes() {
            any |= self.digest_at(node);
        }
        for entry in 0..self.book.layout.waiters {
            if self.is_abandoned(entry) {
                self.drop_entry(entry);
                any = true;
            }
        }
        for place in self.places() {
            let at = self.book.layout.process_at(place);
            let state = self.get(at + process::STATE);
            if state & process::TAKEN != 0 && self.get(at + process::DEPARTED) == state & !process::TAKEN {
                self.depart_from(place);
                any = true;
            }
        }
        if any {
            self.serve();
        }
    }

    /// Puts back what was returned to a node, gives up credit that may not be kept, and closes it if its handle is gone.
    fn digest_at(&mut self, node: usize) -> bool {
        if self.of(node, node::KIND) == FREE {
            return false;
        }
        let returned = self.returned(node) > 0;
        if returned {
            self.settle_path(node);
            if self.is_pressed(node) {
                self.give_up_credit(node, self.left(node));
                self.finish();
            }
        }
        let closed = self.of(node, node::CLOSED) == self.of(node, node::LIFE).wrapping_add(1);
        if closed {
            self.close_node(node);
        }
        returned || closed
    }
}
