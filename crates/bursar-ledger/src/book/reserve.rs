//! Reservations: setting aside, splitting, shrinking, drawing on somebody else's, and giving back.

use super::{ACCOUNT, Desk, FREE, Key, Lack, RESERVATION, Refused, TENANT};
use crate::format::{Words, node};

impl<W: Words> Desk<'_, W> {
    pub(super) const fn me(&self) -> u64 {
        self.book.place as u64 + 1
    }

    /// An account of this process, for a tenant or to draw on a reservation.
    pub fn open_account(&mut self, parent: usize) -> Result<Key, Refused> {
        if !matches!(self.of(parent, node::KIND), TENANT | RESERVATION) {
            return Err(Refused::Cleared);
        }
        let key = self.plant(ACCOUNT, parent, self.me(), 0, 0).ok_or(Refused::Full)?;
        self.finish();
        Ok(key)
    }

    /// Sets `bytes` aside for a tenant. Refuses only when all credit was called in and the dead are buried.
    pub fn reserve(&mut self, tenant: usize, bytes: u64) -> Result<Key, Refused> {
        if self.of(tenant, node::KIND) != TENANT {
            return Err(Refused::Cleared);
        }
        if self.grow(tenant, bytes).is_err() {
            self.bury_the_dead();
            self.gather(tenant);
            self.grow(tenant, bytes)?;
        }
        let Some(key) = self.plant(RESERVATION, tenant, self.me(), bytes, bytes) else {
            self.undo();
            return Err(Refused::Full);
        };
        self.finish();
        Ok(key)
    }

    /// Makes a part of what a reservation has not drawn a reservation of its own.
    pub fn split(&mut self, key: Key, bytes: u64) -> Result<Key, Refused> {
        if !self.is_current(key) {
            return Err(Refused::Cleared);
        }
        let (node, parent) = (key.node, self.parent(key.node));
        if self.of(node, node::KIND) == RESERVATION {
            self.settle(node);
            let (left, total) = (self.left(node), self.of(node, node::TOTAL));
            if left < bytes {
                return Err(Lack { remaining: left, limit: total }.into());
            }
            self.put_left(node, left - bytes);
            self.put_total(node, total.saturating_sub(bytes));
        } else {
            self.gather(parent);
            self.pull(parent, bytes)?;
        }
        let Some(key) = self.plant(RESERVATION, parent, self.me(), bytes, bytes) else {
            self.undo();
            return Err(Refused::Full);
        };
        self.finish();
        Ok(key)
    }

    /// Gives back what a reservation has beyond `to`.
    pub fn shrink(&mut self, key: Key, to: u64) -> Result<(), Refused> {
        if !self.is_current(key) {
            return Err(Refused::Cleared);
        }
        self.settle_path(key.node);
        let (left, total) = (self.left(key.node), self.of(key.node, node::TOTAL));
        let excess = total.saturating_sub(to);
        if self.of(key.node, node::KIND) != RESERVATION || left < excess {
            return Err(Lack { remaining: left, limit: total }.into());
        }
        self.put_left(key.node, left - excess);
        self.put_total(key.node, total.saturating_sub(excess));
        self.give(self.parent(key.node), excess);
        self.finish();
        self.serve();
        Ok(())
    }

    /// Gives up a node of this process: what is left returns, what is held stays until the process has ended, and a
    /// reservation that others draw on stays until they are gone too.
    pub fn close(&mut self, key: Key) {
        if self.is_current(key) {
            self.close_node(key.node);
            self.serve();
        }
    }

    pub(super) fn close_node(&mut self, node: usize) {
        if self.held(node) == 0 {
            self.leave(node);
            return;
        }
        self.settle_path(node);
        let (left, total) = (self.left(node), self.of(node, node::TOTAL));
        if left > 0 {
            self.put_left(node, 0);
            self.put_total(node, total.saturating_sub(left));
            self.give(self.parent(node), left);
            self.finish();
        }
    }

    /// Takes a node away for its owner, or leaves it to those who draw on it.
    pub(super) fn leave(&mut self, node: usize) {
        let parts: Vec<u64> = self.parts(node).map(|part| self.of(part, node::TOTAL)).collect();
        if !parts.is_empty() {
            // What the giver held itself is theirs to draw on as well.
            let drawn = parts.into_iter().fold(0, u64::saturating_add);
            self.settle(node);
            self.put_left(node, self.of(node, node::TOTAL).saturating_sub(drawn));
            self.put(node, node::OWNER, 0);
            self.finish();
            return;
        }
        let mut node = node;
        loop {
            let parent = self.parent(node);
            self.settle_path(node);
            self.give(parent, self.of(node, node::TOTAL));
            self.uproot(node);
            self.finish();
            if self.is_damaged() {
                return;
            }
            // The last who drew on a reservation whose giver is gone takes it along.
            let orphan = self.of(parent, node::KIND) == RESERVATION && self.of(parent, node::OWNER) == 0;
            if !orphan || self.parts(parent).next().is_some() {
                return;
            }
            node = parent;
        }
    }

    /// Whether a node is in use.
    pub fn exists(&self, node: usize) -> bool {
        node < self.book.layout.nodes && self.of(node, node::KIND) != FREE
    }
}
