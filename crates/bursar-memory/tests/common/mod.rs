//! Helpers that the tests of the layers share.
#![allow(unsafe_code)]
#![allow(dead_code, reason = "each test binary uses part of it")]

use bursar_core::{
    Account, AllocTag, Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Driver, Error, Holder,
    Result, Stream, forward_holder, forward_memory_resource, tag,
};
use bursar_memory::{GlobalDeviceBudgetResource, OnAccount};
use bursar_sim::{Faults, Random, Stall};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

pub(crate) fn context(driver: Arc<dyn Driver>) -> Arc<DeviceContext> {
    DeviceContext::open(driver, DeviceId(0)).expect("a device")
}

pub(crate) fn stall(faults: &Faults, context: &DeviceContext, stream: Stream) -> Stall {
    let raw = context.resolve(stream).expect("a stream of this device");
    // SAFETY: the table resolves live streams of this device only.
    unsafe { faults.stall(context.device(), raw) }.expect("the device works")
}

/// An account with a limit and nothing else, which several budgets may share. Giving back more than was charged panics.
#[derive(Debug)]
pub(crate) struct Purse {
    limit: u64,
    held: AtomicU64,
}

impl Purse {
    pub(crate) fn of(limit: Bytes) -> Arc<Self> {
        Arc::new(Self { limit: limit.get(), held: AtomicU64::new(0) })
    }

    pub(crate) fn held(&self) -> Bytes {
        Bytes(self.held.load(SeqCst))
    }
}

impl Account for Purse {
    fn charge(&self, bytes: Bytes) -> Result<()> {
        let sum = |held: u64| held.checked_add(bytes.get()).filter(|sum| *sum <= self.limit);
        self.held.fetch_update(SeqCst, SeqCst, sum).map(drop).map_err(|held| {
            let remaining = Bytes(self.limit - held);
            Error::out_of_budget(bytes, remaining, Bytes(self.limit))
        })
    }

    fn release(&self, bytes: Bytes) {
        let rest = |held: u64| held.checked_sub(bytes.get());
        self.held.fetch_update(SeqCst, SeqCst, rest).expect("what is given back was charged");
    }
}

/// A budget of either kind.
pub(crate) trait Budget: DeviceMemoryResource {
    fn charged(&self) -> Bytes;
}

impl<R: DeviceMemoryResource> Budget for GlobalDeviceBudgetResource<R> {
    fn charged(&self) -> Bytes {
        self.charged_bytes()
    }
}

impl<R: DeviceMemoryResource> Budget for GlobalDeviceBudgetResource<R, OnAccount> {
    fn charged(&self) -> Bytes {
        self.charged_bytes()
    }
}

/// Runs the same on a budget with a limit of its own and on one that pays from an account, which must know exactly what
/// is charged in the end and nothing once the budget is gone.
#[allow(unused_macros, reason = "each test binary uses part of it")]
macro_rules! with_each_budget {
    ($inner:expr, $limit:expr, |$budget:ident| $body:block) => {{
        {
            let $budget = bursar_memory::GlobalDeviceBudgetResource::new($inner, $limit);
            $body
        }
        let purse = common::Purse::of($limit);
        let $budget = bursar_memory::GlobalDeviceBudgetResource::charged_to($inner, purse.clone()).expect("room");
        $body
        $budget.pay_back();
        assert_eq!($budget.charged_bytes(), purse.held(), "the account knows what is charged");
        drop($budget);
        assert_eq!(purse.held(), Bytes::ZERO, "nothing stays charged");
    }};
}
#[allow(unused_imports, reason = "each test binary uses part of it")]
pub(crate) use with_each_budget;

/// Sizes of blocks that a seed replays.
pub(crate) trait RandomSize {
    /// Returns a size: mostly small, sometimes large, at most `largest`.
    fn size(&mut self, largest: u64) -> u64;
}

impl RandomSize for Random {
    fn size(&mut self, largest: u64) -> u64 {
        let bound = largest >> self.below(12);
        1 + self.below(bound)
    }
}

/// A resource that rounds every request up to whole units of its own.
#[derive(Debug)]
pub(crate) struct Rounding<R> {
    pub(crate) inner: R,
    pub(crate) unit: u64,
}

impl<R: DeviceMemoryResource> Holder for Rounding<R> {
    forward_holder!(self.inner);
}

impl<R: DeviceMemoryResource> DeviceMemoryResource for Rounding<R> {
    forward_memory_resource!(self.inner; deallocate, tracks_use);
    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes> {
        self.inner.granted_size(bytes.next_multiple_of(self.unit), align)
    }
    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        self.inner.allocate(bytes.next_multiple_of(self.unit), align, stream, tag)
    }
}

/// A resource that keeps requests tagged `doomed` waiting until it was reaped `patience` times or it is told to stop,
/// and then fails them. Others it lets go on after a moment in which everybody else may run.
#[derive(Debug)]
pub(crate) struct Dooming<R> {
    pub(crate) inner: R,
    pub(crate) patience: u64,
    pub(crate) reaps: AtomicU64,
    pub(crate) doomed: AtomicU64,
    pub(crate) stop: AtomicBool,
}

impl<R> Dooming<R> {
    pub(crate) fn new(inner: R, patience: u64) -> Arc<Self> {
        let (reaps, doomed, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Self { inner, patience, reaps, doomed, stop })
    }
}

impl<R: DeviceMemoryResource> Holder for Dooming<R> {
    forward_holder!(self.inner; context, bytes_outstanding, released_total, reap_blocking, survey);
    fn reap(&self) -> Result<Bytes> {
        self.reaps.fetch_add(1, SeqCst);
        self.inner.reap()
    }
}

impl<R: DeviceMemoryResource> DeviceMemoryResource for Dooming<R> {
    forward_memory_resource!(self.inner; granted_size, deallocate, tracks_use);
    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        if tag != tag!("doomed") {
            std::thread::yield_now();
            return self.inner.allocate(bytes, align, stream, tag);
        }
        self.doomed.fetch_add(1, SeqCst);
        while self.reaps.load(SeqCst) < self.patience && !self.stop.load(SeqCst) {
            std::thread::yield_now();
        }
        self.doomed.fetch_sub(1, SeqCst);
        Err(Error::InvalidValue { what: "a doomed request" })
    }
}
