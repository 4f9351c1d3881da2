//! Charging and releasing where one compare-and-swap does not do.

use super::{ACCOUNT, Book, Desk, Key, Lack, NoLock};
use crate::format::{Words, header, node};
use std::time::Duration;

/// Why a charge was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It does not fit.
    Lack(Lack),
    /// The ledger was cleared, and the account with it.
    Cleared,
    /// There are no more places in the tables.
    Full,
}

impl From<Lack> for Refused {
    fn from(lack: Lack) -> Self {
        Self::Lack(lack)
    }
}

impl<W: Words> Desk<'_, W> {
    /// Charges an account or a reservation, taking what it lacks from above and up to `credit` more where that is easy.
    /// Refuses only when all credit was called in and the dead are buried.
    pub fn charge(&mut self, key: Key, bytes: u64, credit: u64) -> Result<(), Refused> {
        if !self.is_current(key) {
            return Err(Refused::Cleared);
        }
        self.settle_path(key.node);
        if self.charge_easily(key.node, bytes, credit) {
            return Ok(());
        }
        if self.of(key.node, node::KIND) != ACCOUNT {
            let left = self.left(key.node);
            return Err(Lack { remaining: left, limit: self.of(key.node, node::TOTAL) }.into());
        }
        self.bury_the_dead();
        let parent = self.parent(key.node);
        self.gather(parent);
        self.pull(parent, bytes)?;
        self.put_total(key.node, self.of(key.node, node::TOTAL).saturating_add(bytes));
        self.finish();
        Ok(())
    }

    fn charge_easily(&mut self, node: usize, bytes: u64, credit: u64) -> bool {
        let left = self.left(node);
        if left >= bytes {
            self.put_left(node, left - bytes);
            self.finish();
            return true;
        }
        if self.of(node, node::KIND) != ACCOUNT {
            return false;
        }
        let (parent, lacking) = (self.parent(node), bytes - left);
        let more = if self.get(header::WAITING) == 0 { credit } else { 0 };
        for more in [more, 0] {
            let wanted = lacking.saturating_add(more);
            if self.pull(parent, wanted).is_ok() {
                self.put_total(node, self.of(node, node::TOTAL).saturating_add(wanted));
                self.put_left(node, more);
                self.finish();
                return true;
            }
        }
        false
    }

    /// Puts back what was charged. An account keeps `keep` of it as credit if it may.
    pub(super) fn release(&mut self, key: Key, bytes: u64, keep: u64) {
        if !self.is_current(key) {
            return;
        }
        self.settle_path(key.node);
        let left = self.left(key.node).saturating_add(bytes).min(self.not_in_parts(key.node));
        self.put_left(key.node, left);
        if self.of(key.node, node::KIND) == ACCOUNT {
            let keep = if self.is_pressed(key.node) { 0 } else { keep };
            self.give_up_credit(key.node, left.saturating_sub(keep));
        }
        self.finish();
        self.serve();
    }
}

impl<W: Words> Book<W> {
    /// Charges behind the lock: see [`Desk::charge`].
    pub fn charge(&self, key: Key, bytes: u64, credit: u64, patience: Duration) -> Result<Result<(), Refused>, NoLock> {
        Ok(self.lock(patience)?.charge(key, bytes, credit))
    }
}
