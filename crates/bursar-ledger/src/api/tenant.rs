//! Tenants: who may always have how much, and how much at most.

use super::{Ledger, LedgerAccount, Priority, Reservation, Reserving};
use crate::attachment::Patience;
use crate::book::Key;
use crate::{LedgerError, format};
use bursar_core::{Bytes, Result};
use std::time::Duration;

/// A tenant of a device: a name under which processes hold memory together.
///
/// What a tenant is guaranteed and does not use, others may borrow, each up to its ceiling; when the owner asks for it,
/// they are asked to give it back before anyone is refused.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_ledger::Ledger;
///
/// # fn main() -> bursar_core::Result<()> {
/// let ledger = Ledger::private(Bytes::gib(8));
/// let batch = ledger.tenant("batch")?;
/// batch.configure(Bytes::ZERO, Bytes::gib(2))?;
/// assert!(batch.reserve(Bytes::gib(3)).unwrap_err().is_capacity());
/// let most = batch.reserve(Bytes::gib(2))?;
/// # drop(most);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Tenant {
    pub(crate) ledger: Ledger,
    key: Key,
    name: String,
}

const _: () = assert!(Tenant::NAME_MAX <= format::node::NAME_WORDS * format::LETTERS, "a name fits its words");

impl Tenant {
    /// Bytes a name may have.
    const NAME_MAX: usize = 48;

    pub(crate) fn of(ledger: &Ledger, name: &str, patience: Patience) -> Result<Self, LedgerError> {
        ledger.inner.check()?;
        if name.len() > Self::NAME_MAX || name.contains('\0') {
            let why = "its name has more than 48 bytes, or a zero among them";
            return Err(LedgerError::Tenant {
                tenant: name.to_owned(),
                guarantee: Bytes::ZERO,
                ceiling: Bytes::ZERO,
                why,
            });
        }
        let key = ledger.inner.at_desk(patience, |desk| desk.tenant(name).map(|node| desk.key(node)))?;
        let key = key.ok_or_else(|| ledger.inner.full("tenants"))?;
        Ok(Self { ledger: ledger.clone(), key, name: name.to_owned() })
    }

    /// Which node of the tree it is. Whoever uses that asks behind the lock whether it still is.
    pub(crate) const fn key(&self) -> Key {
        self.key
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Says what it may always have, and what it may have at most. All guarantees together fit the limit.
    pub fn configure(&self, guarantee: Bytes, ceiling: Bytes) -> Result<(), LedgerError> {
        let inner = &self.ledger.inner;
        inner.check()?;
        let node = self.key.node;
        let wrong = |why| LedgerError::Tenant { tenant: self.name.clone(), guarantee, ceiling, why };
        if guarantee > ceiling {
            return Err(wrong("the guarantee is above the ceiling"));
        }
        let fits = inner.at_desk(Patience::Usual, |desk| {
            if !desk.is_current(self.key) {
                return None;
            }
            let all = desk.guaranteed_to_others(node).saturating_add(guarantee.get());
            let fits = all <= desk.of(0, format::node::CEILING);
            if fits {
                desk.configure(node, guarantee.get(), ceiling.get());
            }
            Some(fits)
        })?;
        let fits = fits.ok_or_else(|| LedgerError::Cleared { file: inner.path() })?;
        fits.then_some(()).ok_or_else(|| wrong("all guarantees together would exceed the limit"))
    }

    /// This process's account for the tenant: always the same one.
    pub fn account(&self) -> Result<LedgerAccount, LedgerError> {
        let key = self.ledger.inner.account(self.key)?;
        Ok(LedgerAccount::new(self.ledger.clone(), key, self.ledger.inner.credit))
    }

    /// Sets `bytes` aside, or refuses at once; if the tenant may always have them, after what this process borrows was
    /// asked back.
    pub fn reserve(&self, bytes: Bytes) -> Result<Reservation> {
        self.ledger.reserve_now(self.key, bytes)
    }

    /// Sets `bytes` aside, waiting for its turn until `deadline` has passed. If the tenant may always have them, every
    /// process that borrows is asked to give back, and the refusal names those that did not.
    pub fn reserve_within(&self, bytes: Bytes, deadline: Duration, priority: Priority) -> Result<Reservation> {
        self.ledger.reserve_waiting(|_| Ok(self.key), (bytes, deadline, priority))
    }

    /// Sets `bytes` aside when its turn comes. Dropping the future leaves the queue.
    pub fn reserve_async(&self, bytes: Bytes, priority: Priority) -> Reserving {
        Reserving::new(self.ledger.clone(), self.name.clone(), bytes, priority)
    }
}
