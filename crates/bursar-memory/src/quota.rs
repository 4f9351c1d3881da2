//! Limits for tenants that share one pool.
//!
//! Tenants are limited by granted bytes, and one shared counter would be the cache line that all threads meet on. So
//! each thread pays from a small credit of its own, and before anyone is refused every credit is called in; see
//! [`credit`].

mod credit;

use bursar_core::{
    Action, AllocTag, Bytes, DeviceBlock, DeviceMemoryResource, Error, Holder, Layer, LimitName, LimitReading,
    PartCount, Record, Refused, Result, Stream, Survey, SurveyStep, ThreadIndex, forward_holder,
    forward_memory_resource,
};
use credit::{Balance, Credit};
use std::fmt;
use std::sync::Arc;

/// A limit on what one tenant of a shared pool is granted: a layer for each tenant over the same memory, and the handle
/// that reads and changes the limit.
///
/// It counts granted bytes, exactly, and threads do not meet on it: each pays from a small credit of its own, which is
/// called in before anyone is refused. Several layers made from one quota share it. A tenant frees its blocks through
/// its own layer.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::memory::{Build, DeviceMemoryResource, Layer};
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId, PagePool, Quota, Stack, leaf, tag};
/// use std::sync::Arc;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let stream = context.create_stream(0)?;
/// let pool = Arc::new(Stack::new().layer(PagePool::default()).over(leaf::Frames).build(&context)?);
///
/// let quota = Quota::of(Bytes::mib(1));
/// let tenant = quota.layer(pool.clone())?;
/// let block = tenant.allocate(1 << 20, 256, stream, tag!("all of it"))?;
/// assert_eq!(quota.used(), Bytes::mib(1));
/// assert!(tenant.allocate(1, 256, stream, tag!("one more")).unwrap_err().is_capacity());
/// let other = pool.allocate(1 << 20, 256, stream, tag!("another tenant's"))?;
/// tenant.deallocate(block, stream)?;
/// pool.deallocate(other, stream)?;
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Clone)]
pub struct Quota {
    credit: Arc<Credit>,
    name: LimitName,
}

impl Quota {
    /// Makes a quota of at most `limit` granted at a time.
    pub fn of(limit: Bytes) -> Self {
        Self { credit: Arc::new(Credit::new(limit.get())), name: LimitName::unnamed("quota") }
    }

    /// Names the quota: its refusals say who refused.
    ///
    /// ```
    /// use bursar::{Bytes, Quota};
    ///
    /// assert_eq!(Quota::of(Bytes::gib(4)).named("model-a").name().as_str(), "model-a");
    /// ```
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = LimitName::new(name);
        self
    }

    /// Returns its name.
    pub const fn name(&self) -> &LimitName {
        &self.name
    }

    /// Returns the most that may be granted.
    pub fn limit(&self) -> Bytes {
        Bytes(self.credit.balance().limit)
    }

    /// Returns the bytes that are granted.
    pub fn used(&self) -> Bytes {
        Bytes(self.credit.reading().1)
    }

    /// Changes the limit. Lowered below what is granted, it refuses everything until enough has come back.
    pub fn set_limit(&self, limit: Bytes) {
        self.credit.set_limit(limit.get());
    }

    /// Returns how the limit stands.
    fn reading(&self) -> LimitReading {
        let (limit, used) = self.credit.reading();
        let mut reading = LimitReading::new(self.name.clone(), Bytes(limit), Bytes(used));
        (reading.ends_at_free, reading.counts) = (true, true);
        reading
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quota")
            .field("name", &self.name)
            .field("limit", &self.limit())
            .field("used", &self.used())
            .finish()
    }
}

impl<R: DeviceMemoryResource> Layer<R> for Quota {
    type Output = QuotaResource<R>;

    fn layer(&self, inner: R) -> Result<QuotaResource<R>> {
        let context = inner.context();
        let survey = Survey::of_path(|survey| {
            survey.add(SurveyStep::Limit(self.reading()));
            inner.survey(survey);
        });
        let count = context.sink().count_part(context.device(), &survey);
        Ok(QuotaResource { quota: self.clone(), count, inner })
    }
}

/// Memory under a quota, which others may use as well; [`Quota`] makes it.
///
/// ```
/// use bursar::memory::{DeviceMemoryResource, Layer, QuotaResource};
/// use bursar::{Bytes, Quota, Result};
/// use std::sync::Arc;
///
/// fn tenant(pool: &Arc<dyn DeviceMemoryResource>) -> Result<QuotaResource<Arc<dyn DeviceMemoryResource>>> {
///     Quota::of(Bytes::gib(4)).layer(pool.clone())
/// }
/// ```
pub struct QuotaResource<R> {
    inner: R,
    quota: Quota,
    /// The blocks that were granted here, by tag.
    count: PartCount,
}

impl<R: fmt::Debug> fmt::Debug for QuotaResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaResource").field("quota", &self.quota).field("inner", &self.inner).finish()
    }
}

/// Returns the index of the current thread.
#[inline]
fn thread() -> usize {
    ThreadIndex::current().map_or(0, ThreadIndex::get)
}

impl<R: DeviceMemoryResource> QuotaResource<R> {
    #[cold]
    fn refuse(&self, requested: Bytes, balance: Balance, stream: Stream, tag: AllocTag) -> Error {
        let context = self.inner.context();
        let error = Error::over_limit(&self.quota.name, requested, Bytes(balance.left), Bytes(balance.limit));
        let record = Record {
            stream: Some(stream),
            tag,
            asked: requested,
            error: Some(&error),
            ..Record::new(Action::Refuse, context.device())
        };
        context.sink().emit(&record);
        error
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> Holder for QuotaResource<R> {
    forward_holder!(self.inner; context, bytes_outstanding, released_total, reap, reap_blocking);

    fn survey(&self, survey: &mut Survey) {
        survey.add(SurveyStep::Limit(self.quota.reading()));
        self.inner.survey(survey);
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for QuotaResource<R> {
    forward_memory_resource!(self.inner; granted_size, tracks_use);

    #[inline]
    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        let granted = self.inner.granted_size(bytes, align)?;
        let thread = thread();
        let credit = &*self.quota.credit;
        credit.pay(thread, granted.get()).map_err(|balance| self.refuse(granted, balance, stream, tag))?;
        match self.inner.allocate(bytes, align, stream, tag) {
            Ok(block) => {
                self.count.granted(block.tag(), granted);
                Ok(block)
            }
            Err(error) => {
                credit.refund(thread, granted.get());
                Err(error)
            }
        }
    }

    #[inline]
    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        let (tag, granted) = (block.tag(), block.granted());
        self.inner.deallocate(block, stream)?;
        self.count.freed(tag, granted);
        self.quota.credit.refund(thread(), granted.get());
        Ok(())
    }
}
