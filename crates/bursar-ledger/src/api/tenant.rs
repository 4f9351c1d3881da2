//! Tenants: names under which processes share a guarantee and a ceiling.

use super::reserve::ReserveRequest;
use super::{Ledger, LedgerAccount, Priority, Reservation, ReserveFuture, ReserveOptions};
use crate::attachment::LockWait;
use crate::book::NodeKey;
use crate::{LedgerError, format};
use bursar_core::{Bytes, Result};
use std::time::Duration;

/// A tenant of a device: a name under which processes hold memory together.
///
/// Others may borrow what a tenant is guaranteed and does not use, each up to its ceiling; when the owner asks for it,
/// they are asked to give it back before anyone is refused.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::Ledger;
///
/// # fn main() -> bursar::Result<()> {
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
    key: NodeKey,
    name: String,
}

const _: () = assert!(Tenant::NAME_MAX <= format::node::NAME_WORDS * format::LETTERS, "a name fits its words");

impl Tenant {
    /// The number of bytes a name may have.
    const NAME_MAX: usize = 48;

    pub(crate) fn find_or_make(ledger: &Ledger, name: &str, wait: LockWait) -> Result<Self, LedgerError> {
        ledger.attachment.check_usable()?;
        let wrong = |why| Err(LedgerError::TenantName { name: name.to_owned(), why });
        if name.len() > Self::NAME_MAX {
            return wrong("it has more than 48 bytes");
        }
        if name.contains('\0') {
            return wrong("there is a NUL in it");
        }
        let key =
            ledger.attachment.with_lock(wait, |locked| locked.find_or_add_tenant(name).map(|node| locked.key(node)))?;
        let key = key.ok_or_else(|| ledger.attachment.table_full("tenants"))?;
        Ok(Self { ledger: ledger.clone(), key, name: name.to_owned() })
    }

    /// Returns the tenant's node. Whoever uses it checks behind the lock that it is current.
    pub(crate) const fn key(&self) -> NodeKey {
        self.key
    }

    /// Returns the name of the tenant.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the bytes that the tenant may always have and may have at most. All guarantees together must fit the limit.
    pub fn configure(&self, guarantee: Bytes, ceiling: Bytes) -> Result<(), LedgerError> {
        let attachment = &self.ledger.attachment;
        attachment.check_usable()?;
        let node = self.key.node;
        let wrong = |why| LedgerError::Tenant { tenant: self.name.clone(), guarantee, ceiling, why };
        if guarantee > ceiling {
            return Err(wrong("the guarantee is above the ceiling"));
        }
        let fits = attachment.with_lock(LockWait::Usual, |locked| {
            if !locked.is_current(self.key) {
                return None;
            }
            let all = locked.guaranteed_to_others(node).saturating_add(guarantee.get());
            let fits = all <= locked.field(0, format::node::CEILING);
            if fits {
                locked.configure(node, guarantee.get(), ceiling.get());
            }
            Some(fits)
        })?;
        let fits = fits.ok_or_else(|| LedgerError::Cleared { file: attachment.path() })?;
        fits.then_some(()).ok_or_else(|| wrong("all guarantees together would exceed the limit"))
    }

    /// Returns this process's account for the tenant: always the same one.
    pub fn account(&self) -> Result<LedgerAccount, LedgerError> {
        let key = self.ledger.attachment.account(self.key)?;
        Ok(LedgerAccount::new(self.ledger.clone(), key, self.ledger.attachment.credit).of_tenant(&self.name))
    }

    /// Reserves `bytes`, or refuses at once. Within the tenant's guarantee, what this process borrows is asked back
    /// before a refusal.
    pub fn reserve(&self, bytes: Bytes) -> Result<Reservation> {
        self.reserve_with(bytes, &ReserveOptions::new())
    }

    /// Reserves `bytes` with options, or refuses at once.
    pub fn reserve_with(&self, bytes: Bytes, options: &ReserveOptions) -> Result<Reservation> {
        self.ledger.reserve_now(ReserveRequest { tenant: self.key, bytes, options }, LockWait::Usual, || false)
    }

    /// Reserves `bytes`, waiting for its turn until `deadline` has passed. Within the tenant's guarantee, every process
    /// that borrows is asked to give back, and the refusal names those that did not.
    pub fn reserve_within(&self, bytes: Bytes, deadline: Duration, priority: Priority) -> Result<Reservation> {
        self.ledger.reserve_with_deadline(|_| Ok(self.key), deadline, bytes, &ReserveOptions::new().priority(priority))
    }

    /// Reserves `bytes` when its turn comes. Dropping the future leaves the queue.
    pub fn reserve_async(&self, bytes: Bytes, priority: Priority) -> ReserveFuture {
        self.reserve_async_with(bytes, ReserveOptions::new().priority(priority))
    }

    /// Reserves `bytes` with options when its turn comes. Dropping the future leaves the queue.
    pub fn reserve_async_with(&self, bytes: Bytes, options: ReserveOptions) -> ReserveFuture {
        ReserveFuture::new(self.ledger.clone(), self.name.clone(), bytes, options)
    }
}
