//! Reservations: making, splitting, shrinking, drawing on and closing them.

use super::{ACCOUNT, BookError, FREE, LockedBook, NodeKey, RESERVATION, Shortfall, TENANT};
use crate::format::{Words, node};
use crate::refusal::RefusalReason;

impl<W: Words> LockedBook<'_, W> {
    pub(super) const fn owner_id(&self) -> u64 {
        self.book.slot as u64 + 1
    }

    /// Opens an account of this process, for a tenant or to draw on a reservation.
    pub fn open_account(&mut self, parent: usize) -> Result<NodeKey, BookError> {
        if !matches!(self.field(parent, node::KIND), TENANT | RESERVATION) {
            return Err(BookError::Cleared);
        }
        let key = self.add_node(ACCOUNT, parent, self.owner_id(), 0, 0).ok_or(BookError::TableFull)?;
        self.finish();
        Ok(key)
    }

    /// Sets `bytes` aside for a tenant. Refuses only after all credit was recalled and the charges of dead processes
    /// were reclaimed.
    pub fn reserve(&mut self, tenant: usize, bytes: u64) -> Result<NodeKey, BookError> {
        self.reserve_leaving(tenant, bytes, 0, 0)
    }

    /// Sets `bytes` aside as [`reserve`](Self::reserve) does, if `kept` millionths of what all may have are free afterwards. It comes
    /// before those who wait with a lower priority.
    pub fn reserve_leaving(
        &mut self,
        tenant: usize,
        bytes: u64,
        kept: u64,
        priority: u64,
    ) -> Result<NodeKey, BookError> {
        if self.field(tenant, node::KIND) != TENANT {
            return Err(BookError::Cleared);
        }
        if self.grow_tenant(tenant, bytes, kept, priority).is_err() {
            self.reclaim_dead_processes();
            self.recall_credit(tenant);
            self.grow_tenant(tenant, bytes, kept, priority)?;
        }
        let Some(key) = self.add_node(RESERVATION, tenant, self.owner_id(), bytes, bytes) else {
            self.undo();
            return Err(BookError::TableFull);
        };
        self.finish();
        Ok(key)
    }

    /// Makes a reservation of its own, with the same label, out of bytes that a reservation has not drawn.
    pub fn split(&mut self, key: NodeKey, bytes: u64) -> Result<NodeKey, BookError> {
        if !self.is_current(key) {
            return Err(BookError::Cleared);
        }
        let (node, parent) = (key.node, self.parent(key.node));
        let label = self.label(node);
        if self.field(node, node::KIND) == RESERVATION {
            self.settle(node);
            let (balance, total) = (self.balance(node), self.field(node, node::TOTAL));
            if balance < bytes {
                return Err(Shortfall { remaining: balance, limit: total, reason: RefusalReason::Share }.into());
            }
            self.set_balance(node, balance - bytes);
            self.set_total(node, total.saturating_sub(bytes));
        } else {
            self.recall_credit(parent);
            self.take_from(parent, bytes)?;
        }
        let Some(key) = self.add_node(RESERVATION, parent, self.owner_id(), bytes, bytes) else {
            self.undo();
            return Err(BookError::TableFull);
        };
        self.finish();
        self.set_label(key, &label);
        Ok(key)
    }

    /// Charges an account with all that a reservation of the same tenant has, which has nothing then.
    pub fn absorb(&mut self, account: NodeKey, reservation: NodeKey) -> Result<(), BookError> {
        if !self.is_current(account) || !self.is_current(reservation) {
            return Err(BookError::Cleared);
        }
        self.settle(reservation.node);
        self.settle_path(account.node);
        let bytes = self.field(reservation.node, node::TOTAL);
        self.set_balance(reservation.node, 0);
        self.set_total(reservation.node, 0);
        self.set_total(account.node, self.field(account.node, node::TOTAL).saturating_add(bytes));
        self.finish();
        Ok(())
    }

    /// Adds all that a reservation has not drawn to another of the same tenant. Returns whether they are such two.
    pub fn merge(&mut self, into: NodeKey, from: NodeKey) -> Result<bool, BookError> {
        if !self.is_current(into) || !self.is_current(from) {
            return Err(BookError::Cleared);
        }
        let is_reservation = |key: NodeKey| self.field(key.node, node::KIND) == RESERVATION;
        let are_alike =
            is_reservation(into) && is_reservation(from) && self.parent(into.node) == self.parent(from.node);
        if !are_alike || into == from {
            return Ok(false);
        }
        self.settle_path(from.node);
        self.settle_path(into.node);
        let bytes = self.balance(from.node);
        self.set_balance(from.node, 0);
        self.set_total(from.node, self.field(from.node, node::TOTAL).saturating_sub(bytes));
        self.set_balance(into.node, self.balance(into.node).saturating_add(bytes));
        self.set_total(into.node, self.field(into.node, node::TOTAL).saturating_add(bytes));
        self.finish();
        Ok(true)
    }

    /// Gives back all that a reservation has not drawn, credit of those who draw on it included; returns how much that was.
    pub fn give_back_undrawn(&mut self, key: NodeKey) -> Result<u64, BookError> {
        if !self.is_current(key) {
            return Err(BookError::Cleared);
        }
        self.recall_credit(key.node);
        self.settle_path(key.node);
        let undrawn = self.balance(key.node);
        let total = self.field(key.node, node::TOTAL);
        self.shrink(key, total.saturating_sub(undrawn)).map(|()| undrawn)
    }

    /// Gives back what a reservation has beyond `to`.
    pub fn shrink(&mut self, key: NodeKey, to: u64) -> Result<(), BookError> {
        if !self.is_current(key) {
            return Err(BookError::Cleared);
        }
        self.settle_path(key.node);
        let (balance, total) = (self.balance(key.node), self.field(key.node, node::TOTAL));
        let excess = total.saturating_sub(to);
        if self.field(key.node, node::KIND) != RESERVATION || balance < excess {
            return Err(Shortfall { remaining: balance, limit: total, reason: RefusalReason::Share }.into());
        }
        self.set_balance(key.node, balance - excess);
        self.set_total(key.node, total.saturating_sub(excess));
        self.return_to(self.parent(key.node), excess);
        self.finish();
        self.grant_waiting();
        Ok(())
    }

    /// Closes a node of this process. Its balance returns at once, what is held stays charged until the process has
    /// ended, and a reservation that others draw on stays until they are gone too.
    pub fn close(&mut self, key: NodeKey) {
        if self.is_current(key) {
            self.close_node(key.node);
            self.grant_waiting();
        }
    }

    pub(super) fn close_node(&mut self, node: usize) {
        if self.settle_held(node) == 0 {
            self.remove_or_orphan(node);
            return;
        }
        self.settle_path(node);
        let (balance, total) = (self.balance(node), self.field(node, node::TOTAL));
        if balance > 0 {
            self.set_balance(node, 0);
            self.set_total(node, total.saturating_sub(balance));
            self.return_to(self.parent(node), balance);
            self.finish();
        }
    }

    /// Removes a node; a reservation that others draw on is left to them, without an owner.
    pub(super) fn remove_or_orphan(&mut self, node: usize) {
        let children: Vec<u64> = self.children(node).map(|child| self.field(child, node::TOTAL)).collect();
        if !children.is_empty() {
            // What the giver itself held can be drawn as well.
            let drawn = children.into_iter().fold(0, u64::saturating_add);
            self.settle(node);
            self.set_balance(node, self.field(node, node::TOTAL).saturating_sub(drawn));
            self.set_field(node, node::OWNER, 0);
            self.finish();
            return;
        }
        let mut node = node;
        loop {
            let parent = self.parent(node);
            self.settle_path(node);
            self.return_to(parent, self.field(node, node::TOTAL));
            self.remove_node(node);
            self.finish();
            if self.is_damaged() {
                return;
            }
            // A reservation whose giver is gone ends with the last that drew on it.
            let orphan = self.field(parent, node::KIND) == RESERVATION && self.field(parent, node::OWNER) == 0;
            if !orphan || self.children(parent).next().is_some() {
                return;
            }
            node = parent;
        }
    }

    /// Returns whether a node is in use.
    pub fn exists(&self, node: usize) -> bool {
        node < self.book.layout.nodes && self.field(node, node::KIND) != FREE
    }
}
