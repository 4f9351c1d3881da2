//! Charging and releasing behind the lock, where the balance of a node does not suffice.

use super::{ACCOUNT, Book, LockError, LockedBook, NodeKey, Shortfall};
use crate::format::{Words, header, node};
use crate::refusal::RefusalReason;
use std::time::Duration;

/// The reasons for which a book refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BookError {
    /// The request does not fit.
    Shortfall(Shortfall),
    /// The ledger was cleared, and the node with it.
    Cleared,
    /// A table has no free row.
    TableFull,
}

impl From<Shortfall> for BookError {
    fn from(shortfall: Shortfall) -> Self {
        Self::Shortfall(shortfall)
    }
}

impl<W: Words> LockedBook<'_, W> {
    /// Charges an account or a reservation. An account whose balance is too small takes the rest from its parent, and
    /// up to `credit` more where that is there for the taking. Refuses only after all credit was recalled and the
    /// charges of dead processes were reclaimed.
    pub fn charge(&mut self, key: NodeKey, bytes: u64, credit: u64) -> Result<(), BookError> {
        if !self.is_current(key) {
            return Err(BookError::Cleared);
        }
        self.settle_path(key.node);
        if self.try_charge(key.node, bytes, credit) {
            return Ok(());
        }
        if self.field(key.node, node::KIND) != ACCOUNT {
            let (remaining, limit) = (self.balance(key.node), self.field(key.node, node::TOTAL));
            return Err(Shortfall { remaining, limit, reason: RefusalReason::Share }.into());
        }
        self.reclaim_dead_processes();
        let parent = self.parent(key.node);
        self.recall_credit(parent);
        self.take_from(parent, bytes)?;
        self.set_total(key.node, self.field(key.node, node::TOTAL).saturating_add(bytes));
        self.finish();
        Ok(())
    }

    fn try_charge(&mut self, node: usize, bytes: u64, credit: u64) -> bool {
        let balance = self.balance(node);
        if balance >= bytes {
            self.set_balance(node, balance - bytes);
            self.finish();
            return true;
        }
        if self.field(node, node::KIND) != ACCOUNT {
            return false;
        }
        let (parent, lacking) = (self.parent(node), bytes - balance);
        let more = if self.get(header::WAITING) == 0 { credit } else { 0 };
        for more in [more, 0] {
            let wanted = lacking.saturating_add(more);
            if self.take_from(parent, wanted).is_ok() {
                self.set_total(node, self.field(node, node::TOTAL).saturating_add(wanted));
                self.set_balance(node, more);
                self.finish();
                return true;
            }
        }
        false
    }

    /// Puts back what was charged. An account keeps up to `keep` of it as credit, if it may keep any.
    pub(super) fn release(&mut self, key: NodeKey, bytes: u64, keep: u64) {
        if !self.is_current(key) {
            return;
        }
        self.settle_path(key.node);
        let balance = self.balance(key.node).saturating_add(bytes).min(self.not_in_children(key.node));
        self.set_balance(key.node, balance);
        if self.field(key.node, node::KIND) == ACCOUNT {
            let keep = if self.must_return_credit(key.node) { 0 } else { keep };
            self.return_credit(key.node, balance.saturating_sub(keep));
        }
        self.finish();
        self.grant_waiting();
    }
}

impl<W: Words> Book<W> {
    /// Charges behind the lock: see [`LockedBook::charge`].
    pub fn charge(
        &self,
        key: NodeKey,
        bytes: u64,
        credit: u64,
        timeout: Duration,
    ) -> Result<Result<(), BookError>, LockError> {
        Ok(self.lock(timeout)?.charge(key, bytes, credit))
    }
}
