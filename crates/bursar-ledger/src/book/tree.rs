//! The nodes: what each is, how one is made and taken away.
//!
//! What every node keeps: `total = left + held + the totals of its parts`. Held is not written down; it is what remains.
//! The device and its tenants have nothing left of their own: they grow as their parts do, up to a ceiling. An account
//! grows too, from its tenant or from the reservation it draws on. A reservation does not.

use super::left::{BYTES_MAX, FROZEN, left_in, left_word};
use super::{Desk, Key};
use crate::format::{Words, header, node, product, spelled, unsealed, unspelled};

/// Nobody's.
pub const FREE: u64 = 0;
/// The device.
pub const ROOT: u64 = 1;
/// A tenant of the device.
pub const TENANT: u64 = 2;
/// What a process holds for a tenant, or draws from a reservation.
pub const ACCOUNT: u64 = 3;
/// What was set aside.
pub const RESERVATION: u64 = 4;

impl<W: Words> Desk<'_, W> {
    /// The nodes that may be in use.
    pub fn nodes(&self) -> std::ops::Range<usize> {
        0..(self.get(header::NODES_HIGH) as usize).min(self.book.layout.nodes)
    }

    /// A node's key.
    pub fn key(&self, node: usize) -> Key {
        Key::new(node, self.of(node, node::LIFE), self.book.layout.node_at(node) + node::LEFT)
    }

    /// Whether a key still means what it meant.
    pub fn is_current(&self, key: Key) -> bool {
        self.of(key.node, node::LIFE) == key.life && self.of(key.node, node::KIND) != FREE
    }

    /// The node that `node` is part of.
    pub fn parent(&self, node: usize) -> usize {
        self.of(node, node::PARENT) as usize
    }

    /// The tenant a node belongs to, itself included.
    pub fn tenant_of(&self, node: usize) -> usize {
        let mut at = node;
        // No tree is deeper; a damaged one ends here too.
        for _ in 0..self.book.layout.nodes {
            if matches!(self.of(at, node::KIND), TENANT | ROOT | FREE) {
                break;
            }
            at = self.parent(at);
        }
        at
    }

    /// The direct parts of a node.
    pub fn parts(&self, of: usize) -> impl Iterator<Item = usize> + '_ {
        self.nodes().filter(move |&node| {
            self.of(node, node::KIND) != FREE && node != of && self.of(node, node::PARENT) as usize == of
        })
    }

    /// Freezes a node until the desk is left, and puts back what was returned to it without the lock. That is a step of its
    /// own, so that any number of nodes can be settled one after the other, and none inside a step.
    pub(super) fn settle(&mut self, node: usize) {
        debug_assert!(self.is_between_steps(), "a node is settled before a step begins");
        self.freeze(node);
        let (returned, was) = (self.returned(node), self.left(node));
        // Nobody can give back more than was taken.
        let left = was.saturating_add(returned).min(self.not_in_parts(node));
        if left != was {
            self.put_left(node, left);
        }
        if returned > 0 {
            let at = self.book.layout.node_at(node);
            let folded = self.raw(at + node::FOLDED).wrapping_add(product(returned));
            self.set_raw(at + node::FOLDED, folded);
        }
        self.finish();
    }

    /// Settles a node and the reservation it is part of, if it is: what a step on the node changes.
    pub(super) fn settle_path(&mut self, node: usize) {
        self.settle(node);
        let parent = self.parent(node);
        if self.of(parent, node::KIND) == RESERVATION {
            self.settle(parent);
        }
    }

    /// Returns what can be charged at once of a node that is [settled](Self::settle): nobody else changes it meanwhile.
    pub(super) fn left(&self, node: usize) -> u64 {
        // In a model the dead go on computing, and find what others froze since.
        debug_assert!(cfg!(loom) || self.is_frozen_here(node), "node {node} is not settled");
        self.peek_left(node)
    }

    /// Returns the bytes a node has left at this moment, whatever its owner does meanwhile.
    pub(super) fn peek_left(&self, node: usize) -> u64 {
        let at = self.book.layout.node_at(node) + node::LEFT;
        left_in(self.raw(at), self.of(node, node::LIFE)).unwrap_or_else(|| {
            self.damaged(at);
            0
        })
    }

    /// Returns the bytes that were returned to a node without the lock and not put back yet.
    pub(super) fn returned(&self, node: usize) -> u64 {
        let at = self.book.layout.node_at(node);
        unsealed(self.raw(at + node::RETURNED).wrapping_sub(self.raw(at + node::FOLDED))).unwrap_or_else(|| {
            self.damaged(at + node::RETURNED);
            0
        })
    }

    /// What a node has that its parts do not.
    pub(super) fn not_in_parts(&self, node: usize) -> u64 {
        let total = self.of(node, node::TOTAL);
        if self.of(node, node::KIND) != RESERVATION {
            return total;
        }
        let parts = self.parts(node).map(|part| self.of(part, node::TOTAL)).fold(0, u64::saturating_add);
        total.saturating_sub(parts)
    }

    pub(super) fn put_left(&mut self, node: usize, bytes: u64) {
        let at = self.book.layout.node_at(node) + node::LEFT;
        let word = left_word(self.of(node, node::LIFE), bytes, self.raw(at));
        self.set_raw(at, word);
    }

    pub(super) fn put_total(&mut self, node: usize, bytes: u64) {
        self.put(node, node::TOTAL, bytes);
    }

    /// Settles a node and returns what is charged to it, neither left nor given to its parts.
    pub fn held(&mut self, node: usize) -> u64 {
        self.settle(node);
        let parts: u64 = self.parts(node).map(|part| self.of(part, node::TOTAL)).fold(0, u64::saturating_add);
        self.of(node, node::TOTAL).saturating_sub(self.left(node)).saturating_sub(parts)
    }

    fn free_node(&self) -> Option<usize> {
        (1..self.book.layout.nodes).find(|&node| self.of(node, node::KIND) == FREE)
    }

    /// Whether the table has a row for one more node.
    pub fn has_room_for_a_node(&self) -> bool {
        self.free_node().is_some()
    }

    /// Makes a node that is frozen until the desk is left, or answers that the table is full.
    pub(super) fn plant(&mut self, kind: u64, parent: usize, owner: u64, total: u64, left: u64) -> Option<Key> {
        let node = self.free_node()?;
        let life = self.of(node, node::LIFE);
        self.will_thaw(node);
        let at = self.book.layout.node_at(node);
        self.set_raw(at + node::LEFT, left_word(life, left, FROZEN));
        self.set_raw(at + node::FOLDED, self.raw(at + node::RETURNED));
        let fields = [
            (node::PARENT, parent as u64),
            (node::OWNER, owner),
            (node::TOTAL, total),
            (node::GUARANTEE, 0),
            (node::CEILING, BYTES_MAX),
            (node::KIND, kind),
        ];
        for (field, value) in fields {
            self.put(node, field, value);
        }
        if node >= self.get(header::NODES_HIGH) as usize {
            self.set(header::NODES_HIGH, node as u64 + 1);
        }
        Some(self.key(node))
    }

    /// Takes a node away. Keys of it mean nothing from here on.
    pub(super) fn uproot(&mut self, node: usize) {
        self.freeze(node);
        let life = self.of(node, node::LIFE).wrapping_add(1);
        self.set_raw(self.book.layout.node_at(node) + node::LEFT, left_word(life, 0, FROZEN));
        for (field, value) in [(node::LIFE, life), (node::TOTAL, 0), (node::OWNER, 0), (node::KIND, FREE)] {
            self.put(node, field, value);
        }
    }

    /// The tenant of that name.
    pub fn find_tenant(&self, name: &str) -> Option<usize> {
        let wanted = spelled::<{ node::NAME_WORDS }>(name);
        self.nodes().find(|&node| {
            self.of(node, node::KIND) == TENANT
                && wanted.iter().enumerate().all(|(at, word)| self.of(node, node::NAME + at) == *word)
        })
    }

    /// The tenant of that name, made if there is none; nothing if the table is full.
    pub fn tenant(&mut self, name: &str) -> Option<usize> {
        if let Some(tenant) = self.find_tenant(name) {
            return Some(tenant);
        }
        let tenant = self.plant(TENANT, 0, 0, 0, 0)?.node;
        for (at, word) in spelled::<{ node::NAME_WORDS }>(name).into_iter().enumerate() {
            self.put(tenant, node::NAME + at, word);
        }
        self.finish();
        Some(tenant)
    }

    /// What a tenant is called.
    pub fn tenant_name(&self, tenant: usize) -> String {
        unspelled((0..node::NAME_WORDS).map(|at| self.of(tenant, node::NAME + at)))
    }

    /// Says what a tenant may always have, and what it may have at most.
    pub fn configure(&mut self, tenant: usize, guarantee: u64, ceiling: u64) {
        self.put(tenant, node::GUARANTEE, guarantee.min(BYTES_MAX));
        self.put(tenant, node::CEILING, ceiling.min(BYTES_MAX));
        self.after_change();
    }

    /// What all tenants but one may always have.
    pub fn guaranteed_to_others(&self, tenant: usize) -> u64 {
        self.nodes()
            .filter(|&node| node != tenant && self.of(node, node::KIND) == TENANT)
            .map(|node| self.of(node, node::GUARANTEE))
            .fold(0, u64::saturating_add)
    }

    /// Changes what all may have together.
    pub fn set_limit(&mut self, limit: u64) {
        self.put(0, node::CEILING, limit.min(BYTES_MAX));
        self.after_change();
    }
}
