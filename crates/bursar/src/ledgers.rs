//! The ledgers of a program's devices.

use bursar_core::{Account, Admission, Bytes, DeviceContext, Error, Result};
use bursar_ledger::{Ledger, LedgerAccount, Reclaimer, Reservation, Tenant};
use bursar_memory::{GlobalDeviceBudget, OnAccount};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A ledger for each device, opened when it is first needed and kept.
///
/// Whoever shares a device shares its ledger: the threads and stacks of this process, and, where the device is one that
/// other processes can open too, all of them. Pools on these devices are asked to let go of what they only cache when
/// somebody whose memory was borrowed wants it back.
///
/// ```
/// use bursar::Admission;
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
    opened: Arc<Mutex<Vec<Arc<Opened>>>>,
}

/// The ledger of a context's device, for as long as the context lives.
#[derive(Debug)]
struct Opened {
    context: Weak<DeviceContext>,
    ledger: Ledger,
    /// Asks the context's pools to trim.
    _reclaimer: Reclaimer,
}

impl Ledgers {
    /// The same ledgers, with what is reserved and charged from here on going to a tenant of that name.
    #[must_use]
    pub fn tenant(&self, name: &str) -> Self {
        Self { tenant: name.into(), opened: self.opened.clone() }
    }

    /// The ledger of a device.
    pub fn of(&self, context: &Arc<DeviceContext>) -> Result<Ledger> {
        self.open(context).map(|opened| opened.measured_by(context))
    }

    fn open(&self, context: &Arc<DeviceContext>) -> Result<Arc<Opened>> {
        if let Some(opened) = self.find(context) {
            return Ok(opened);
        }
        let new = Arc::new(Opened::new(context)?);
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|opened| opened.context.strong_count() > 0);
        opened.push(new.clone());
        Ok(new)
    }

    fn find(&self, context: &Arc<DeviceContext>) -> Option<Arc<Opened>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.iter().find(|opened| std::ptr::eq(opened.context.as_ptr(), Arc::as_ptr(context))).cloned()
    }

    fn tenant_of(&self, context: &Arc<DeviceContext>) -> Result<Tenant> {
        Ok(self.of(context)?.tenant(&self.tenant)?)
    }

    /// What whoever started this process set aside for it on a device, by [`Reservation::VARIABLE`].
    pub fn share(context: &DeviceContext) -> Result<Option<Reservation>> {
        let is_here = |share: &Reservation| share.ledger().subject().uuid == context.facts().uuid;
        Ok(Reservation::from_environment()?.filter(is_here))
    }

    /// The layer whose budgets pay from this process's [`share`](Self::share) of their device, or, where it has none, from
    /// its account with the device's ledger. While such a stack lives, owners who want back what it borrows have the
    /// device's pools trimmed.
    pub fn budget(&self) -> GlobalDeviceBudget<OnAccount> {
        let ledgers = self.clone();
        GlobalDeviceBudget::shared_by(move |context| {
            if let Some(share) = Self::share(context)? {
                return Ok(Arc::new(share));
            }
            let opened = ledgers.open(context)?;
            let account = opened.measured_by(context).tenant(&ledgers.tenant)?.account()?;
            Ok(Arc::new(Trimmed { account, _opened: opened }))
        })
    }
}

impl Opened {
    /// Opens a ledger whose owners ask the pools of the context, which is not kept alive for it.
    fn new(context: &Arc<DeviceContext>) -> Result<Self> {
        let weak = Arc::downgrade(context);
        let (pools, keepers) = (weak.clone(), weak.clone());
        let ledger = Ledger::for_device(context)?.measured_by(|| Err(Error::NoDevice));
        let reclaimer = ledger
            .on_reclaim(move |_| pools.upgrade().map_or(Bytes::ZERO, |context| context.trim()))
            .with_cached(move || keepers.upgrade().map_or(Bytes::ZERO, |context| cached(&context)));
        Ok(Self { context: weak, ledger, _reclaimer: reclaimer })
    }

    /// A handle that asks the driver, for those who keep the context.
    fn measured_by(&self, context: &Arc<DeviceContext>) -> Ledger {
        let context = context.clone();
        self.ledger.clone().measured_by(move || Ok(context.driver().memory(context.device())?))
    }
}

/// An account of a stack whose pools are asked to trim for as long as it has the account.
#[derive(Debug)]
struct Trimmed {
    account: LedgerAccount,
    _opened: Arc<Opened>,
}

impl Account for Trimmed {
    fn charge(&self, bytes: Bytes) -> Result<()> {
        self.account.charge(bytes)
    }
    fn release(&self, bytes: Bytes) {
        self.account.release(bytes);
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
            // What pools of this program only cache is as good as free, so it counts as available.
            Err(refused) if refused.is_capacity() && context.trim() > Bytes::ZERO => tenant.reserve(bytes),
            decided => decided,
        }
    }
}

/// What pools on a device hold and nobody uses.
fn cached(context: &DeviceContext) -> Bytes {
    context.standing().unwrap_or_default().cached
}
