//! A limit on what a device may hold.
//!
//! [`GlobalDeviceBudget`] is the layer, and [`GlobalDeviceBudgetResource`] the memory it makes: it charges each request
//! before it passes it on. A [`ChargePolicy`] does the charging: [`OwnLimit`] counts against a limit of its own,
//! [`OnAccount`] pays from an [`Account`]. The lock-free arithmetic of the two is in [`charge`] and [`account_charge`];
//! loom searches both.
//!
//! # Invariants
//! - **A block says what it costs.** The amount comes from `granted_size` before the call; nothing samples a counter
//!   around it.
//! - **What is charged is never less than what is held.** A charge is made before the memory is asked for and ends
//!   after the memory below has released it.
//! - **A budget with a limit of its own releases nothing.** What is used is the difference of its own granted total and
//!   the released total of the memory below. The order in which the two are read makes it exact; the proof is in
//!   [`charge`].
//! - **A budget on an account pays back what the memory below has released, once.** A total is moved forward by
//!   compare-and-swap, and whoever moved it pays.
//!
//! # Why a request may reap more than once
//! To reap once and to try once more is not enough under concurrency: between the two, another thread can free and
//! allocate without reaping, and take room that the first one found; and a charge whose memory has not been granted yet
//! may still be rolled back. So a budget also counts what was confirmed, and refuses only when that total, read
//! *before* the reap, less the released total, read *after* it, leaves no room: then the request did not fit at that
//! moment, even if every undecided request fails. Otherwise the thread yields and tries again, up to 65,536 times,
//! since an undecided request might itself be waiting for this one; meanwhile new requests [back off](backoff). A
//! thread that is alone reaps exactly once.

mod account_charge;
mod backoff;
mod charge;
mod frames;
mod on_account;
mod own_limit;
mod refusals;

pub use on_account::OnAccount;
pub use own_limit::{BudgetReading, OwnLimit};

use bursar_core::{
    Account, Action, AllocTag, Bytes, Claims, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Error,
    Holder, Layer, LimitReading, PartCount, Record, Refused, Result, Stream, Survey, SurveyStep, forward_holder,
    forward_memory_resource,
};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A layer that limits what the memory below may hold: blocks of a resource, or frames of a frame source.
///
/// A request is charged with what will be granted, before it is passed on, and until the memory below has really got it
/// back. So frees that have not run count, budgets can be nested, and whoever finds out that a free has run finds it
/// out for all of them. The budget must be the only way to the memory below it. A request that fits waits while another
/// that might still fail is in its way, but not forever.
///
/// The limit is the budget's own ([`of`](Self::of)), and then the layer is also the handle that reads and changes it on
/// each device. Or an account decides ([`shared`](GlobalDeviceBudget::shared)), so that several stacks, tenants or
/// processes share a limit. To the layers above there is no difference.
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
/// use bursar::device::DeviceContext;
/// use bursar::memory::{Build, DeviceMemoryResource};
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId, GlobalDeviceBudget, Stack, leaf, tag};
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let stream = context.create_stream(0)?;
/// let budget = GlobalDeviceBudget::of(Bytes::mib(1));
/// let memory = Stack::new().layer(budget.clone()).over(leaf::Async).build(&context)?;
///
/// let half = memory.allocate(512 << 10, 256, stream, tag!("half"))?;
/// let refused = memory.allocate(513 << 10, 256, stream, tag!("too much")).unwrap_err();
/// assert_eq!(refused.to_string(), "over budget: 513 KiB requested, 512 KiB of 1 MiB left");
/// memory.deallocate(half, stream)?;
///
/// budget.set_limit(Bytes::mib(2));
/// assert_eq!(budget.readings()[0].limit, Bytes::mib(2));
/// # Ok::<(), bursar::Error>(())
/// ```
pub struct GlobalDeviceBudget<P: ChargePolicy = OwnLimit> {
    terms: P::Terms,
    name: Option<Arc<str>>,
}

impl<P: ChargePolicy> GlobalDeviceBudget<P> {
    const fn new(terms: P::Terms) -> Self {
        Self { terms, name: None }
    }

    /// Names the budget: its refusals say who refused. Without a name, one on an account has the account's.
    ///
    /// ```
    /// use bursar::device::DeviceContext;
    /// use bursar::memory::{Build, DeviceMemoryResource};
    /// use bursar::sim::Sim;
    /// use bursar::{Bytes, DeviceId, GlobalDeviceBudget, Stack, leaf, tag};
    ///
    /// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    /// let budget = GlobalDeviceBudget::of(Bytes::mib(1)).named("serving");
    /// let memory = Stack::new().layer(budget).over(leaf::Async).build(&context)?;
    /// let refused = memory.allocate(2 << 20, 256, context.default_stream(), tag!("too much")).unwrap_err();
    /// assert_eq!(refused.to_string(), "over `serving`: 2 MiB requested, 1 MiB of 1 MiB left");
    /// # Ok::<(), bursar::Error>(())
    /// ```
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }
}

impl GlobalDeviceBudget {
    /// Gives each device a budget of `limit`.
    pub fn of(limit: Bytes) -> Self {
        Self::new(own_limit::Limits::new(move |_, _| Ok(limit)))
    }

    /// Gives each of these devices a budget of its own. A stack with it cannot be built for another device.
    ///
    /// ```
    /// use bursar::{Bytes, DeviceId, GlobalDeviceBudget};
    ///
    /// let budget = GlobalDeviceBudget::per_device([(DeviceId(0), Bytes::gib(16)), (DeviceId(1), Bytes::gib(70))]);
    /// ```
    pub fn per_device(limits: impl IntoIterator<Item = (DeviceId, Bytes)>) -> Self {
        let limits: Vec<_> = limits.into_iter().collect();
        Self::limited_by(move |context| {
            let limit = limits.iter().find(|(device, _)| *device == context.device());
            limit.map(|&(_, limit)| limit).ok_or(Error::InvalidNumber {
                what: "the budget has no limit for the device",
                number: context.device().0.into(),
            })
        })
    }

    /// Gives each device a budget of a part of all its memory, more than 0 and at most 1; any other is an error when a
    /// stack is built, and so is one that comes to less than a byte.
    ///
    /// ```
    /// use bursar::device::DeviceContext;
    /// use bursar::memory::Build;
    /// use bursar::sim::Sim;
    /// use bursar::{Bytes, DeviceId, GlobalDeviceBudget, Stack, leaf};
    ///
    /// let context = DeviceContext::open(Sim::builder().device(Bytes::gib(80)).immediate().build(), DeviceId(0))?;
    /// let budget = GlobalDeviceBudget::fraction_of_total(0.5);
    /// let memory = Stack::new().layer(budget.clone()).over(leaf::Async).build(&context)?;
    /// assert_eq!(budget.readings()[0].limit, Bytes::gib(40));
    /// # drop(memory);
    ///
    /// let stack = Stack::new().layer(GlobalDeviceBudget::fraction_of_total(50.0)).over(leaf::Async);
    /// assert_eq!(stack.build(&context).unwrap_err().to_string(), "invalid value: a fraction is more than 0 and at most 1");
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn fraction_of_total(part: f64) -> Self {
        Self::new(own_limit::Limits::new(move |context, _| own_limit::fraction(context.facts().total, part)))
    }

    /// Gives each device a budget of a part of what is free when a stack is built, and of what the memory below holds
    /// already: more than 0 and at most 1; any other is an error then, and so is one that comes to less than a byte.
    pub fn fraction_of_free(part: f64) -> Self {
        Self::new(own_limit::Limits::new(move |context, held| {
            let info = context.driver().memory(context.device()).map_err(|error| context.failed(error))?;
            own_limit::fraction(info.free.saturating_add(held), part)
        }))
    }

    /// Gives each device the budget that `find` returns for it when a stack is built.
    ///
    /// ```
    /// use bursar::{Bytes, GlobalDeviceBudget};
    ///
    /// let all_but_one = GlobalDeviceBudget::limited_by(|context| {
    ///     Ok(context.facts().total.saturating_sub(Bytes::gib(1)))
    /// });
    /// ```
    pub fn limited_by(find: impl Fn(&Arc<DeviceContext>) -> Result<Bytes> + Send + Sync + 'static) -> Self {
        Self::new(own_limit::Limits::new(move |context, _| find(context)))
    }

    /// Changes the limit of every device, those built already and those to come.
    pub fn set_limit(&self, limit: Bytes) {
        self.terms.set(limit);
    }

    /// Returns a reading of each budget that is alive.
    pub fn readings(&self) -> Vec<BudgetReading> {
        self.terms.readings()
    }
}

impl GlobalDeviceBudget<OnAccount> {
    /// Has every budget pay from `account`: a reservation, or a process's account with the ledger of a device. The
    /// account is one device's, so the stack is for that device; for several, see [`shared_by`](Self::shared_by).
    ///
    /// ```
    /// use bursar::memory::{Account, Build};
    /// use bursar::{GlobalDeviceBudget, PagePool, Stack, leaf};
    ///
    /// fn stack(account: impl Account + 'static) -> impl Build {
    ///     Stack::new().layer(PagePool::default()).layer(GlobalDeviceBudget::shared(account)).over(leaf::Frames)
    /// }
    /// ```
    pub fn shared(account: impl Account + 'static) -> Self {
        let account: Arc<dyn Account> = Arc::new(account);
        Self::shared_by(move |_| Ok(account.clone()))
    }

    /// Has each device's budget pay from the account that `find` returns for the device.
    ///
    /// ```
    /// use bursar::device::DeviceContext;
    /// use bursar::memory::{Account, Build};
    /// use bursar::sim::Sim;
    /// use bursar::{Bytes, DeviceId, Error, GlobalDeviceBudget, Result, Stack, leaf};
    /// use std::sync::Arc;
    ///
    /// #[derive(Debug)]
    /// struct Closed;
    ///
    /// impl Account for Closed {
    ///     fn charge(&self, requested: Bytes) -> Result<()> {
    ///         Err(Error::out_of_budget(requested, Bytes::ZERO, Bytes::gib(1)))
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
    pub fn shared_by(find: impl Fn(&Arc<DeviceContext>) -> Result<Arc<dyn Account>> + Send + Sync + 'static) -> Self {
        Self::new(on_account::Accounts::new(find))
    }
}

impl<P: ChargePolicy> Clone for GlobalDeviceBudget<P> {
    fn clone(&self) -> Self {
        Self { terms: self.terms.clone(), name: self.name.clone() }
    }
}

impl<P: ChargePolicy> fmt::Debug for GlobalDeviceBudget<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GlobalDeviceBudget").field("name", &self.name).field("terms", &self.terms).finish()
    }
}

impl<I: Holder, P: ChargePolicy> Layer<I> for GlobalDeviceBudget<P> {
    type Output = GlobalDeviceBudgetResource<I, P>;

    fn layer(&self, inner: I) -> Result<Self::Output> {
        let inner = Arc::new(inner);
        let policy = P::open(&self.terms, &inner, self.name.as_deref())?;
        Ok(GlobalDeviceBudgetResource::over(inner, policy))
    }
}

/// The way a budget charges for what it passes on.
pub trait ChargePolicy: fmt::Debug + Send + Sync + Sized + 'static {
    /// The state of the layer, shared by its clones and by the budgets it makes.
    type Terms: Clone + fmt::Debug + Send + Sync;

    /// Opens a budget over `inner`, which may hold something already.
    fn open<I: Holder>(terms: &Self::Terms, inner: &Arc<I>, name: Option<&str>) -> Result<Arc<Self>>;

    /// Charges `bytes`, reaping `inner` where they do not fit.
    fn admit(&self, inner: &(impl Holder + ?Sized), bytes: Bytes) -> Result<()>;

    /// Ends a request that was [admitted](Self::admit): the charge stays if the memory was granted, and is taken back
    /// if not.
    fn conclude(&self, bytes: Bytes, is_granted: bool);

    /// Ends the charges for what `inner` has released since the last call.
    fn pay_back(&self, inner: &(impl Holder + ?Sized));

    /// Charges for a place of `bytes` as for memory that was granted, before as much is released below: that release then
    /// ends no charge.
    fn keep_place(&self, bytes: Bytes);

    /// Undoes [`keep_place`](Self::keep_place), since nothing was released.
    fn take_back_place(&self, bytes: Bytes);

    /// Charges for a place of `bytes` as for memory that was granted, waiting at most for `patience`.
    fn take_place(&self, inner: &(impl Holder + ?Sized), bytes: Bytes, patience: Duration) -> Result<()>;

    /// Ends the charge for a place.
    fn give_up_place(&self, bytes: Bytes);

    /// Returns what is charged: what is held below and what is being requested.
    fn charged(&self, inner: &(impl Holder + ?Sized)) -> Bytes;

    /// Returns how the limit stands.
    fn reading(&self, inner: &(impl Holder + ?Sized)) -> LimitReading;

    /// Returns who stands against `bytes` that were refused, where others decide.
    fn claims(&self, bytes: Bytes) -> Option<Claims>;
}

/// Memory under a budget; [`GlobalDeviceBudget`] makes it.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::leaf::DirectMemory;
/// use bursar::memory::{DeviceMemoryResource, GlobalDeviceBudgetResource};
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId, tag};
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let budget = GlobalDeviceBudgetResource::new(DirectMemory::new(context.clone()), Bytes::mib(1));
/// let block = budget.allocate(1 << 10, 256, context.default_stream(), tag!("block"))?;
/// assert_eq!((budget.charged_bytes(), budget.remaining()), (Bytes::kib(1), Bytes::kib(1023)));
/// budget.deallocate(block, context.default_stream())?;
/// # Ok::<(), bursar::Error>(())
/// ```
pub struct GlobalDeviceBudgetResource<R, P = OwnLimit> {
    // Dropped in this order: what the memory below gives back as it goes is paid back before the account hears the
    // rest.
    inner: Arc<R>,
    policy: Arc<P>,
    /// The blocks that were granted here, by tag; below a pool there are none.
    count: OnceLock<PartCount>,
}

impl<R: Holder, P: ChargePolicy> GlobalDeviceBudgetResource<R, P> {
    const fn over(inner: Arc<R>, policy: Arc<P>) -> Self {
        Self { inner, policy, count: OnceLock::new() }
    }

    #[inline]
    fn count(&self) -> &PartCount {
        self.count.get_or_init(|| {
            let (context, survey) = (self.inner.context(), Survey::of_path(|survey| self.survey(survey)));
            context.sink().count_part(context.device(), &survey)
        })
    }

    /// Returns the memory that is limited.
    pub fn inner(&self) -> &R {
        &self.inner
    }

    /// Returns what is charged: what is held below and what is being requested.
    pub fn charged_bytes(&self) -> Bytes {
        self.policy.charged(&*self.inner)
    }

    /// Ends the charges for what the memory below has released, as every request, free and reap does: a budget on an
    /// account pays it back there, one with a limit of its own has nothing to do.
    #[inline]
    pub fn pay_back(&self) {
        self.policy.pay_back(&*self.inner);
    }

    fn admit(&self, bytes: Bytes) -> Result<()> {
        self.policy.admit(&*self.inner, bytes)
    }

    fn conclude<T>(&self, bytes: Bytes, result: Result<T>) -> Result<T> {
        self.policy.conclude(bytes, result.is_ok());
        self.pay_back();
        result
    }

    #[cold]
    fn emit_refusal(&self, error: &Error, asked: u64, stream: Stream, tag: AllocTag) {
        if matches!(error, Error::OutOfBudget { .. }) {
            let context = self.inner.context();
            context.sink().emit(&Record {
                stream: Some(stream),
                tag,
                asked: Bytes(asked),
                error: Some(error),
                ..Record::new(Action::Refuse, context.device())
            });
        }
    }
}

impl<R: Holder, P: ChargePolicy> fmt::Debug for GlobalDeviceBudgetResource<R, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let charged = self.policy.charged(&*self.inner);
        f.debug_struct("GlobalDeviceBudgetResource").field("charged", &charged).field("inner", &self.inner).finish()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: Holder, P: ChargePolicy> Holder for GlobalDeviceBudgetResource<R, P> {
    forward_holder!(self.inner; context, bytes_outstanding, released_total);

    fn survey(&self, survey: &mut Survey) {
        let mut reading = self.policy.reading(&*self.inner);
        reading.counts = self.count.get().is_some_and(PartCount::is_counting);
        reading.claims = survey.refused_by(&reading.name).and_then(|bytes| self.policy.claims(bytes));
        survey.add(SurveyStep::Limit(reading));
        self.inner.survey(survey);
    }

    fn reap(&self) -> Result<Bytes> {
        let outcome = self.inner.reap();
        self.pay_back();
        outcome
    }
    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        let outcome = self.inner.reap_blocking(patience);
        self.pay_back();
        outcome
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource, P: ChargePolicy> DeviceMemoryResource for GlobalDeviceBudgetResource<R, P> {
    forward_memory_resource!(self.inner; granted_size, tracks_use);

    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let granted = self.inner.granted_size(bytes, align)?;
        self.admit(granted).inspect_err(|error| self.emit_refusal(error, bytes, stream, tag))?;
        let block = self.conclude(granted, self.inner.allocate(bytes, align, stream, tag))?;
        debug_assert_eq!(block.granted(), granted, "granted_size is pure");
        self.count().granted(block.tag(), granted);
        Ok(block)
    }

    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let (tag, granted) = (block.tag(), block.granted());
        let outcome = self.inner.deallocate(block, stream);
        if outcome.is_ok() {
            self.count().freed(tag, granted);
        }
        self.pay_back();
        outcome
    }
}
