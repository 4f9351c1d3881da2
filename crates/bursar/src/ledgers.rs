//! The ledgers of a program's devices.

use bursar_core::{Account, Admission, Bytes, DeviceContext, Error, Result};
use bursar_ledger::{Ledger, LedgerAccount, Reclaimer, Reservation, Tenant};
use bursar_memory::{GlobalDeviceBudget, OnAccount};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A ledger for each device, opened when it is first needed and kept.
///
/// Whoever shares a device shares its ledger: the threads and stacks of this process, and, where the device is one that
/// other processes can open too, all of them. Pools on these devices are asked to release what they only cache when an owner
/// wants back memory that was borrowed.
///
/// ```
/// use bursar::memory::Admission;
/// use bursar::prelude::*;
///
/// let ledgers = Ledgers::default();
/// let stack = Stack::new().layer(PagePool::default()).layer(ledgers.budget()).over(leaf::Frames);
/// let gpus = DevicePool::open(bursar::sim::Sim::immediate(), &stack)?;
///
/// let (gpu, reservation) = gpus.reserve_on_best(&ledgers, Bytes::gib(60))?;
/// assert_eq!(gpu.id(), DeviceId(0));
/// let (other, _more) = gpus.reserve_on_best(&ledgers, Bytes::gib(60))?;
/// assert_eq!(other.id(), DeviceId(1), "the first has 20 GiB left");
/// assert!(gpus.reserve_on_best(&ledgers, Bytes::gib(60)).unwrap_err().is_capacity());
/// drop(reservation);
/// assert_eq!(ledgers.available(gpu.context())?, Bytes::gib(80));
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Ledgers {
    tenant: Arc<str>,
    opened: Arc<Mutex<Vec<Arc<OpenLedger>>>>,
}

/// The ledger of a context's device, for as long as the context lives.
#[derive(Debug)]
struct OpenLedger {
    context: Weak<DeviceContext>,
    ledger: Ledger,
    /// Trims the context's pools on request.
    _reclaimer: Reclaimer,
}

impl Ledgers {
    /// Returns the same ledgers, with reservations and charges through the result going to the tenant `name`.
    #[must_use]
    pub fn tenant(&self, name: &str) -> Self {
        Self { tenant: name.into(), opened: self.opened.clone() }
    }

    /// Returns the ledger of a device, and opens it if needed.
    pub fn of(&self, context: &Arc<DeviceContext>) -> Result<Ledger> {
        self.open(context).map(|opened| opened.measured_by(context))
    }

    fn open(&self, context: &Arc<DeviceContext>) -> Result<Arc<OpenLedger>> {
        if let Some(opened) = self.find(context) {
            return Ok(opened);
        }
        let new = Arc::new(OpenLedger::new(context)?);
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|opened| opened.context.strong_count() > 0);
        opened.push(new.clone());
        Ok(new)
    }

    fn find(&self, context: &Arc<DeviceContext>) -> Option<Arc<OpenLedger>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.iter().find(|opened| std::ptr::eq(opened.context.as_ptr(), Arc::as_ptr(context))).cloned()
    }

    fn tenant_of(&self, context: &Arc<DeviceContext>) -> Result<Tenant> {
        Ok(self.of(context)?.tenant(&self.tenant)?)
    }

    /// Returns the memory of a device that the parent process reserved for this one, by [`Reservation::VARIABLE`].
    pub fn share(context: &DeviceContext) -> Result<Option<Reservation>> {
        let is_here = |share: &Reservation| share.ledger().subject().uuid == context.facts().uuid;
        Ok(Reservation::from_environment()?.filter(is_here))
    }

    /// Returns the layer whose budgets charge this process's [`share`](Self::share) of their device, or, if it has none, its
    /// account with the device's ledger. While such a stack lives, the device's pools are trimmed when an owner wants back
    /// what the stack borrows.
    pub fn budget(&self) -> GlobalDeviceBudget<OnAccount> {
        let ledgers = self.clone();
        GlobalDeviceBudget::shared_by(move |context| {
            if let Some(share) = Self::share(context)? {
                return Ok(Arc::new(share));
            }
            let opened = ledgers.open(context)?;
            let account = opened.measured_by(context).tenant(&ledgers.tenant)?.account()?;
            Ok(Arc::new(TrimmableAccount { account, _opened: opened }))
        })
    }
}

impl OpenLedger {
    /// Opens a ledger and registers a callback that trims the pools of the context. The context is not kept alive for it.
    fn new(context: &Arc<DeviceContext>) -> Result<Self> {
        let weak = Arc::downgrade(context);
        let (pools, caches) = (weak.clone(), weak.clone());
        let ledger = Ledger::for_device(context)?.measured_by(|| Err(Error::NoDevice));
        let reclaimer = ledger
            .on_reclaim(move |_| pools.upgrade().map_or(Bytes::ZERO, |context| context.trim()))
            .with_cached(move || caches.upgrade().map_or(Bytes::ZERO, |context| cached(&context)));
        Ok(Self { context: weak, ledger, _reclaimer: reclaimer })
    }

    /// Returns a handle that measures by asking the driver, and keeps the context alive.
    fn measured_by(&self, context: &Arc<DeviceContext>) -> Ledger {
        let context = context.clone();
        self.ledger.clone().measured_by(move || Ok(context.driver().memory(context.device())?))
    }
}

/// The account of a stack whose pools are trimmed on request while it has the account.
#[derive(Debug)]
struct TrimmableAccount {
    account: LedgerAccount,
    _opened: Arc<OpenLedger>,
}

impl Account for TrimmableAccount {
    fn charge(&self, bytes: Bytes) -> Result<()> {
        self.account.charge(bytes)
    }
    fn release(&self, bytes: Bytes) {
        self.account.release(bytes);
    }
    fn name(&self) -> Option<String> {
        self.account.name()
    }
}

impl Admission for Ledgers {
    type Reservation = Reservation;

    fn available(&self, context: &Arc<DeviceContext>) -> Result<Bytes> {
        self.of(context)?.available()
    }

    fn reserve(&self, context: &Arc<DeviceContext>, bytes: Bytes) -> Result<Reservation> {
        let tenant = self.tenant_of(context)?;
        match tenant.reserve(bytes) {
            // Memory that pools of this program only cache counts as available.
            Err(refused) if refused.is_capacity() && context.trim() > Bytes::ZERO => tenant.reserve(bytes),
            decided => decided,
        }
    }
}

/// Returns the bytes that the pools of a device hold and nobody uses.
fn cached(context: &DeviceContext) -> Bytes {
    context.usage().unwrap_or_default().cached
}
