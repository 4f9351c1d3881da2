//! The nodes: what each is, how one is made and taken away.
//!
//! What every node keeps: `total = left + held + the totals of its parts`. Held is not written down; it is what remains.
//! The device and its tenants have nothing left of their own: they grow as their parts do, up to a ceiling. An account
//! grows too, from its tenant or from the reservation it draws on. A reservation does not.

use super::balance::{BYTES_MAX, FROZEN, balance_in, balance_word};
use super::{LockedBook, NodeKey};
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

impl<W: Words> LockedBook<'_, W> {
    /// The nodes that may be in use.
    pub fn nodes(&self) -> std::ops::Range<usize> {
        0..(self.get(header::NODES_HIGH) as usize).min(self.book.layout.nodes)
    }

    /// A node's key.
    pub fn key(&self, node: usize) -> NodeKey {
        NodeKey::new(node, self.field(node, node::GENERATION), self.book.layout.node_at(node) + node::BALANCE)
    }

    /// Whether a key still means what it meant.
    pub fn is_current(&self, key: NodeKey) -> bool {
        self.field(key.node, node::GENERATION) == key.generation && self.field(key.node, node::KIND) != FREE
    }

    /// The node that `node` is part of.
    pub fn parent(&self, node: usize) -> usize {
        self.field(node, node::PARENT) as usize
    }

    /// The tenant a node belongs to, itself included.
    pub fn tenant_of(&self, node: usize) -> usize {
        let mut at = node;
        // No tree is deeper; a damaged one ends here too.
        for _ in 0..self.book.layout.nodes {
            if matches!(self.field(at, node::KIND), TENANT | ROOT | FREE) {
                break;
            }
            at = self.parent(at);
        }
        at
    }

    /// The direct parts of a node.
    pub fn children(&self, of: usize) -> impl Iterator<Item = usize> + '_ {
        self.nodes().filter(move |&node| {
            self.field(node, node::KIND) != FREE && node != of && self.field(node, node::PARENT) as usize == of
        })
    }

    /// Freezes a node until the desk is left, and puts back what was returned to it without the lock. That is a step of its
    /// own, so that any number of nodes can be settled one after the other, and none inside a step.
    pub(super) fn settle(&mut self, node: usize) {
        debug_assert!(self.is_between_steps(), "a node is settled before a step begins");
        self.freeze(node);
        let (returned, was) = (self.returned(node), self.balance(node));
        // Nobody can give back more than was taken.
        let balance = was.saturating_add(returned).min(self.not_in_children(node));
        if balance != was {
            self.set_balance(node, balance);
        }
        if returned > 0 {
            let at = self.book.layout.node_at(node);
            let folded = self.raw(at + node::SETTLED).wrapping_add(product(returned));
            self.set_raw(at + node::SETTLED, folded);
        }
        self.finish();
    }

    /// Settles a node and the reservation it is part of, if it is: what a step on the node changes.
    pub(super) fn settle_path(&mut self, node: usize) {
        self.settle(node);
        let parent = self.parent(node);
        if self.field(parent, node::KIND) == RESERVATION {
            self.settle(parent);
        }
    }

    /// Returns what can be charged at once of a node that is [settled](Self::settle): nobody else changes it meanwhile.
    pub(super) fn balance(&self, node: usize) -> u64 {
        // In a model the dead go on computing, and find what others froze since.
        debug_assert!(cfg!(loom) || self.is_frozen(node), "node {node} is not settled");
        self.peek_balance(node)
    }

    /// Returns the bytes a node has left at this moment, whatever its owner does meanwhile.
    pub(super) fn peek_balance(&self, node: usize) -> u64 {
        let at = self.book.layout.node_at(node) + node::BALANCE;
        balance_in(self.raw(at), self.field(node, node::GENERATION)).unwrap_or_else(|| {
            self.record_damage(at);
            0
        })
    }

    /// Returns the bytes that were returned to a node without the lock and not put back yet.
    pub(super) fn returned(&self, node: usize) -> u64 {
        let at = self.book.layout.node_at(node);
        unsealed(self.raw(at + node::RETURNED).wrapping_sub(self.raw(at + node::SETTLED))).unwrap_or_else(|| {
            self.record_damage(at + node::RETURNED);
            0
        })
    }

    /// What a node has that its parts do not.
    pub(super) fn not_in_children(&self, node: usize) -> u64 {
        let total = self.field(node, node::TOTAL);
        if self.field(node, node::KIND) != RESERVATION {
            return total;
        }
        let children = self.children(node).map(|child| self.field(child, node::TOTAL)).fold(0, u64::saturating_add);
        total.saturating_sub(children)
    }

    pub(super) fn set_balance(&mut self, node: usize, bytes: u64) {
        let at = self.book.layout.node_at(node) + node::BALANCE;
        let word = balance_word(self.field(node, node::GENERATION), bytes, self.raw(at));
        self.set_raw(at, word);
    }

    pub(super) fn set_total(&mut self, node: usize, bytes: u64) {
        self.set_field(node, node::TOTAL, bytes);
    }

    /// Settles a node and returns what is charged to it, neither left nor given to its parts.
    pub fn settle_held(&mut self, node: usize) -> u64 {
        self.settle(node);
        let children: u64 =
            self.children(node).map(|child| self.field(child, node::TOTAL)).fold(0, u64::saturating_add);
        self.field(node, node::TOTAL).saturating_sub(self.balance(node)).saturating_sub(children)
    }

    fn find_free_node(&self) -> Option<usize> {
        (1..self.book.layout.nodes).find(|&node| self.field(node, node::KIND) == FREE)
    }

    /// Whether the table has a row for one more node.
    pub fn has_free_node(&self) -> bool {
        self.find_free_node().is_some()
    }

    /// Makes a node that is frozen until the desk is left, or answers that the table is full.
    pub(super) fn add_node(
        &mut self,
        kind: u64,
        parent: usize,
        owner: u64,
        total: u64,
        balance: u64,
    ) -> Option<NodeKey> {
        let node = self.find_free_node()?;
        let generation = self.field(node, node::GENERATION);
        self.will_thaw(node);
        let at = self.book.layout.node_at(node);
        self.set_raw(at + node::BALANCE, balance_word(generation, balance, FROZEN));
        self.set_raw(at + node::SETTLED, self.raw(at + node::RETURNED));
        let fields = [
            (node::PARENT, parent as u64),
            (node::OWNER, owner),
            (node::TOTAL, total),
            (node::GUARANTEE, 0),
            (node::CEILING, BYTES_MAX),
            (node::KIND, kind),
        ];
        for (field, value) in fields {
            self.set_field(node, field, value);
        }
        if node >= self.get(header::NODES_HIGH) as usize {
            self.set(header::NODES_HIGH, node as u64 + 1);
        }
        Some(self.key(node))
    }

    /// Takes a node away. Keys of it mean nothing from here on.
    pub(super) fn remove_node(&mut self, node: usize) {
        self.freeze(node);
        let generation = self.field(node, node::GENERATION).wrapping_add(1);
        self.set_raw(self.book.layout.node_at(node) + node::BALANCE, balance_word(generation, 0, FROZEN));
        for (field, value) in [(node::GENERATION, generation), (node::TOTAL, 0), (node::OWNER, 0), (node::KIND, FREE)] {
            self.set_field(node, field, value);
        }
    }

    /// The tenant of that name.
    pub fn find_tenant(&self, name: &str) -> Option<usize> {
        let wanted = spelled::<{ node::NAME_WORDS }>(name);
        self.nodes().find(|&node| {
            self.field(node, node::KIND) == TENANT
                && wanted.iter().enumerate().all(|(at, word)| self.field(node, node::NAME + at) == *word)
        })
    }

    /// The tenant of that name, made if there is none; nothing if the table is full.
    pub fn find_or_add_tenant(&mut self, name: &str) -> Option<usize> {
        if let Some(tenant) = self.find_tenant(name) {
            return Some(tenant);
        }
        let tenant = self.add_node(TENANT, 0, 0, 0, 0)?.node;
        for (at, word) in spelled::<{ node::NAME_WORDS }>(name).into_iter().enumerate() {
            self.set_field(tenant, node::NAME + at, word);
        }
        self.finish();
        Some(tenant)
    }

    /// What a tenant is called.
    pub fn tenant_name(&self, tenant: usize) -> String {
        unspelled((0..node::NAME_WORDS).map(|at| self.field(tenant, node::NAME + at)))
    }

    /// Says what a tenant may always have, and what it may have at most.
    pub fn configure(&mut self, tenant: usize, guarantee: u64, ceiling: u64) {
        self.set_field(tenant, node::GUARANTEE, guarantee.min(BYTES_MAX));
        self.set_field(tenant, node::CEILING, ceiling.min(BYTES_MAX));
        self.apply_limits();
    }

    /// What all tenants but one may always have.
    pub fn guaranteed_to_others(&self, tenant: usize) -> u64 {
        self.nodes()
            .filter(|&node| node != tenant && self.field(node, node::KIND) == TENANT)
            .map(|node| self.field(node, node::GUARANTEE))
            .fold(0, u64::saturating_add)
    }

    /// Changes what all may have together.
    pub fn set_limit(&mut self, limit: u64) {
        self.set_field(0, node::CEILING, limit.min(BYTES_MAX));
        self.apply_limits();
    }
}
