//! Budgets that pay from an account.

use super::account_charge::{AccountCharge, AccountError};
use super::refusals::ToldAccount;
use super::{ChargePolicy, GlobalDeviceBudgetResource};
use bursar_core::{Account, Bytes, Claims, DeviceContext, Error, Holder, LimitName, LimitReading, Result};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Charges an account: before memory is asked for, and until the memory below has it back.
///
/// The account decides how much may be held, so such a budget knows what it has charged, but no limit.
///
/// ```
/// use bursar::memory::{GlobalDeviceBudgetResource, OnAccount};
///
/// fn charged<R: bursar::memory::Holder>(budget: &GlobalDeviceBudgetResource<R, OnAccount>) -> bursar::Bytes {
///     budget.charged_bytes()
/// }
/// ```
#[derive(Debug)]
pub struct OnAccount {
    account: Arc<dyn Account>,
    charge: AccountCharge,
    name: LimitName,
    /// Tells the account of requests that fail.
    told: Arc<ToldAccount>,
}

impl OnAccount {
    /// Charges the account for what `inner` holds already.
    fn over(inner: &impl Holder, account: Arc<dyn Account>, name: Option<&str>) -> Result<Arc<Self>> {
        let (released, held) = (inner.released_total(), inner.bytes_outstanding());
        if held > Bytes::ZERO {
            account.charge(held)?;
        }
        let charge = AccountCharge::new(released, held.get());
        let name = match name.map(str::to_owned).or_else(|| account.name()) {
            Some(name) => LimitName::new(&name),
            None => LimitName::unnamed("budget"),
        };
        let told = ToldAccount::new(&account, &name, inner.context().sink());
        Ok(Arc::new(Self { account, charge, name, told }))
    }

    fn release(&self, bytes: u64) {
        self.account.release(Bytes(bytes));
    }

    /// Charges the account. Its refusals bear the name of this budget, which is how it is found on the way of a request.
    fn charge(&self, bytes: Bytes) -> Result<(), AccountError<Error>> {
        self.account.try_charge(bytes).map_err(|error| match error {
            Error::OutOfBudget { requested, remaining, limit, .. } => {
                let error = Error::over_limit(&self.name, requested, remaining, limit);
                AccountError::Full { remaining: remaining.get(), limit: limit.get(), error }
            }
            _ if error.is_capacity() => AccountError::Full { remaining: 0, limit: u64::MAX, error },
            _ => AccountError::Closed(error),
        })
    }
}

impl ChargePolicy for OnAccount {
    type Terms = Accounts;

    fn open<I: Holder>(accounts: &Accounts, inner: &Arc<I>, name: Option<&str>) -> Result<Arc<Self>> {
        Self::over(&**inner, (accounts.find)(inner.context())?, name)
    }

    fn admit(&self, inner: &(impl Holder + ?Sized), bytes: Bytes) -> Result<()> {
        let reap = || {
            let reaped = inner.reap();
            self.pay_back(inner);
            reaped.map(drop)
        };
        self.charge.admit(bytes.get(), || self.charge(bytes), || inner.released_total(), reap)
    }

    fn conclude(&self, bytes: Bytes, is_granted: bool) {
        match is_granted {
            true => self.charge.confirm(bytes.get()),
            false => {
                self.told.charge_taken_back();
                self.charge.roll_back(bytes.get(), |bytes| self.release(bytes));
            }
        }
    }

    fn pay_back(&self, inner: &(impl Holder + ?Sized)) {
        self.charge.pay_back(|| inner.released_total(), |bytes| self.release(bytes));
    }

    fn keep_place(&self, bytes: Bytes) {
        self.charge.keep_place(bytes.get());
    }

    fn take_back_place(&self, bytes: Bytes) {
        self.charge.take_back_place(bytes.get());
    }

    fn take_place(&self, inner: &(impl Holder + ?Sized), bytes: Bytes, patience: Duration) -> Result<()> {
        match self.admit(inner, bytes) {
            Ok(()) => self.charge.confirm(bytes.get()),
            Err(refused) if refused.is_capacity() && patience.is_zero() => return Err(refused),
            // An account that is charged for nothing new may have a place for what was charged to it before.
            Err(_) => {
                self.account.charge_within(bytes, patience)?;
                self.charge.enter_place(bytes.get());
            }
        }
        Ok(())
    }

    fn give_up_place(&self, bytes: Bytes) {
        self.charge.give_up_place(bytes.get(), |bytes| self.release(bytes));
    }

    fn charged(&self, inner: &(impl Holder + ?Sized)) -> Bytes {
        Bytes(self.charge.used(|| inner.released_total()))
    }

    /// Returns no figures: others draw on the account too.
    fn reading(&self, _: &(impl Holder + ?Sized)) -> LimitReading {
        LimitReading::unknown(self.name.clone())
    }

    fn claims(&self, bytes: Bytes) -> Option<Claims> {
        self.account.claims(bytes)
    }
}

impl Drop for OnAccount {
    /// Pays back the rest. The memory below is gone already, and what it lost is nobody's any more.
    fn drop(&mut self) {
        match self.charge.close() {
            0 => {}
            rest => self.release(rest),
        }
    }
}

impl<R: Holder> GlobalDeviceBudgetResource<R, OnAccount> {
    /// Makes a budget over `inner` that pays from `account`. What `inner` holds already is charged at once, or refused.
    pub fn charged_to(inner: R, account: impl Account + 'static) -> Result<Self> {
        let policy = OnAccount::over(&inner, Arc::new(account), None)?;
        Ok(Self::over(Arc::new(inner), policy))
    }
}

/// Finds the account of a device.
type FindAccount = dyn Fn(&Arc<DeviceContext>) -> Result<Arc<dyn Account>> + Send + Sync;

/// The accounts that the budgets of a layer pay from, by device.
#[derive(Clone)]
pub struct Accounts {
    find: Arc<FindAccount>,
}

impl Accounts {
    pub(super) fn new(find: impl Fn(&Arc<DeviceContext>) -> Result<Arc<dyn Account>> + Send + Sync + 'static) -> Self {
        Self { find: Arc::new(find) }
    }
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accounts").finish_non_exhaustive()
    }
}
