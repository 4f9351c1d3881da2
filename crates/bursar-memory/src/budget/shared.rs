//! Budgets that pay from an account.

use super::{Charging, GlobalDeviceBudget};
use crate::tab::{No, Tab};
use bursar_core::{Account, Bytes, DeviceContext, Error, Holder, Layer, Result};
use std::fmt;
use std::sync::Arc;

/// How a budget charges that pays from an account: before memory is asked for, and until the memory below has it back.
///
/// How much may be held is for the account to say, so such a budget knows what it has reserved, but no limit.
///
/// ```
/// use bursar_memory::{GlobalDeviceBudget, OnAccount};
///
/// fn charged<R: bursar_core::Holder>(budget: &GlobalDeviceBudget<R, OnAccount>) -> bursar_core::Bytes {
///     budget.reserved_bytes()
/// }
/// ```
#[derive(Debug)]
pub struct OnAccount {
    account: Arc<dyn Account>,
    tab: Tab,
}

impl OnAccount {
    fn pay(&self, bytes: u64) {
        self.account.release(Bytes(bytes));
    }

    fn charge(&self, bytes: Bytes) -> Result<(), No<Error>> {
        self.account.charge(bytes).map_err(|error| match *error.root() {
            Error::OutOfBudget { remaining, limit, .. } => {
                No::Full { remaining: remaining.get(), limit: limit.get(), error }
            }
            _ if error.is_capacity() => No::Full { remaining: 0, limit: u64::MAX, error },
            _ => No::Closed(error),
        })
    }
}

impl Charging for OnAccount {
    fn admit(&self, inner: &(impl Holder + ?Sized), bytes: Bytes) -> Result<()> {
        let look = || {
            let found = inner.reap();
            self.settle(inner);
            found.map(drop)
        };
        self.tab.admit(bytes.get(), || self.charge(bytes), || inner.released_total(), look)
    }

    fn decide(&self, bytes: Bytes, is_granted: bool) {
        match is_granted {
            true => self.tab.confirm(bytes.get()),
            false => self.tab.roll_back(bytes.get(), |bytes| self.pay(bytes)),
        }
    }

    fn settle(&self, inner: &(impl Holder + ?Sized)) {
        self.tab.settle(|| inner.released_total(), |bytes| self.pay(bytes));
    }

    fn reserved(&self, inner: &(impl Holder + ?Sized)) -> Bytes {
        Bytes(self.tab.used(|| inner.released_total()))
    }
}

impl Drop for OnAccount {
    /// The memory below is gone already, and what it lost is nobody's any more.
    fn drop(&mut self) {
        match self.tab.close() {
            0 => {}
            rest => self.pay(rest),
        }
    }
}

impl<R: Holder> GlobalDeviceBudget<R, OnAccount> {
    /// A budget over `inner` that pays from `account`. What `inner` holds already is charged at once, or refused.
    pub fn charged_to(inner: R, account: Arc<dyn Account>) -> Result<Self> {
        let (released, held) = (inner.released_total(), inner.bytes_outstanding());
        if held > Bytes::ZERO {
            account.charge(held)?;
        }
        let tab = Tab::new(released, held.get());
        Ok(Self { inner: Arc::new(inner), charging: Arc::new(OnAccount { account, tab }) })
    }
}

/// Finds the account of a device.
type Find = dyn Fn(&Arc<DeviceContext>) -> Result<Arc<dyn Account>> + Send + Sync;

/// A budget for each device a stack is built for, which pays from an account.
///
/// ```
/// use bursar_core::{Account, Build, Bytes, DeviceContext, DeviceId, Error, Result, Stack, leaf};
/// use bursar_memory::GlobalDeviceBudget;
/// use bursar_sim::Sim;
/// use std::sync::Arc;
///
/// #[derive(Debug)]
/// struct Closed;
///
/// impl Account for Closed {
///     fn charge(&self, requested: Bytes) -> Result<()> {
///         Err(Error::OutOfBudget { requested, remaining: Bytes::ZERO, limit: Bytes::gib(1) })
///     }
///     fn release(&self, _: Bytes) {}
/// }
///
/// let stack = Stack::new().layer(GlobalDeviceBudget::shared_by(|_| Ok(Arc::new(Closed)))).over(leaf::Async);
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(1))?;
/// let memory = stack.build(&context)?;
/// # drop(memory);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct SharedBudgetLayer {
    find: Arc<Find>,
}

impl SharedBudgetLayer {
    pub(super) fn new(find: impl Fn(&Arc<DeviceContext>) -> Result<Arc<dyn Account>> + Send + Sync + 'static) -> Self {
        Self { find: Arc::new(find) }
    }
}

impl fmt::Debug for SharedBudgetLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBudgetLayer").finish_non_exhaustive()
    }
}

impl<I: Holder> Layer<I> for SharedBudgetLayer {
    type Output = GlobalDeviceBudget<I, OnAccount>;

    fn layer(&self, inner: I) -> Result<Self::Output> {
        let account = (self.find)(inner.context())?;
        GlobalDeviceBudget::charged_to(inner, account)
    }
}
