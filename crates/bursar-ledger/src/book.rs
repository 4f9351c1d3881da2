//! How a ledger is kept: the algorithms, generic over the [`Words`] they run on.
//!
//! Accounts are a tree of nodes of one shape (`tree.rs`): the device, its tenants, and below them the accounts and
//! reservations of processes. What a node has of its parent is its total; what can be charged at once is its `left`, and
//! that one word its owner changes without a lock (`left.rs`). Everything else is changed behind one lock (`lock.rs`) and
//! journaled (`desk.rs`), so that whoever finds the lock's owner dead puts back what was half done. Behind the lock the
//! rest is plain sequential code: what fits (`room.rs`), charging (`charge.rs`), reservations (`reserve.rs`), the queue
//! (`queue.rs`), what those left to do who could not have the lock (`notes.rs`), and what the dead left behind
//! (`repair.rs`).

mod charge;
mod check;
mod desk;
mod journal;
mod left;
mod lock;
mod notes;
mod queue;
mod repair;
mod reserve;
mod room;
mod tree;

pub use charge::Refused;
pub use desk::Desk;
pub use left::{BYTES_MAX, Key, Most};
pub use lock::NoLock;
pub use queue::{Entry, Wanting};
pub use room::Lack;
pub use tree::{ACCOUNT, FREE, RESERVATION, ROOT, TENANT};

use crate::format::{Layout, Words, header, node, process, sealed, unsealed, unspelled};

/// A ledger as one process sees it: the words, and the place it has among the processes.
#[derive(Debug)]
pub struct Book<W> {
    words: W,
    layout: Layout,
    place: usize,
}

impl<W: Words> Book<W> {
    /// A book over `words`, for the process at `place`.
    pub const fn new(words: W, layout: Layout, place: usize) -> Self {
        Self { words, layout, place }
    }

    /// The words.
    #[inline(always)]
    pub const fn words(&self) -> &W {
        &self.words
    }

    /// How large the tables are.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// This process's place.
    pub const fn place(&self) -> usize {
        self.place
    }

    /// Writes a new ledger's first figures: the device, with all of `total` to give, and nobody there.
    pub fn found(&self, total: u64) {
        let total = total.min(BYTES_MAX);
        let root = self.layout.node_at(0);
        self.words.store(header::TOTAL, total);
        self.words.store(root + node::KIND, sealed(ROOT));
        self.words.store(root + node::GUARANTEE, sealed(total));
        self.words.store(root + node::CEILING, sealed(total));
        self.words.store(header::NODES_HIGH, sealed(1));
    }

    /// A word of a node, read without the lock; nothing if it is damaged, which whoever takes the lock finds.
    pub fn peek(&self, node: usize, field: usize) -> u64 {
        unsealed(self.words.load(self.layout.node_at(node) + field)).unwrap_or(0)
    }

    /// Returns the bytes a node has left, read without the lock.
    pub fn peek_left(&self, node: usize) -> u64 {
        left::left_in(self.words.load(self.layout.node_at(node) + node::LEFT), self.peek(node, node::LIFE)).unwrap_or(0)
    }

    /// A word of a process's entry, read without the lock.
    pub fn peek_process(&self, place: usize, field: usize) -> u64 {
        unsealed(self.words.load(self.layout.process_at(place) + field)).unwrap_or(0)
    }

    /// Returns the name of the process at a place, read without the lock.
    pub fn process_name(&self, place: usize) -> String {
        unspelled((0..process::NAME_WORDS).map(|at| self.peek_process(place, process::NAME + at)))
    }

    /// The word this process sleeps on until there is something to look at.
    pub const fn bell_at(&self) -> usize {
        self.layout.process_at(self.place) + process::BELL
    }
}
