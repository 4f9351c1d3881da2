//! Budgets with a limit of their own.

use super::charge::{Charge, ChargeError};
use super::{ChargePolicy, GlobalDeviceBudgetResource};
use bursar_core::{Bytes, DeviceId, Error, Holder, Result};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Charges against a limit of the budget's own: what was granted, less what the memory below has got back.
///
/// ```
/// use bursar_memory::{GlobalDeviceBudgetResource, OwnLimit};
///
/// fn left<R: bursar_core::Holder>(budget: &GlobalDeviceBudgetResource<R, OwnLimit>) -> bursar_core::Bytes {
///     budget.remaining()
/// }
/// ```
#[derive(Debug)]
pub struct OwnLimit(Charge);

impl OwnLimit {
    fn over(inner: &impl Holder, limit: Bytes) -> Arc<Self> {
        let released = inner.released_total();
        let granted = released.wrapping_add(inner.bytes_outstanding().get());
        Arc::new(Self(Charge::new(granted, limit.get())))
    }
}

impl ChargePolicy for OwnLimit {
    type Terms = Limits;

    fn open<I: Holder>(limits: &Limits, inner: &Arc<I>) -> Result<Arc<Self>> {
        let limit = limits.shared.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let policy = Self::over(&**inner, *limit);
        let (device, inner): (_, Weak<I>) = (inner.context().device(), Arc::downgrade(inner));
        let mut built = limits.shared.built.lock().unwrap_or_else(PoisonError::into_inner);
        built.retain(|built| built.inner.strong_count() > 0);
        built.push(BuiltBudget { device, policy: policy.clone(), inner });
        Ok(policy)
    }

    fn admit(&self, inner: &(impl Holder + ?Sized), bytes: Bytes) -> Result<()> {
        let admitted = self.0.admit(bytes.get(), || inner.released_total(), || inner.reap().map(drop));
        admitted.map_err(|error| match error {
            ChargeError::OverLimit(over) => {
                Error::OutOfBudget { requested: bytes, remaining: Bytes(over.remaining()), limit: Bytes(over.limit) }
            }
            ChargeError::Reap(error) => error,
        })
    }

    fn conclude(&self, bytes: Bytes, is_granted: bool) {
        match is_granted {
            true => self.0.confirm(bytes.get()),
            false => self.0.roll_back(bytes.get()),
        }
    }

    /// Does nothing: what the memory below has released is read from it whenever it is needed.
    fn pay_back(&self, _: &(impl Holder + ?Sized)) {}

    fn charged(&self, inner: &(impl Holder + ?Sized)) -> Bytes {
        Bytes(self.0.used(|| inner.released_total()))
    }
}

impl<R: Holder> GlobalDeviceBudgetResource<R> {
    /// Makes a budget of `limit` over `inner`, which may hold something already.
    pub fn new(inner: R, limit: Bytes) -> Self {
        let policy = OwnLimit::over(&inner, limit);
        Self { inner: Arc::new(inner), policy }
    }

    /// Returns the most that may be held.
    pub fn limit(&self) -> Bytes {
        Bytes(self.policy.0.limit())
    }

    /// Changes the limit. Raised, it counts at once; lowered below what is held, it refuses everything until what is
    /// held has fallen under it.
    pub fn set_limit(&self, limit: Bytes) {
        self.policy.0.set_limit(limit.get());
    }

    /// Returns what is left of the limit: nothing if more is held than it allows.
    pub fn remaining(&self) -> Bytes {
        self.limit().saturating_sub(self.charged_bytes())
    }
}

/// The limit of each device a stack is built for, and the budgets that were made with it.
#[derive(Clone, Debug)]
pub struct Limits {
    shared: Arc<SharedLimits>,
}

#[derive(Debug)]
struct SharedLimits {
    limit: Mutex<Bytes>,
    built: Mutex<Vec<BuiltBudget>>,
}

#[derive(Debug)]
struct BuiltBudget {
    device: DeviceId,
    policy: Arc<OwnLimit>,
    inner: Weak<dyn Holder>,
}

impl Limits {
    pub(super) fn new(limit: Bytes) -> Self {
        Self { shared: Arc::new(SharedLimits { limit: Mutex::new(limit), built: Mutex::default() }) }
    }

    /// Changes the limit of every budget, those built already and those to come.
    pub(super) fn set(&self, limit: Bytes) {
        let mut current = self.shared.limit.lock().unwrap_or_else(PoisonError::into_inner);
        *current = limit;
        let built = self.shared.built.lock().unwrap_or_else(PoisonError::into_inner);
        built.iter().for_each(|built| built.policy.0.set_limit(limit.get()));
    }

    pub(super) fn readings(&self) -> Vec<BudgetReading> {
        let built = self.shared.built.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |built: &BuiltBudget| {
            let inner = built.inner.upgrade()?;
            Some(BudgetReading {
                device: built.device,
                limit: Bytes(built.policy.0.limit()),
                charged: built.policy.charged(&*inner),
            })
        };
        built.iter().filter_map(read).collect()
    }
}

/// A reading of one device's budget at a moment.
///
/// ```
/// use bursar_core::{Bytes, DeviceId};
/// use bursar_memory::BudgetReading;
///
/// let reading = BudgetReading { device: DeviceId(0), limit: Bytes::gib(1), charged: Bytes::mib(1) };
/// assert!(reading.charged < reading.limit);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetReading {
    /// The device whose budget it is.
    pub device: DeviceId,
    /// The most that may be held.
    pub limit: Bytes,
    /// The bytes that are charged: held, or being requested.
    pub charged: Bytes,
}
