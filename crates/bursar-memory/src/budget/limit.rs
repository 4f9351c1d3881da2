//! Budgets with a limit of their own.

use super::{Charging, GlobalDeviceBudget};
use crate::charge::{Charge, Denied};
use bursar_core::{Bytes, DeviceId, Error, Holder, Layer, Result};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// How a budget charges that has a limit of its own: what it was granted less what the memory below has got back.
///
/// ```
/// use bursar_memory::{GlobalDeviceBudget, OwnLimit};
///
/// fn left<R: bursar_core::Holder>(budget: &GlobalDeviceBudget<R, OwnLimit>) -> bursar_core::Bytes {
///     budget.remaining()
/// }
/// ```
#[derive(Debug)]
pub struct OwnLimit(Charge);

impl Charging for OwnLimit {
    fn admit(&self, inner: &(impl Holder + ?Sized), bytes: Bytes) -> Result<()> {
        let admitted = self.0.admit(bytes.get(), || inner.released_total(), || inner.reap().map(drop));
        admitted.map_err(|denied| match denied {
            Denied::Full(full) => {
                Error::OutOfBudget { requested: bytes, remaining: Bytes(full.remaining()), limit: Bytes(full.limit) }
            }
            Denied::Look(error) => error,
        })
    }

    fn decide(&self, bytes: Bytes, is_granted: bool) {
        match is_granted {
            true => self.0.settle(bytes.get()),
            false => self.0.roll_back(bytes.get()),
        }
    }

    fn settle(&self, _: &(impl Holder + ?Sized)) {}

    fn reserved(&self, inner: &(impl Holder + ?Sized)) -> Bytes {
        Bytes(self.0.used(|| inner.released_total()))
    }
}

impl<R: Holder> GlobalDeviceBudget<R> {
    /// A budget of `limit` over `inner`, which may hold something already.
    pub fn new(inner: R, limit: Bytes) -> Self {
        let released = inner.released_total();
        let granted = released.wrapping_add(inner.bytes_outstanding().get());
        Self { inner: Arc::new(inner), charging: Arc::new(OwnLimit(Charge::new(granted, limit.get()))) }
    }

    /// The most that may be held.
    pub fn limit(&self) -> Bytes {
        Bytes(self.charging.0.limit())
    }

    /// Changes the limit. Raised, it counts at once; lowered below what is held, it refuses everything until what is
    /// held has fallen under it.
    pub fn set_limit(&self, limit: Bytes) {
        self.charging.0.set_limit(limit.get());
    }

    /// What is left, nothing if more is held than the limit allows.
    pub fn remaining(&self) -> Bytes {
        self.limit().saturating_sub(self.reserved_bytes())
    }
}

/// A budget for each device a stack is built for, and the handle that reads and changes them.
///
/// ```
/// use bursar_core::{Build, Bytes, DeviceContext, DeviceId, Stack, leaf};
/// use bursar_memory::GlobalDeviceBudget;
/// use bursar_sim::Sim;
///
/// let budget = GlobalDeviceBudget::of(Bytes::gib(1));
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(1))?;
/// let memory = Stack::new().layer(budget.clone()).over(leaf::Async).build(&context)?;
///
/// budget.set_limit(Bytes::gib(2));
/// assert_eq!(budget.readings()[0].device, DeviceId(1));
/// assert_eq!(budget.readings()[0].limit, Bytes::gib(2));
/// # drop(memory);
/// # Ok::<(), bursar_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BudgetLayer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit: Mutex<Bytes>,
    built: Mutex<Vec<Built>>,
}

#[derive(Debug)]
struct Built {
    device: DeviceId,
    charging: Arc<OwnLimit>,
    inner: Weak<dyn Holder>,
}

/// What one device's budget says at a moment.
///
/// ```
/// use bursar_core::{Bytes, DeviceId};
/// use bursar_memory::BudgetReading;
///
/// let reading = BudgetReading { device: DeviceId(0), limit: Bytes::gib(1), reserved: Bytes::mib(1) };
/// assert!(reading.reserved < reading.limit);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetReading {
    /// Whose budget it is.
    pub device: DeviceId,
    /// The most that may be held.
    pub limit: Bytes,
    /// What is held.
    pub reserved: Bytes,
}

impl BudgetLayer {
    pub(super) fn new(limit: Bytes) -> Self {
        Self { shared: Arc::new(Shared { limit: Mutex::new(limit), built: Mutex::default() }) }
    }

    /// Changes the limit of every device, those built already and those to come.
    pub fn set_limit(&self, limit: Bytes) {
        let mut current = self.shared.limit.lock().unwrap_or_else(PoisonError::into_inner);
        *current = limit;
        let built = self.shared.built.lock().unwrap_or_else(PoisonError::into_inner);
        built.iter().for_each(|built| built.charging.0.set_limit(limit.get()));
    }

    /// What each living budget says.
    pub fn readings(&self) -> Vec<BudgetReading> {
        let built = self.shared.built.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |built: &Built| {
            let inner = built.inner.upgrade()?;
            Some(BudgetReading {
                device: built.device,
                limit: Bytes(built.charging.0.limit()),
                reserved: built.charging.reserved(&*inner),
            })
        };
        built.iter().filter_map(read).collect()
    }
}

impl<I: Holder> Layer<I> for BudgetLayer {
    type Output = GlobalDeviceBudget<I>;

    fn layer(&self, inner: I) -> Result<GlobalDeviceBudget<I>> {
        let limit = self.shared.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let budget = GlobalDeviceBudget::new(inner, *limit);
        let inner: Weak<I> = Arc::downgrade(&budget.inner);
        let mut built = self.shared.built.lock().unwrap_or_else(PoisonError::into_inner);
        built.retain(|built| built.inner.strong_count() > 0);
        built.push(Built { device: budget.context().device(), charging: budget.charging.clone(), inner });
        Ok(budget)
    }
}
