//! Budgets with a limit of their own.

use super::charge::{Charge, ChargeError};
use super::{ChargePolicy, GlobalDeviceBudgetResource};
use bursar_core::{Bytes, Claims, DeviceContext, DeviceId, Error, Holder, LimitName, LimitReading, Result};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Charges against a limit of the budget's own: what was granted, less what the memory below has got back.
///
/// ```
/// use bursar::memory::{GlobalDeviceBudgetResource, OwnLimit};
///
/// fn left<R: bursar::memory::Holder>(budget: &GlobalDeviceBudgetResource<R, OwnLimit>) -> bursar::Bytes {
///     budget.remaining()
/// }
/// ```
#[derive(Debug)]
pub struct OwnLimit {
    charge: Charge,
    name: LimitName,
}

impl OwnLimit {
    fn over(inner: &impl Holder, limit: Bytes, name: Option<&str>) -> Arc<Self> {
        let released = inner.released_total();
        let granted = released.wrapping_add(inner.bytes_outstanding().get());
        let name = name.map_or_else(|| LimitName::unnamed("budget"), LimitName::new);
        Arc::new(Self { charge: Charge::new(granted, limit.get()), name })
    }
}

impl ChargePolicy for OwnLimit {
    type Terms = Limits;

    fn open<I: Holder>(limits: &Limits, inner: &Arc<I>, name: Option<&str>) -> Result<Arc<Self>> {
        let find = limits.shared.find.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = find(inner.context(), inner.bytes_outstanding())?;
        let policy = Self::over(&**inner, limit, name);
        let (device, inner): (_, Weak<I>) = (inner.context().device(), Arc::downgrade(inner));
        let mut built = limits.shared.built.lock().unwrap_or_else(PoisonError::into_inner);
        built.retain(|built| built.inner.strong_count() > 0);
        built.push(BuiltBudget { device, policy: policy.clone(), inner });
        Ok(policy)
    }

    fn admit(&self, inner: &(impl Holder + ?Sized), bytes: Bytes) -> Result<()> {
        let admitted = self.charge.admit(bytes.get(), || inner.released_total(), || inner.reap().map(drop));
        admitted.map_err(|error| match error {
            ChargeError::OverLimit(over) => {
                Error::over_limit(&self.name, bytes, Bytes(over.remaining()), Bytes(over.limit))
            }
            ChargeError::Reap(error) => error,
        })
    }

    fn conclude(&self, bytes: Bytes, is_granted: bool) {
        match is_granted {
            true => self.charge.confirm(bytes.get()),
            false => self.charge.roll_back(bytes.get()),
        }
    }

    /// Does nothing: what the memory below has released is read from it whenever it is needed.
    fn pay_back(&self, _: &(impl Holder + ?Sized)) {}

    fn keep_place(&self, bytes: Bytes) {
        self.charge.add_place(bytes.get());
    }

    fn take_back_place(&self, bytes: Bytes) {
        self.charge.remove_place(bytes.get());
    }

    /// Waits for nobody: the limit is this budget's alone.
    fn take_place(&self, inner: &(impl Holder + ?Sized), bytes: Bytes, _: Duration) -> Result<()> {
        self.admit(inner, bytes)?;
        self.charge.confirm(bytes.get());
        Ok(())
    }

    fn give_up_place(&self, bytes: Bytes) {
        self.charge.remove_place(bytes.get());
    }

    fn charged(&self, inner: &(impl Holder + ?Sized)) -> Bytes {
        Bytes(self.charge.used(|| inner.released_total()))
    }

    fn reading(&self, inner: &(impl Holder + ?Sized)) -> LimitReading {
        LimitReading::new(self.name.clone(), Bytes(self.charge.limit()), self.charged(inner))
    }

    fn claims(&self, _: Bytes) -> Option<Claims> {
        None
    }
}

impl<R: Holder> GlobalDeviceBudgetResource<R> {
    /// Makes a budget of `limit` over `inner`, which may hold something already.
    pub fn new(inner: R, limit: Bytes) -> Self {
        let policy = OwnLimit::over(&inner, limit, None);
        Self::over(Arc::new(inner), policy)
    }

    /// Returns the most that may be held.
    pub fn limit(&self) -> Bytes {
        Bytes(self.policy.charge.limit())
    }

    /// Changes the limit. Raised, it counts at once; lowered below what is held, it refuses everything until what is
    /// held has fallen under it.
    pub fn set_limit(&self, limit: Bytes) {
        self.policy.charge.set_limit(limit.get());
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

struct SharedLimits {
    find: Mutex<Box<FindLimit>>,
    built: Mutex<Vec<BuiltBudget>>,
}

/// Finds the limit of a device, on which so much is held already.
type FindLimit = dyn Fn(&Arc<DeviceContext>, Bytes) -> Result<Bytes> + Send + Sync;

impl fmt::Debug for SharedLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("SharedLimits").field("built", &built).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct BuiltBudget {
    device: DeviceId,
    policy: Arc<OwnLimit>,
    inner: Weak<dyn Holder>,
}

impl Limits {
    pub(super) fn new(find: impl Fn(&Arc<DeviceContext>, Bytes) -> Result<Bytes> + Send + Sync + 'static) -> Self {
        Self { shared: Arc::new(SharedLimits { find: Mutex::new(Box::new(find)), built: Mutex::default() }) }
    }

    /// Changes the limit of every budget, those built already and those to come.
    pub(super) fn set(&self, limit: Bytes) {
        let mut find = self.shared.find.lock().unwrap_or_else(PoisonError::into_inner);
        *find = Box::new(move |_, _| Ok(limit));
        let built = self.shared.built.lock().unwrap_or_else(PoisonError::into_inner);
        built.iter().for_each(|built| built.policy.charge.set_limit(limit.get()));
    }

    pub(super) fn readings(&self) -> Vec<BudgetReading> {
        let built = self.shared.built.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |built: &BuiltBudget| {
            let inner = built.inner.upgrade()?;
            Some(BudgetReading {
                device: built.device,
                limit: Bytes(built.policy.charge.limit()),
                charged: built.policy.charged(&*inner),
            })
        };
        built.iter().filter_map(read).collect()
    }
}

/// Returns a part of a size; an error unless it is more than 0 and at most 1, and comes to a byte at least.
pub(super) fn fraction(of: Bytes, part: f64) -> Result<Bytes> {
    if !(part > 0.0 && part <= 1.0) {
        return Err(Error::InvalidValue { what: "a fraction is more than 0 and at most 1" });
    }
    match Bytes((of.get() as f64 * part) as u64).min(of) {
        Bytes::ZERO => Err(Error::InvalidValue { what: "a fraction of the memory that comes to less than a byte" }),
        limit => Ok(limit),
    }
}

/// A reading of one device's budget at a moment.
///
/// ```
/// use bursar::memory::BudgetReading;
/// use bursar::{Bytes, DeviceId};
///
/// let reading = BudgetReading { device: DeviceId(0), limit: Bytes::gib(1), charged: Bytes::mib(1) };
/// assert_eq!(reading.remaining(), Bytes::mib(1023));
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

impl BudgetReading {
    /// Returns what is left of the limit: nothing if more is charged than it allows.
    pub const fn remaining(&self) -> Bytes {
        self.limit.saturating_sub(self.charged)
    }
}
