//! What fits: the limit, what others use of the device, ceilings, and what those who wait have been waiting for.

use super::{ACCOUNT, LockedBook, RESERVATION, TENANT};
use crate::format::{Words, header, node};

/// Why something does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// What would have fitted.
    pub remaining: u64,
    /// All there could be.
    pub limit: u64,
}

impl<W: Words> LockedBook<'_, W> {
    /// What all may have together: the limit, or less where others use more of the device than the limit leaves them.
    pub fn effective_limit(&self) -> u64 {
        let all = self.field(0, node::GUARANTEE).saturating_sub(self.get(header::UNMANAGED));
        self.field(0, node::CEILING).min(all)
    }

    /// What the device has left to give.
    pub fn available(&self) -> u64 {
        self.effective_limit().saturating_sub(self.field(0, node::TOTAL))
    }

    pub(super) fn available_to_tenant(&self, tenant: usize) -> u64 {
        self.field(tenant, node::CEILING).saturating_sub(self.field(tenant, node::TOTAL))
    }

    /// Whether a tenant that grew by so much would still be within what it may always have.
    pub fn is_within_guarantee(&self, tenant: usize, bytes: u64) -> bool {
        self.field(tenant, node::TOTAL).saturating_add(bytes) <= self.field(tenant, node::GUARANTEE)
    }

    /// Lets a tenant, and the device with it, grow; all or nothing. Nothing is finished.
    pub(super) fn grow_tenant(&mut self, tenant: usize, bytes: u64) -> Result<(), Shortfall> {
        let mut remaining = self.available().min(self.available_to_tenant(tenant));
        if remaining >= bytes && !self.is_within_guarantee(tenant, bytes) && self.would_delay(tenant, bytes) {
            remaining = 0;
        }
        if remaining < bytes {
            return Err(Shortfall {
                remaining,
                limit: self.field(0, node::CEILING).min(self.field(tenant, node::CEILING)),
            });
        }
        self.add_to_tenant(tenant, bytes);
        Ok(())
    }

    pub(super) fn add_to_tenant(&mut self, tenant: usize, bytes: u64) {
        for node in [tenant, 0] {
            self.set_total(node, self.field(node, node::TOTAL).saturating_add(bytes));
        }
    }

    /// Takes from what a node is part of. Nothing is finished.
    pub(super) fn take_from(&mut self, parent: usize, bytes: u64) -> Result<(), Shortfall> {
        match self.field(parent, node::KIND) {
            TENANT => self.grow_tenant(parent, bytes),
            RESERVATION => {
                let balance = self.balance(parent);
                if balance < bytes {
                    return Err(Shortfall { remaining: balance, limit: self.field(parent, node::TOTAL) });
                }
                self.set_balance(parent, balance - bytes);
                Ok(())
            }
            _ => Err(Shortfall { remaining: 0, limit: 0 }),
        }
    }

    /// Gives back to what a node is part of. Nothing is finished.
    pub(super) fn return_to(&mut self, parent: usize, bytes: u64) {
        match self.field(parent, node::KIND) {
            TENANT => {
                for node in [parent, 0] {
                    self.set_total(node, self.field(node, node::TOTAL).saturating_sub(bytes));
                }
            }
            RESERVATION => {
                let balance = self.balance(parent);
                self.set_balance(parent, balance.saturating_add(bytes));
            }
            _ => {}
        }
    }

    /// Whether a node is an account that may keep no credit: somebody waits, or more is charged than may be.
    pub(super) fn must_return_credit(&self, node: usize) -> bool {
        let tenant = self.parent(node);
        let of_tenant = self.field(node, node::KIND) == ACCOUNT && self.field(tenant, node::KIND) == TENANT;
        of_tenant && (self.get(header::WAITING) > 0 || self.is_over_limit(tenant))
    }

    fn is_over_limit(&self, tenant: usize) -> bool {
        self.field(0, node::TOTAL) > self.effective_limit()
            || self.field(tenant, node::TOTAL) > self.field(tenant, node::CEILING)
    }

    /// After less may be charged than before: calls in credit if that is less than is charged, and serves who can be.
    pub(super) fn apply_limits(&mut self) {
        self.finish();
        let mut tenants = self.nodes().filter(|&node| self.field(node, node::KIND) == TENANT);
        if tenants.any(|tenant| self.is_over_limit(tenant)) {
            self.recall_credit(0);
        }
        self.grant_waiting();
    }

    /// Takes back all credit that others could be refused for: everybody's, or that of those who draw on one reservation.
    ///
    /// First all of it is frozen, then it is counted: only so is there one moment at which no more was free than is found
    /// here. The nodes stay frozen until the desk is left, and with that the decision is made.
    pub fn recall_credit(&mut self, parent: usize) {
        let from_tenants = self.field(parent, node::KIND) != RESERVATION;
        let within = |locked: &Self, node: usize| {
            let above = locked.parent(node);
            locked.field(node, node::KIND) == ACCOUNT
                && if from_tenants { locked.field(above, node::KIND) == TENANT } else { above == parent }
        };
        let accounts: Vec<usize> = self.nodes().filter(|&node| within(self, node)).collect();
        for &account in &accounts {
            self.freeze(account);
        }
        if !from_tenants {
            self.settle(parent);
        }
        for account in accounts {
            self.settle(account);
            self.return_credit(account, self.balance(account));
            self.finish();
        }
    }

    /// Gives credit of an account back to what it is part of; both are settled. Nothing is finished.
    pub(super) fn return_credit(&mut self, account: usize, bytes: u64) {
        let (balance, total) = (self.balance(account), self.field(account, node::TOTAL));
        let bytes = bytes.min(balance).min(total);
        if bytes == 0 {
            return;
        }
        self.set_balance(account, balance - bytes);
        self.set_total(account, total - bytes);
        self.return_to(self.parent(account), bytes);
    }

    /// Returns the bytes used of the device outside this ledger, as last measured.
    pub fn unmanaged(&self) -> u64 {
        self.get(header::UNMANAGED)
    }

    /// Says what is used of the device outside this ledger.
    pub fn set_unmanaged(&mut self, bytes: u64) {
        let bytes = bytes.min(super::BYTES_MAX);
        if self.get(header::UNMANAGED) != bytes {
            self.set(header::UNMANAGED, bytes);
            self.apply_limits();
        }
    }

    /// What is held of a reservation and of what draws on it, and what nobody has drawn.
    pub fn settle_and_sum_subtree(&mut self, node: usize) -> (u64, u64) {
        let children: Vec<usize> = self.children(node).collect();
        let mut held = self.settle_held(node);
        let mut undrawn = self.balance(node);
        for child in children {
            let (below, balance) = self.settle_and_sum_subtree(child);
            held = held.saturating_add(below);
            undrawn = undrawn.saturating_add(balance);
        }
        (held, undrawn)
    }

    /// What is charged, and what of that is set aside and not drawn: credit is neither.
    pub fn charged_and_undrawn(&self) -> (u64, u64) {
        let (mut credit, mut undrawn) = (0u64, 0u64);
        for node in self.nodes() {
            let balance = self.peek_balance(node);
            match self.field(node, node::KIND) {
                RESERVATION => undrawn = undrawn.saturating_add(balance),
                // What is kept of a reservation to draw on is not drawn either.
                ACCOUNT if self.field(self.parent(node), node::KIND) == RESERVATION => {
                    undrawn = undrawn.saturating_add(balance);
                }
                ACCOUNT => credit = credit.saturating_add(balance),
                _ => {}
            }
        }
        (self.field(0, node::TOTAL).saturating_sub(credit), undrawn)
    }
}
