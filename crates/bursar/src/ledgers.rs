//! The ledgers of a program's devices.

use bursar_core::{Account, Admission, Bytes, Claims, DeviceContext, Error, Result, UsageView};
use bursar_ledger::{Ledger, LedgerError, ProcessUsage, Reclaimer, Reservation, Tenant, UsagePublisher};
use bursar_memory::{GlobalDeviceBudget, OnAccount};
use std::cmp::Reverse;
use std::env::VarError;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

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
    /// Publishes what the context's stacks use.
    _publisher: UsagePublisher,
}

impl Ledgers {
    /// Returns the same ledgers, with reservations and charges through the result going to the tenant `name`.
    #[must_use]
    pub fn tenant(&self, name: &str) -> Self {
        Self { tenant: name.into(), opened: self.opened.clone() }
    }

    /// Returns the ledger of a device, and opens it if needed.
    pub fn of(&self, context: &Arc<DeviceContext>) -> Result<Ledger> {
        self.open(context, Ledger::for_device).map(|opened| opened.measured_by(context))
    }

    /// Returns the ledger of a device as [`of`](Self::of) does, waiting for at most `patience` where it is to be opened and another
    /// process has its lock or is just making it.
    pub fn of_within(&self, context: &Arc<DeviceContext>, patience: Duration) -> Result<Ledger> {
        let opened = self.open(context, |context| Ledger::for_device_within(context, patience));
        opened.map(|opened| opened.measured_by(context))
    }

    fn open(
        &self,
        context: &Arc<DeviceContext>,
        ledger: impl FnOnce(&Arc<DeviceContext>) -> Result<Ledger, LedgerError>,
    ) -> Result<Arc<OpenLedger>> {
        if let Some(opened) = self.find(context) {
            return Ok(opened);
        }
        let new = Arc::new(OpenLedger::new(context, ledger(context)?));
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
        if let Err(VarError::NotUnicode(token)) = std::env::var(Reservation::VARIABLE) {
            let why = format!("{} is no text in UTF-8", Reservation::VARIABLE).into();
            return Err(LedgerError::Token { token: token.to_string_lossy().into_owned(), why }.into());
        }
        Ok(Reservation::from_environment()?.filter(is_here))
    }

    /// Returns the layer whose budgets charge this process's [`share`](Self::share) of their device, or, if it has none, its
    /// account with the device's ledger. While such a stack lives, the device's pools are trimmed when an owner wants back
    /// what the stack borrows, and the ledger shows what this process uses of what it holds: once a second, from what pools
    /// and statistics know anyway.
    pub fn budget(&self) -> GlobalDeviceBudget<OnAccount> {
        self.budget_by(|share| share)
    }

    /// Returns the layer as [`budget`](Self::budget) does, with budgets that charge what `drawn` makes of the share: a program that gives
    /// its share back has them refused by it.
    pub fn budget_by<A: Account + 'static>(
        &self,
        drawn: impl Fn(Reservation) -> A + Send + Sync + 'static,
    ) -> GlobalDeviceBudget<OnAccount> {
        let ledgers = self.clone();
        GlobalDeviceBudget::shared_by(move |context| {
            if let Some(share) = Self::share(context)? {
                let publisher = publish_usage(share.ledger(), context);
                return Ok(Arc::new(StackAccount { account: drawn(share), _kept: publisher }));
            }
            let opened = ledgers.open(context, Ledger::for_device)?;
            // What a driver does not take back is kept by the context, charge and all: the account must not keep the context.
            let account = opened.measured_while_open(context).tenant(&ledgers.tenant)?.account()?;
            Ok(Arc::new(StackAccount { account, _kept: opened }))
        })
    }
}

impl OpenLedger {
    /// Registers a callback with the ledger of a context that trims its pools. The context is not kept alive for it.
    fn new(context: &Arc<DeviceContext>, ledger: Ledger) -> Self {
        let weak = Arc::downgrade(context);
        let (pools, caches) = (weak.clone(), weak.clone());
        let ledger = ledger.measured_by(|| Err(Error::NoDevice));
        let reclaimer = ledger
            .on_reclaim(move |_| pools.upgrade().map_or(Bytes::ZERO, |context| context.trim()))
            .with_cached_of(source(context), move || caches.upgrade().map_or(Bytes::ZERO, |context| context.spare()));
        let publisher = publish_usage(&ledger, context);
        Self { context: weak, ledger, _reclaimer: reclaimer, _publisher: publisher }
    }

    /// Returns a handle that measures by asking the driver while others keep the context alive.
    fn measured_while_open(&self, context: &Arc<DeviceContext>) -> Ledger {
        let context = Arc::downgrade(context);
        self.ledger.clone().measured_by(move || {
            let context = context.upgrade().ok_or(Error::NoDevice)?;
            Ok(context.driver().memory(context.device())?)
        })
    }

    /// Returns a handle that measures by asking the driver, and keeps the context alive.
    fn measured_by(&self, context: &Arc<DeviceContext>) -> Ledger {
        let context = context.clone();
        self.ledger.clone().measured_by(move || Ok(context.driver().memory(context.device())?))
    }
}

/// The account of a stack, with what has to be kept for as long as the stack has it.
#[derive(Debug)]
struct StackAccount<A, K> {
    account: A,
    _kept: K,
}

#[deny(clippy::missing_trait_methods)]
impl<A: Account, K: fmt::Debug + Send + Sync> Account for StackAccount<A, K> {
    fn charge(&self, bytes: Bytes) -> Result<()> {
        self.account.charge(bytes)
    }
    fn try_charge(&self, bytes: Bytes) -> Result<()> {
        self.account.try_charge(bytes)
    }
    fn charge_within(&self, bytes: Bytes, patience: Duration) -> Result<()> {
        self.account.charge_within(bytes, patience)
    }
    fn release(&self, bytes: Bytes) {
        self.account.release(bytes);
    }
    fn note_refusal(&self, error: &Error) {
        self.account.note_refusal(error);
    }
    fn claims(&self, bytes: Bytes) -> Option<Claims> {
        self.account.claims(bytes)
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

/// The number of tags that a ledger shows.
const HOLDERS: usize = 4;

/// Has a ledger show what the stacks of a context use.
fn publish_usage(ledger: &Ledger, context: &Arc<DeviceContext>) -> UsagePublisher {
    let (view, kept) = (context.usage_view(), Arc::downgrade(context));
    ledger.publish_of(source(context), move || {
        // While there is one who might look, no other context has the same address.
        let _kept = &kept;
        usage(&view)
    })
}

/// Returns the number by which a ledger knows that several speak of one context.
fn source(context: &Arc<DeviceContext>) -> usize {
    Arc::as_ptr(context).addr()
}

/// Returns what the stacks of a device use, as far as its pools and the statistics know.
fn usage(view: &UsageView) -> ProcessUsage {
    let mut holders = view.holders();
    let counted = holders.iter().fold(Bytes::ZERO, |sum, holding| sum.saturating_add(holding.bytes));
    holders.sort_by_key(|holding| Reverse(holding.bytes));
    holders.truncate(HOLDERS);
    let holders = holders.into_iter().map(|holding| (holding.tag.to_string(), holding.bytes)).collect();
    let Some(pools) = view.usage() else { return ProcessUsage { holders, ..ProcessUsage::default() } };
    ProcessUsage {
        live: Some(pools.held.saturating_sub(pools.cached).max(counted)),
        cached: pools.cached,
        peak: pools.peak.unwrap_or(pools.held),
        holders,
    }
}
