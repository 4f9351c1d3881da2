//! The algorithms of a ledger, generic over the [`Words`] they run on.
//!
//! A book is a tree of nodes of one shape (`nodes.rs`): the device, its tenants, and below them the accounts and
//! reservations of processes. The bytes a node has of its parent are its *total*. Of these, the *balance* can be
//! charged at once, some are *held*, and the rest are the totals of its children.
//!
//! # Two ways to change a book
//!
//! The owner of a node charges and releases by one compare-and-swap on the node's balance, without the lock
//! (`balance.rs`). Everything rarer is plain sequential code behind one lock (`lock.rs`), through a [`LockedBook`]
//! (`locked.rs`): charges that need more credit (`charge.rs`), limits and credit (`limits.rs`), reservations
//! (`reserve.rs`), the queue (`queue.rs`), processes that come, go and die (`processes.rs`), what they ask of each other (`requests.rs`), and what those who watch are told
//! (`telemetry.rs`). Every change behind
//! the lock is entered into an undo journal first (`journal.rs`), so a process that finds the lock's owner dead undoes
//! the owner's last step: a crash at any instruction is one case, not one for each operation. No step walks a table, so
//! each is shorter than the journal.
//!
//! # Invariants
//!
//! - Only the owner of a node changes its balance without the lock, and only by compare-and-swap. What an owner writes
//!   beside that without the lock are notes (`notes.rs`), which name a generation and are applied behind the lock.
//! - Whoever is about to refuse something first *freezes* every balance that matters, all of them, and counts
//!   afterwards. Only then is there one moment at which the refusal was right.
//! - Nothing thaws before its step is finished, so nothing an owner does can be undone.
//! - The lock is given back only after those who were granted something have been woken; whoever takes the lock from a
//!   dead owner wakes them again.
//! - Giving up never waits: a release, a dropped reservation or future, a passed deadline and a closed ledger leave a
//!   note where the lock is not available.
//! - Once a damaged word is met, no step is finished any more, by any process, and the header says so to everyone.

mod balance;
mod charge;
mod consistency;
mod journal;
mod limits;
mod lock;
mod locked;
mod nodes;
mod notes;
mod processes;
mod queue;
mod requests;
mod reserve;
mod telemetry;

pub use balance::{BYTES_MAX, CreditLimit, NodeKey};
pub use charge::BookError;
pub use limits::Shortfall;
pub(crate) use limits::WHOLE;
pub use lock::LockError;
pub use locked::LockedBook;
pub use nodes::{ACCOUNT, FREE, RESERVATION, ROOT, TENANT};
pub use queue::{QueueEntry, QueueRequest};
pub use requests::{AskRefusal, ProcessRequest, RequestEnd, RequestKey, RequestState};
pub use telemetry::{PublishedUsage, RefusalEntry};

use crate::format::{LedgerLayout, Words, decode_name, header, node, process, sealed, unsealed};

/// A ledger as one process sees it: the words, and the slot the process has in the table of processes.
#[derive(Debug)]
pub struct Book<W> {
    words: W,
    layout: LedgerLayout,
    slot: usize,
}

impl<W: Words> Book<W> {
    /// Makes a book over `words`, for the process in `slot`.
    pub const fn new(words: W, layout: LedgerLayout, slot: usize) -> Self {
        Self { words, layout, slot }
    }

    /// Returns the words.
    #[inline(always)]
    pub const fn words(&self) -> &W {
        &self.words
    }

    /// Returns the layout of the words.
    pub const fn layout(&self) -> LedgerLayout {
        self.layout
    }

    /// Returns the slot of this process.
    pub const fn slot(&self) -> usize {
        self.slot
    }

    /// Writes the first figures of a new ledger: the device with `total` bytes, no tenants and no processes.
    pub fn initialize(&self, total: u64) {
        let total = total.min(BYTES_MAX);
        let root = self.layout.node_at(0);
        self.words.store(header::TOTAL, total);
        self.words.store(root + node::KIND, sealed(ROOT));
        self.words.store(root + node::GUARANTEE, sealed(total));
        self.words.store(root + node::CEILING, sealed(total));
        self.words.store(header::NODES_HIGH, sealed(1));
    }

    /// Reads a field of a node without the lock. Returns 0 if it is damaged, which whoever takes the lock will find.
    pub fn peek(&self, node: usize, field: usize) -> u64 {
        unsealed(self.words.load(self.layout.node_at(node) + field)).unwrap_or(0)
    }

    /// Reads the balance of a node without the lock. Returns 0 if it is damaged.
    pub fn peek_balance(&self, node: usize) -> u64 {
        balance::balance_in(
            self.words.load(self.layout.node_at(node) + node::BALANCE),
            self.peek(node, node::GENERATION),
        )
        .unwrap_or(0)
    }

    /// Reads the balances of all accounts that draw on a node without the lock. What moves between them meanwhile may be missing.
    pub fn peek_credit(&self, of: usize) -> u64 {
        let high = unsealed(self.words.load(header::NODES_HIGH)).unwrap_or(0) as usize;
        let draws =
            |node: usize| self.peek(node, node::PARENT) as usize == of && self.peek(node, node::KIND) == ACCOUNT;
        let credit = (1..high.min(self.layout.nodes)).filter(|&node| draws(node)).map(|node| self.peek_balance(node));
        credit.fold(0, u64::saturating_add)
    }

    /// Reads a field of a process's row without the lock. Returns 0 if it is damaged.
    pub fn peek_process(&self, slot: usize, field: usize) -> u64 {
        unsealed(self.words.load(self.layout.process_at(slot) + field)).unwrap_or(0)
    }

    /// Reads the name of the process in a slot without the lock.
    pub fn process_name(&self, slot: usize) -> String {
        decode_name((0..process::NAME_WORDS).map(|at| self.peek_process(slot, process::NAME + at)))
    }

    /// Returns the word that the listening thread of this process sleeps on.
    pub const fn events_at(&self) -> usize {
        self.layout.process_at(self.slot) + process::EVENTS
    }
}
