//! What fits: the limit, what others use of the device, ceilings, and what those who wait have been waiting for.

use super::{ACCOUNT, Desk, RESERVATION, TENANT};
use crate::format::{Words, header, node};

/// Why something does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack {
    /// What would have fitted.
    pub remaining: u64,
    /// All there could be.
    pub limit: u64,
}

impl<W: Words> Desk<'_, W> {
    /// What all may have together: the limit, or less where others use more of the device than the limit leaves them.
    pub fn cap(&self) -> u64 {
        let all = self.of(0, node::GUARANTEE).saturating_sub(self.get(header::UNMANAGED));
        self.of(0, node::CEILING).min(all)
    }

    /// What the device has left to give.
    pub fn room(&self) -> u64 {
        self.cap().saturating_sub(self.of(0, node::TOTAL))
    }

    pub(super) fn room_of_tenant(&self, tenant: usize) -> u64 {
        self.of(tenant, node::CEILING).saturating_sub(self.of(tenant, node::TOTAL))
    }

    /// Whether a tenant that grew by so much would still be within what it may always have.
    pub fn is_owed(&self, tenant: usize, bytes: u64) -> bool {
        self.of(tenant, node::TOTAL).saturating_add(bytes) <= self.of(tenant, node::GUARANTEE)
    }

    /// Lets a tenant, and the device with it, grow; all or nothing. Nothing is finished.
    pub(super) fn grow(&mut self, tenant: usize, bytes: u64) -> Result<(), Lack> {
        let mut remaining = self.room().min(self.room_of_tenant(tenant));
        if remaining >= bytes && !self.is_owed(tenant, bytes) && self.would_delay(tenant, bytes) {
            remaining = 0;
        }
        if remaining < bytes {
            return Err(Lack { remaining, limit: self.of(0, node::CEILING).min(self.of(tenant, node::CEILING)) });
        }
        self.add_to(tenant, bytes);
        Ok(())
    }

    pub(super) fn add_to(&mut self, tenant: usize, bytes: u64) {
        for node in [tenant, 0] {
            self.put_total(node, self.of(node, node::TOTAL).saturating_add(bytes));
        }
    }

    /// Takes from what a node is part of. Nothing is finished.
    pub(super) fn pull(&mut self, parent: usize, bytes: u64) -> Result<(), Lack> {
        match self.of(parent, node::KIND) {
            TENANT => self.grow(parent, bytes),
            RESERVATION => {
                let left = self.left(parent);
                if left < bytes {
                    return Err(Lack { remaining: left, limit: self.of(parent, node::TOTAL) });
                }
                self.put_left(parent, left - bytes);
                Ok(())
            }
            _ => Err(Lack { remaining: 0, limit: 0 }),
        }
    }

    /// Gives back to what a node is part of. Nothing is finished.
    pub(super) fn give(&mut self, parent: usize, bytes: u64) {
        match self.of(parent, node::KIND) {
            TENANT => {
                for node in [parent, 0] {
                    self.put_total(node, self.of(node, node::TOTAL).saturating_sub(bytes));
                }
            }
            RESERVATION => {
                let left = self.left(parent);
                self.put_left(parent, left.saturating_add(bytes));
            }
            _ => {}
        }
    }

    /// Whether a node is an account that may keep no credit: somebody waits, or more is charged than may be.
    pub(super) fn is_pressed(&self, node: usize) -> bool {
        let tenant = self.parent(node);
        let of_tenant = self.of(node, node::KIND) == ACCOUNT && self.of(tenant, node::KIND) == TENANT;
        of_tenant && (self.get(header::WAITING) > 0 || self.is_over(tenant))
    }

    fn is_over(&self, tenant: usize) -> bool {
        self.of(0, node::TOTAL) > self.cap() || self.of(tenant, node::TOTAL) > self.of(tenant, node::CEILING)
    }

    /// After less may be charged than before: calls in credit if that is less than is charged, and serves who can be.
    pub(super) fn after_change(&mut self) {
        self.finish();
        let mut tenants = self.nodes().filter(|&node| self.of(node, node::KIND) == TENANT);
        if tenants.any(|tenant| self.is_over(tenant)) {
            self.gather(0);
        }
        self.serve();
    }

    /// Takes back all credit that others could be refused for: everybody's, or that of those who draw on one reservation.
    ///
    /// First all of it is frozen, then it is counted: only so is there one moment at which no more was free than is found
    /// here. The nodes stay frozen until the desk is left, and with that the decision is made.
    pub fn gather(&mut self, parent: usize) {
        let from_tenants = self.of(parent, node::KIND) != RESERVATION;
        let within = |desk: &Self, node: usize| {
            let above = desk.parent(node);
            desk.of(node, node::KIND) == ACCOUNT
                && if from_tenants { desk.of(above, node::KIND) == TENANT } else { above == parent }
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
            self.give_up_credit(account, self.left(account));
            self.finish();
        }
    }

    /// Gives credit of an account back to what it is part of; both are settled. Nothing is finished.
    pub(super) fn give_up_credit(&mut self, account: usize, bytes: u64) {
        let (left, total) = (self.left(account), self.of(account, node::TOTAL));
        let bytes = bytes.min(left).min(total);
        if bytes == 0 {
            return;
        }
        self.put_left(account, left - bytes);
        self.put_total(account, total - bytes);
        self.give(self.parent(account), bytes);
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
            self.after_change();
        }
    }

    /// What is held of a reservation and of what draws on it, and what nobody has drawn.
    pub fn sums_below(&mut self, node: usize) -> (u64, u64) {
        let parts: Vec<usize> = self.parts(node).collect();
        let mut held = self.held(node);
        let mut undrawn = self.left(node);
        for part in parts {
            let (below, left) = self.sums_below(part);
            held = held.saturating_add(below);
            undrawn = undrawn.saturating_add(left);
        }
        (held, undrawn)
    }

    /// What is charged, and what of that is set aside and not drawn: credit is neither.
    pub fn sums(&self) -> (u64, u64) {
        let (mut credit, mut undrawn) = (0u64, 0u64);
        for node in self.nodes() {
            let left = self.peek_left(node);
            match self.of(node, node::KIND) {
                RESERVATION => undrawn = undrawn.saturating_add(left),
                // What is kept of a reservation to draw on is not drawn either.
                ACCOUNT if self.of(self.parent(node), node::KIND) == RESERVATION => {
                    undrawn = undrawn.saturating_add(left);
                }
                ACCOUNT => credit = credit.saturating_add(left),
                _ => {}
            }
        }
        (self.of(0, node::TOTAL).saturating_sub(credit), undrawn)
    }
}
