//! A limit on what a device may hold.

mod limit;
mod shared;

pub use limit::{BudgetLayer, BudgetReading, OwnLimit};
pub use shared::{OnAccount, SharedBudgetLayer};

use bursar_core::{
    Account, Action, AllocTag, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, Error, Frame, FrameRelease,
    FrameSource, Holder, Record, Refused, RefusedFrame, Result, Stream,
};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A limit on what the memory below may hold: blocks of a resource, or frames of a frame source.
///
/// What is charged is what will be granted, before it is asked for, and until the memory below has really got it back. So
/// frees that have not run count, budgets can be nested, and whoever finds out that a free has run finds it out for all of
/// them. The budget must be the only way to the memory below it. A request that fits waits while another that might still
/// fail is in its way, but not forever.
///
/// The limit is the budget's own ([`of`](Self::of)), or it is for an account to say ([`shared`](Self::shared)), so that
/// several stacks, tenants or processes share it; to the layers above there is no difference.
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
pub struct GlobalDeviceBudget<R = (), C = OwnLimit> {
    // In this order: what the memory below gives back as it goes is given back before the account hears the rest.
    inner: Arc<R>,
    charging: Arc<C>,
}

impl<R: Holder, C: Charging> fmt::Debug for GlobalDeviceBudget<R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reserved = self.charging.reserved(&*self.inner);
        f.debug_struct("GlobalDeviceBudget").field("reserved", &reserved).field("inner", &self.inner).finish()
    }
}

/// How a budget charges.
pub trait Charging: fmt::Debug + Send + Sync + 'static {
    /// Charges `bytes`, reaping `inner` where they do not fit.
    fn admit(&self, inner: &(impl Holder + ?Sized), bytes: Bytes) -> Result<()>;

    /// Ends what [`admit`](Self::admit) began: the charge stays if the memory was granted.
    fn decide(&self, bytes: Bytes, is_granted: bool);

    /// Hears that `inner` may have got something back.
    fn settle(&self, inner: &(impl Holder + ?Sized));

    /// What is held below and what is being asked for.
    fn reserved(&self, inner: &(impl Holder + ?Sized)) -> Bytes;
}

impl GlobalDeviceBudget {
    /// The layer that gives each device a budget of `limit`.
    pub fn of(limit: Bytes) -> BudgetLayer {
        BudgetLayer::new(limit)
    }

    /// The layer whose budgets pay from `account`: a reservation, or a process's account with the ledger of a device. The
    /// account is one device's, so the stack is for that device; for several, see [`shared_by`](Self::shared_by).
    ///
    /// ```
    /// use bursar_core::{Account, Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Stack, leaf, tag};
    /// use bursar_memory::{GlobalDeviceBudget, PagePool};
    /// use std::sync::Arc;
    ///
    /// fn stack(account: Arc<dyn Account>) -> impl Build {
    ///     Stack::new().layer(PagePool::default()).layer(GlobalDeviceBudget::shared(account)).over(leaf::Frames)
    /// }
    /// ```
    pub fn shared(account: Arc<dyn Account>) -> SharedBudgetLayer {
        SharedBudgetLayer::new(move |_| Ok(account.clone()))
    }

    /// The layer whose budgets pay from the account that `find` finds for their device.
    pub fn shared_by(
        find: impl Fn(&Arc<DeviceContext>) -> Result<Arc<dyn Account>> + Send + Sync + 'static,
    ) -> SharedBudgetLayer {
        SharedBudgetLayer::new(find)
    }
}

impl<R: Holder, C: Charging> GlobalDeviceBudget<R, C> {
    /// What is limited.
    pub fn inner(&self) -> &R {
        &self.inner
    }

    /// What is charged: what is held below and what is being asked for.
    pub fn reserved_bytes(&self) -> Bytes {
        self.settle();
        self.charging.reserved(&*self.inner)
    }

    fn admit(&self, bytes: Bytes) -> Result<()> {
        self.charging.admit(&*self.inner, bytes)
    }

    fn decide<T>(&self, bytes: Bytes, result: Result<T>) -> Result<T> {
        self.charging.decide(bytes, result.is_ok());
        self.settle();
        result
    }

    #[inline]
    fn settle(&self) {
        self.charging.settle(&*self.inner);
    }

    #[cold]
    fn tell_refusal(&self, error: &Error, asked: u64, stream: Option<Stream>, tag: AllocTag) {
        if matches!(error.root(), Error::OutOfBudget { .. }) {
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

#[deny(clippy::missing_trait_methods)]
impl<R: Holder, C: Charging> Holder for GlobalDeviceBudget<R, C> {
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
        let outcome = self.inner.reap();
        self.settle();
        outcome
    }
    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        let outcome = self.inner.reap_blocking(patience);
        self.settle();
        outcome
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource, C: Charging> DeviceMemoryResource for GlobalDeviceBudget<R, C> {
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
        let outcome = self.inner.deallocate(block, stream);
        self.settle();
        outcome
    }

    fn tracks_use(&self) -> bool {
        self.inner.tracks_use()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: FrameSource, C: Charging> FrameSource for GlobalDeviceBudget<R, C> {
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
        let outcome = self.inner.release_frame(frame);
        self.settle();
        outcome
    }

    fn release(&self) -> Arc<dyn FrameRelease> {
        let (below, inner) = (self.inner.release(), Arc::downgrade(&self.inner));
        Arc::new(Charged { below, inner, charging: self.charging.clone() })
    }
}

/// The way back for frames that are charged until they are released, also when the budget is gone.
struct Charged<R, C> {
    below: Arc<dyn FrameRelease>,
    inner: Weak<R>,
    charging: Arc<C>,
}

impl<R, C> fmt::Debug for Charged<R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charged").field("below", &self.below).finish_non_exhaustive()
    }
}

impl<R: Holder, C: Charging> FrameRelease for Charged<R, C> {
    fn release(&self, context: &DeviceContext, frame: Frame) -> Result<(), RefusedFrame> {
        let outcome = self.below.release(context, frame);
        if let Some(inner) = self.inner.upgrade() {
            self.charging.settle(&*inner);
        }
        outcome
    }
}
