//! The limits of the device and its tenants, and the credit of accounts.
//!
//! *Credit* is balance that an account keeps after a release or takes along with a charge, so that its next charges
//! need no lock. It counts as charged, so it is recalled before anybody is refused.

use super::{ACCOUNT, LockedBook, RESERVATION, TENANT};
use crate::format::{Words, header, node};
use crate::refusal::RefusalReason;

/// The figures of a request that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// The bytes that would have fitted, where the reason is the queue but for those who wait.
    pub remaining: u64,
    /// The bytes that could fit at most.
    pub limit: u64,
    /// The reason for which no more would.
    pub reason: RefusalReason,
}

/// The whole, in the parts that a request may ask to be kept free.
pub(crate) const WHOLE: u64 = 1_000_000;

/// Returns the part of `bytes` that is left if `kept` millionths are not used, rounded down.
fn part_leaving(bytes: u64, kept: u64) -> u64 {
    let used = WHOLE.saturating_sub(kept);
    // The fraction is at most one, so the result fits again.
    (u128::from(bytes) * u128::from(used) / u128::from(WHOLE)) as u64
}

impl<W: Words> LockedBook<'_, W> {
    /// Returns the bytes that all may have together: the limit, or less where others use more of the device than the
    /// limit leaves them.
    pub fn effective_limit(&self) -> u64 {
        let all = self.field(0, node::GUARANTEE).saturating_sub(self.get(header::UNMANAGED));
        self.field(0, node::CEILING).min(all)
    }

    /// Returns the bytes that the device has available.
    pub fn available(&self) -> u64 {
        self.effective_limit().saturating_sub(self.field(0, node::TOTAL))
    }

    /// Returns how much of what all may have together may be in use if `kept` millionths of it are to stay free.
    pub fn usable(&self, kept: u64) -> u64 {
        part_leaving(self.effective_limit(), kept)
    }

    /// Returns the bytes that the device has available if `kept` millionths of what all may have are to stay free.
    pub fn available_leaving(&self, kept: u64) -> u64 {
        self.usable(kept).saturating_sub(self.field(0, node::TOTAL))
    }

    /// Returns the bytes that a tenant has left below its ceiling.
    pub fn available_to_tenant(&self, tenant: usize) -> u64 {
        self.field(tenant, node::CEILING).saturating_sub(self.field(tenant, node::TOTAL))
    }

    /// Returns whether a tenant that grew by `bytes` would still be within its guarantee.
    pub fn is_within_guarantee(&self, tenant: usize, bytes: u64) -> bool {
        self.field(tenant, node::TOTAL).saturating_add(bytes) <= self.field(tenant, node::GUARANTEE)
    }

    /// Adds to the totals of a tenant and of the device, or to neither; `kept` millionths of what all may have stay free, and requests
    /// of a lower priority may have to wait longer for it. The step is not finished.
    pub(super) fn grow_tenant(&mut self, tenant: usize, bytes: u64, kept: u64, priority: u64) -> Result<(), Shortfall> {
        let remaining = self.available_leaving(kept).min(self.available_to_tenant(tenant));
        let reason = if remaining < bytes {
            self.reason_against(tenant, bytes, kept)
        } else if !self.is_within_guarantee(tenant, bytes) && self.would_delay(tenant, bytes, kept, priority) {
            RefusalReason::Queue
        } else {
            self.add_to_tenant(tenant, bytes);
            return Ok(());
        };
        Err(Shortfall { remaining, limit: self.most_leaving(tenant, kept), reason })
    }

    /// Returns the limit that a tenant which grew by `bytes` would exceed, where it would exceed one: its own before those of
    /// all.
    pub fn reason_against(&self, tenant: usize, bytes: u64, kept: u64) -> RefusalReason {
        let within_limit = self.field(0, node::CEILING).saturating_sub(self.field(0, node::TOTAL));
        if self.available_to_tenant(tenant) < bytes {
            RefusalReason::Tenant
        } else if kept > 0 && self.available() >= bytes {
            RefusalReason::Headroom
        } else if within_limit >= bytes {
            RefusalReason::Unmanaged
        } else {
            RefusalReason::Limit
        }
    }

    /// Returns the bytes that a tenant could have at most if `kept` millionths of what all may have are to stay free.
    pub fn most_leaving(&self, tenant: usize, kept: u64) -> u64 {
        let (limit, ceiling) = (self.field(0, node::CEILING), self.field(tenant, node::CEILING));
        match kept {
            0 => limit.min(ceiling),
            kept => part_leaving(limit.min(self.field(0, node::GUARANTEE)), kept).min(ceiling),
        }
    }

    pub(super) fn add_to_tenant(&mut self, tenant: usize, bytes: u64) {
        for node in [tenant, 0] {
            self.set_total(node, self.field(node, node::TOTAL).saturating_add(bytes));
        }
    }

    /// Takes bytes from a node's parent. The step is not finished.
    pub(super) fn take_from(&mut self, parent: usize, bytes: u64) -> Result<(), Shortfall> {
        match self.field(parent, node::KIND) {
            // A charge has no turn, and comes before nobody who waits.
            TENANT => self.grow_tenant(parent, bytes, 0, 0),
            RESERVATION => {
                let balance = self.balance(parent);
                if balance < bytes {
                    let (limit, reason) = (self.field(parent, node::TOTAL), RefusalReason::Share);
                    return Err(Shortfall { remaining: balance, limit, reason });
                }
                self.set_balance(parent, balance - bytes);
                Ok(())
            }
            _ => Err(Shortfall { remaining: 0, limit: 0, reason: RefusalReason::Limit }),
        }
    }

    /// Gives bytes back to a node's parent. The step is not finished.
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

    /// Returns whether a node is an account that may keep no credit, because somebody waits or more is charged than may
    /// be.
    pub(super) fn must_return_credit(&self, node: usize) -> bool {
        let tenant = self.parent(node);
        let of_tenant = self.field(node, node::KIND) == ACCOUNT && self.field(tenant, node::KIND) == TENANT;
        of_tenant && (self.get(header::WAITING) > 0 || self.is_over_limit(tenant))
    }

    fn is_over_limit(&self, tenant: usize) -> bool {
        self.field(0, node::TOTAL) > self.effective_limit()
            || self.field(tenant, node::TOTAL) > self.field(tenant, node::CEILING)
    }

    /// Finishes a step that changed a limit. Recalls credit if more is charged than may be now, and grants requests
    /// that fit now.
    pub(super) fn apply_limits(&mut self) {
        self.finish();
        let mut tenants = self.nodes().filter(|&node| self.field(node, node::KIND) == TENANT);
        if tenants.any(|tenant| self.is_over_limit(tenant)) {
            self.recall_credit(0);
        }
        self.grant_waiting();
    }

    /// Recalls all credit that others could be refused for: everybody's, or, where `parent` is a reservation, that of
    /// the accounts that draw on it.
    ///
    /// First all of it is frozen, then it is counted: only then is there one moment at which no more was available than
    /// is found here. The nodes stay frozen until the lock is given back, when the decision has been made.
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

    /// Gives credit of an account back to its parent; both must be settled. The step is not finished.
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

    /// Sets the bytes used of the device outside this ledger.
    pub fn set_unmanaged(&mut self, bytes: u64) {
        let bytes = bytes.min(super::BYTES_MAX);
        if self.get(header::UNMANAGED) != bytes {
            self.set(header::UNMANAGED, bytes);
            self.apply_limits();
        }
    }

    /// Settles a reservation and everything below it. Returns the bytes held there and the bytes that nobody has drawn.
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

    /// Returns the bytes that are charged, and how many of these are set aside and not drawn. Credit is neither.
    pub fn charged_and_undrawn(&self) -> (u64, u64) {
        let (mut credit, mut undrawn) = (0u64, 0u64);
        let children = self.totals_of_children();
        for node in self.nodes() {
            // A process may have released more than it charged.
            let own = self.field(node, node::TOTAL).saturating_sub(children[node]);
            let balance = self.peek_balance(node).min(own);
            match self.field(node, node::KIND) {
                RESERVATION => undrawn = undrawn.saturating_add(balance),
                // Credit of an account that draws on a reservation is not drawn either.
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
