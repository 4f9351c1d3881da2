//! A limit on what a device may hold.

use crate::charge::{Charge, Denied, Full};
use bursar_core::{
    Action, AllocTag, Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Error, Frame, FrameSource,
    Holder, Layer, Record, Refused, RefusedFrame, Result, Stream,
};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// A limit on what the memory below may hold: blocks of a resource, or frames of a frame source.
///
/// What is charged is what will be granted, before it is asked for; nothing is ever released, because the charge is the
/// difference between what was granted here and what the memory below has really got back. So frees that have not run
/// count, budgets can be nested, and whoever finds out that a free has run finds it out for all of them. The budget must
/// be the only way to the memory below it. A request that fits waits while another that might still fail is in its way,
/// but not forever.
///
/// Under a pool, the usual place, it limits what the device really holds, cached memory included:
///
/// ```text
/// Stack::new().layer(pool).layer(GlobalDeviceBudget::of(limit)).over(leaf::Frames)
/// ```
///
/// Over one it limits what users were granted:
///
/// ```
/// use bursar_core::{Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Stack, leaf, tag};
/// use bursar_memory::GlobalDeviceBudget;
/// use bursar_sim::Sim;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let stream = context.create_stream(0)?;
/// let stack = Stack::new().layer(GlobalDeviceBudget::of(Bytes::mib(1))).over(leaf::Async);
/// let memory = stack.build(&context)?;
///
/// let half = memory.allocate(512 << 10, 256, stream, tag!("half"))?;
/// let refused = memory.allocate(513 << 10, 256, stream, tag!("too much")).unwrap_err();
/// assert_eq!(refused.to_string(), "over budget: 513 KiB requested, 512 KiB of 1 MiB left");
/// memory.deallocate(half, stream)?;
/// # Ok::<(), bursar_core::Error>(())
/// ```
#[derive(Debug)]
pub struct GlobalDeviceBudget<R = ()> {
    inner: Arc<R>,
    charge: Arc<Charge>,
}

impl GlobalDeviceBudget {
    /// The layer that gives each device a budget of `limit`.
    pub fn of(limit: Bytes) -> BudgetLayer {
        BudgetLayer { shared: Arc::new(Shared { limit: Mutex::new(limit), built: Mutex::default() }) }
    }
}

impl<R: Holder> GlobalDeviceBudget<R> {
    /// A budget of `limit` over `inner`, which may hold something already.
    pub fn new(inner: R, limit: Bytes) -> Self {
        let released = inner.released_total();
        let granted = released.wrapping_add(inner.bytes_outstanding().get());
        Self { inner: Arc::new(inner), charge: Arc::new(Charge::new(granted, limit.get())) }
    }

    /// What is limited.
    pub fn inner(&self) -> &R {
        &self.inner
    }

    /// The most that may be held.
    pub fn limit(&self) -> Bytes {
        Bytes(self.charge.limit())
    }

    /// Changes the limit. Raised, it counts at once; lowered below what is held, it refuses everything until what is
    /// held has fallen under it.
    pub fn set_limit(&self, limit: Bytes) {
        self.charge.set_limit(limit.get());
    }

    /// What is charged: what is held below and what is being asked for.
    pub fn reserved_bytes(&self) -> Bytes {
        Bytes(self.charge.used(|| self.inner.released_total()))
    }

    /// What is left, nothing if more is held than the limit allows.
    pub fn remaining(&self) -> Bytes {
        self.limit().saturating_sub(self.reserved_bytes())
    }

    /// Charges `bytes`, reaping where they do not fit.
    fn admit(&self, bytes: Bytes) -> Result<()> {
        let admitted = self.charge.admit(bytes.get(), || self.inner.released_total(), || self.inner.reap().map(drop));
        admitted.map_err(|denied| match denied {
            Denied::Full(full) => refusal(bytes, full),
            Denied::Look(error) => error,
        })
    }

    /// Ends what [`admit`](Self::admit) began: the charge stays if the memory was granted.
    fn decide<T>(&self, bytes: Bytes, result: Result<T>) -> Result<T> {
        match &result {
            Ok(_) => self.charge.settle(bytes.get()),
            Err(_) => self.charge.roll_back(bytes.get()),
        }
        result
    }

    #[cold]
    fn tell_refusal(&self, error: &Error, asked: u64, stream: Option<Stream>, tag: AllocTag) {
        if matches!(error, Error::OutOfBudget { .. }) {
            let context = self.inner.context();
            context.sink().emit(&Record {
                stream,
                tag,
                asked: Bytes(asked),
                error: Some(error),
                ..Record::new(Action::Refuse, context.device())
            });
        }
    }
}

#[cold]
fn refusal(requested: Bytes, full: Full) -> Error {
    Error::OutOfBudget { requested, remaining: Bytes(full.remaining()), limit: Bytes(full.limit) }
}

#[deny(clippy::missing_trait_methods)]
impl<R: Holder> Holder for GlobalDeviceBudget<R> {
    fn context(&self) -> &Arc<DeviceContext> {
        self.inner.context()
    }
    fn bytes_outstanding(&self) -> Bytes {
        self.inner.bytes_outstanding()
    }
    fn released_total(&self) -> u64 {
        self.inner.released_total()
    }
    fn reap(&self) -> Result<Bytes> {
        self.inner.reap()
    }
    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        self.inner.reap_blocking(patience)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for GlobalDeviceBudget<R> {
    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes> {
        self.inner.granted_size(bytes, align)
    }

    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let granted = self.inner.granted_size(bytes, align)?;
        self.admit(granted).inspect_err(|error| self.tell_refusal(error, bytes, Some(stream), tag))?;
        self.decide(granted, self.inner.allocate(bytes, align, stream, tag))
            .inspect(|block| debug_assert_eq!(block.granted(), granted, "granted_size is pure"))
    }

    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        self.inner.deallocate(block, stream)
    }

    fn tracks_use(&self) -> bool {
        self.inner.tracks_use()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: FrameSource> FrameSource for GlobalDeviceBudget<R> {
    fn frame_granularity(&self) -> Bytes {
        self.inner.frame_granularity()
    }

    fn granted_frame(&self, bytes: u64) -> Result<Bytes> {
        self.inner.granted_frame(bytes)
    }

    fn create_frame(&self, bytes: u64) -> Result<Frame> {
        let granted = self.inner.granted_frame(bytes)?;
        self.admit(granted).inspect_err(|error| self.tell_refusal(error, bytes, None, AllocTag::UNTAGGED))?;
        self.decide(granted, self.inner.create_frame(bytes))
    }

    fn release_frame(&self, frame: Frame) -> Result<(), RefusedFrame> {
        self.inner.release_frame(frame)
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
    charge: Arc<Charge>,
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
    /// Changes the limit of every device, those built already and those to come.
    pub fn set_limit(&self, limit: Bytes) {
        let mut current = self.shared.limit.lock().unwrap_or_else(PoisonError::into_inner);
        *current = limit;
        let built = self.shared.built.lock().unwrap_or_else(PoisonError::into_inner);
        built.iter().for_each(|built| built.charge.set_limit(limit.get()));
    }

    /// What each living budget says.
    pub fn readings(&self) -> Vec<BudgetReading> {
        let built = self.shared.built.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |built: &Built| {
            let inner = built.inner.upgrade()?;
            Some(BudgetReading {
                device: built.device,
                limit: Bytes(built.charge.limit()),
                reserved: Bytes(built.charge.used(|| inner.released_total())),
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
        built.push(Built { device: budget.context().device(), charge: budget.charge.clone(), inner });
        Ok(budget)
    }
}
