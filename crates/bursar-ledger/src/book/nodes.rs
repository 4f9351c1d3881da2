//! The tree of nodes: adding, removing and settling them.
//!
//! Every node keeps `total = balance + held + the totals of its children`. Held bytes are not stored; they are what
//! remains. The device and its tenants have no balance: they grow as their children do, up to a ceiling. An account
//! grows too, from its tenant or from the reservation it draws on. A reservation does not.

use super::balance::{BYTES_MAX, FROZEN, balance_in, balance_word};
use super::{LockedBook, NodeKey};
use crate::format::{Words, decode_name, encode_name, header, node, product, unsealed};

/// The kind of a row that is not in use.
pub const FREE: u64 = 0;
/// The kind of node 0, the device.
pub const ROOT: u64 = 1;
/// The kind of a tenant of the device.
pub const TENANT: u64 = 2;
/// The kind of an account: what a process holds for a tenant, or draws from a reservation.
pub const ACCOUNT: u64 = 3;
/// The kind of a reservation.
pub const RESERVATION: u64 = 4;

const _: () = assert!(FREE == 0 && RESERVATION == 4, "as format/layout.rs draws it");

impl<W: Words> LockedBook<'_, W> {
    /// Returns the nodes that may be in use.
    pub fn nodes(&self) -> std::ops::Range<usize> {
        0..(self.get(header::NODES_HIGH) as usize).min(self.book.layout.nodes)
    }

    /// Returns the key of a node.
    pub fn key(&self, node: usize) -> NodeKey {
        NodeKey::new(node, self.field(node, node::GENERATION), self.book.layout.node_at(node) + node::BALANCE)
    }

    /// Returns whether the node that a key was made for still exists.
    pub fn is_current(&self, key: NodeKey) -> bool {
        self.field(key.node, node::GENERATION) == key.generation && self.field(key.node, node::KIND) != FREE
    }

    /// Returns the parent of a node.
    pub fn parent(&self, node: usize) -> usize {
        self.field(node, node::PARENT) as usize
    }

    /// Returns the tenant a node belongs to, which may be the node itself.
    pub fn tenant_of(&self, node: usize) -> usize {
        let mut at = node;
        // No tree is deeper; in a damaged one the loop ends here too.
        for _ in 0..self.book.layout.nodes {
            if matches!(self.field(at, node::KIND), TENANT | ROOT | FREE) {
                break;
            }
            at = self.parent(at);
        }
        at
    }

    /// Returns whether a node is `top` or lies below it.
    pub(super) fn is_below(&self, node: usize, top: usize) -> bool {
        // The loop ends in a damaged tree too.
        let mut way = std::iter::successors(Some(node), |&at| (at != 0).then(|| self.parent(at)));
        top == 0 || way.by_ref().take(self.book.layout.nodes).any(|at| at == top)
    }

    /// Returns the children of a node.
    pub fn children(&self, of: usize) -> impl Iterator<Item = usize> + '_ {
        self.nodes().filter(move |&node| {
            self.field(node, node::KIND) != FREE && node != of && self.field(node, node::PARENT) as usize == of
        })
    }

    /// Returns the sum of the totals of each node's children, by node, in one look at the table.
    pub(super) fn totals_of_children(&self) -> Vec<u64> {
        let mut sums = vec![0u64; self.book.layout.nodes];
        for node in self.nodes() {
            let parent = self.parent(node);
            if parent != node
                && self.field(node, node::KIND) != FREE
                && let Some(sum) = sums.get_mut(parent)
            {
                *sum = sum.saturating_add(self.field(node, node::TOTAL));
            }
        }
        sums
    }

    /// Freezes a node until the lock is given back, and adds to its balance what was returned to it without the lock.
    /// That is a step of its own: any number of nodes can be settled one after the other, but none inside a step.
    pub(super) fn settle(&mut self, node: usize) {
        debug_assert!(self.is_between_steps(), "a node is settled before a step begins");
        self.freeze(node);
        let (returned, was) = (self.returned(node), self.balance(node));
        // Nobody can return more than was taken.
        let balance = was.saturating_add(returned).min(self.not_in_children(node));
        if balance != was {
            self.set_balance(node, balance);
        }
        if returned > 0 {
            let at = self.book.layout.node_at(node);
            let settled = self.raw(at + node::SETTLED).wrapping_add(product(returned));
            self.set_raw(at + node::SETTLED, settled);
        }
        self.finish();
    }

    /// Settles a node and, if that is a reservation, its parent: the nodes that a step on the node changes.
    pub(super) fn settle_path(&mut self, node: usize) {
        self.settle(node);
        let parent = self.parent(node);
        if self.field(parent, node::KIND) == RESERVATION {
            self.settle(parent);
        }
    }

    /// Returns the balance of a node that is [settled](Self::settle), so that nobody else changes it meanwhile.
    pub(super) fn balance(&self, node: usize) -> u64 {
        // In a loom model the dead go on computing, and find what others have frozen since.
        debug_assert!(cfg!(loom) || self.is_frozen(node), "node {node} is not settled");
        self.peek_balance(node)
    }

    /// Returns the balance of a node at this moment, whatever its owner does meanwhile.
    pub(super) fn peek_balance(&self, node: usize) -> u64 {
        let at = self.book.layout.node_at(node) + node::BALANCE;
        balance_in(self.raw(at), self.field(node, node::GENERATION)).unwrap_or_else(|| {
            self.record_damage(at);
            0
        })
    }

    /// Returns the bytes that were returned to a node without the lock and are not yet in its balance.
    pub(super) fn returned(&self, node: usize) -> u64 {
        let at = self.book.layout.node_at(node);
        unsealed(self.raw(at + node::RETURNED).wrapping_sub(self.raw(at + node::SETTLED))).unwrap_or_else(|| {
            self.record_damage(at + node::RETURNED);
            0
        })
    }

    /// Returns the bytes of a node that are not in the totals of its children.
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

    /// Settles a node and returns the bytes that are charged to it: neither in its balance nor given to its children.
    pub fn settle_held(&mut self, node: usize) -> u64 {
        self.settle(node);
        let children: u64 =
            self.children(node).map(|child| self.field(child, node::TOTAL)).fold(0, u64::saturating_add);
        self.field(node, node::TOTAL).saturating_sub(self.balance(node)).saturating_sub(children)
    }

    fn find_free_node(&self) -> Option<usize> {
        (1..self.book.layout.nodes).find(|&node| self.field(node, node::KIND) == FREE)
    }

    /// Returns whether the table has a row for one more node.
    pub fn has_free_node(&self) -> bool {
        self.find_free_node().is_some()
    }

    /// Adds a node, frozen until the lock is given back. Returns `None` if the table is full.
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
        // Counters of a tenant that was here before; other nodes never had any.
        for counter in [node::REFUSED, node::WAITED] {
            if self.field(node, counter) != 0 {
                self.set_field(node, counter, 0);
            }
        }
        // A label that says anything begins in the first of its words.
        if kind == RESERVATION && self.field(node, node::NAME) != 0 {
            self.write_name(node, "");
        }
        if node >= self.get(header::NODES_HIGH) as usize {
            self.set(header::NODES_HIGH, node as u64 + 1);
        }
        Some(self.key(node))
    }

    /// Removes a node. Its keys are not current any more.
    pub(super) fn remove_node(&mut self, node: usize) {
        self.freeze(node);
        let generation = self.field(node, node::GENERATION).wrapping_add(1);
        self.set_raw(self.book.layout.node_at(node) + node::BALANCE, balance_word(generation, 0, FROZEN));
        for (field, value) in [(node::GENERATION, generation), (node::TOTAL, 0), (node::OWNER, 0), (node::KIND, FREE)] {
            self.set_field(node, field, value);
        }
    }

    /// Returns the tenant of that name, if there is one.
    pub fn find_tenant(&self, name: &str) -> Option<usize> {
        let wanted = encode_name::<{ node::NAME_WORDS }>(name);
        self.nodes().find(|&node| {
            self.field(node, node::KIND) == TENANT
                && wanted.iter().enumerate().all(|(at, word)| self.field(node, node::NAME + at) == *word)
        })
    }

    /// Returns the tenant of that name, added if there is none. Returns `None` if the table is full.
    pub fn find_or_add_tenant(&mut self, name: &str) -> Option<usize> {
        if let Some(tenant) = self.find_tenant(name) {
            return Some(tenant);
        }
        let tenant = self.add_node(TENANT, 0, 0, 0, 0)?.node;
        self.write_name(tenant, name);
        self.finish();
        Some(tenant)
    }

    /// Writes the words of a name that are different. The step is not finished.
    fn write_name(&mut self, node: usize, name: &str) {
        for (at, word) in encode_name::<{ node::NAME_WORDS }>(name).into_iter().enumerate() {
            if self.field(node, node::NAME + at) != word {
                self.set_field(node, node::NAME + at, word);
            }
        }
    }

    /// Sets the label of a new reservation, which has none.
    pub fn set_label(&mut self, key: NodeKey, label: &str) {
        if !label.is_empty() && self.is_current(key) && self.field(key.node, node::KIND) == RESERVATION {
            self.write_name(key.node, label);
            self.finish();
        }
    }

    /// Returns the label of a reservation, or of the one that an account draws on; empty where it has none.
    pub fn label(&self, node: usize) -> String {
        let labelled = [node, self.parent(node)].into_iter().find(|&at| self.field(at, node::KIND) == RESERVATION);
        labelled.map(|at| self.tenant_name(at)).unwrap_or_default()
    }

    /// Returns the labels of what the process in `slot` has set aside or draws on, each once.
    pub fn labels_of(&self, slot: usize) -> Vec<String> {
        let is_its_own = |&node: &usize| {
            let kind = self.field(node, node::KIND);
            matches!(kind, ACCOUNT | RESERVATION) && self.field(node, node::OWNER) == slot as u64 + 1
        };
        let mut labels: Vec<String> = self.nodes().filter(is_its_own).map(|node| self.label(node)).collect();
        labels.retain(|label| !label.is_empty());
        labels.sort_unstable();
        labels.dedup();
        labels
    }

    /// Returns the name of a tenant.
    pub fn tenant_name(&self, tenant: usize) -> String {
        decode_name((0..node::NAME_WORDS).map(|at| self.field(tenant, node::NAME + at)))
    }

    /// Sets the guarantee and the ceiling of a tenant.
    pub fn configure(&mut self, tenant: usize, guarantee: u64, ceiling: u64) {
        self.set_field(tenant, node::GUARANTEE, guarantee.min(BYTES_MAX));
        self.set_field(tenant, node::CEILING, ceiling.min(BYTES_MAX));
        self.apply_limits();
    }

    /// Returns the sum of the guarantees of all tenants but one.
    pub fn guaranteed_to_others(&self, tenant: usize) -> u64 {
        self.nodes()
            .filter(|&node| node != tenant && self.field(node, node::KIND) == TENANT)
            .map(|node| self.field(node, node::GUARANTEE))
            .fold(0, u64::saturating_add)
    }

    /// Sets the limit of what all may have together.
    pub fn set_limit(&mut self, limit: u64) {
        self.set_field(0, node::CEILING, limit.min(BYTES_MAX));
        self.apply_limits();
    }
}
