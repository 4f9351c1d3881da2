//! The layer that makes pools, and the handle that reads them.

use super::address_space::AddressSpace;
use super::frame_sizes::FrameSizes;
use super::magazine::LONGEST;
use super::runs::UNIT;
use super::thread_cache::PoolNumber;
use super::{PagePoolResource, PoolState, Settings};
use bursar_core::{
    Bytes, DeviceId, DevicePtr, Error, FrameSource, Holder, Layer, LimitName, Member, MemoryUsage, OwnerId, Result,
    Sleeper, is_size,
};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The default pool of a stack: a layer over a frame source, and the handle that reads the pools it made.
///
/// Under it, usually, a budget, so that what the device really holds is limited, cached memory included:
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::memory::{Build, DeviceMemoryResource};
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId, GlobalDeviceBudget, PagePool, Stack, leaf, tag};
///
/// let pool = PagePool::default();
/// let stack = Stack::new().layer(pool.clone()).layer(GlobalDeviceBudget::of(Bytes::gib(8))).over(leaf::Frames);
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let memory = stack.build(&context)?;
/// let stream = context.create_stream(0)?;
///
/// let block = memory.allocate(100 << 20, 256, stream, tag!("weights"))?;
/// memory.deallocate(block, stream)?;
/// assert_eq!(pool.readings()[0].cached, Bytes::mib(100));
/// assert_eq!(pool.trim(Bytes::ZERO), Bytes::mib(100));
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PagePool {
    largest_frame: Bytes,
    magazine: Bytes,
    /// The one size of all blocks; `None` where there are all sizes.
    fixed: Option<Bytes>,
    patience: Duration,
    wait_before_growing: bool,
    built: Arc<Mutex<Vec<Weak<dyn BuiltPool>>>>,
}

impl Default for PagePool {
    fn default() -> Self {
        Self {
            largest_frame: Bytes::mib(64),
            magazine: Bytes::mib(1),
            fixed: None,
            patience: Duration::from_secs(1),
            wait_before_growing: false,
            built: Arc::default(),
        }
    }
}

impl PagePool {
    /// Sets the largest frame that is made, 64 MiB by default and never less than the device's pages. A frame moves
    /// whole, and a driver call costs by the frame: large ones make large blocks cheap.
    #[must_use]
    pub const fn largest_frame(mut self, bytes: Bytes) -> Self {
        self.largest_frame = bytes;
        self
    }

    /// Sets how much one thread may keep ready for one stream, 1 MiB by default; blocks of up to a sixteenth of it are
    /// kept. Zero keeps none.
    #[must_use]
    pub const fn magazine(mut self, bytes: Bytes) -> Self {
        self.magazine = bytes;
        self
    }

    /// Makes pools of blocks of one size, for those who know theirs: whatever is asked for, up to `bytes`, is granted
    /// as much. All free memory is then as good as any other, so nothing is ever in pieces, and every block fits every
    /// request. A size that no block can have is refused when the pool is made.
    ///
    /// ```
    /// use bursar::device::DeviceContext;
    /// use bursar::memory::{Build, DeviceMemoryResource};
    /// use bursar::sim::Sim;
    /// use bursar::{Bytes, DeviceId, PagePool, Stack, leaf, tag};
    ///
    /// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    /// let memory = Stack::new().layer(PagePool::fixed(Bytes::kib(64))).over(leaf::Frames).build(&context)?;
    /// assert_eq!(memory.granted_size(1, 256)?, Bytes::kib(64));
    /// assert!(memory.granted_size(65 << 10, 256).is_err());
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn fixed(bytes: Bytes) -> Self {
        Self { fixed: Some(bytes), ..Self::default() }
    }

    /// Sets how long a request waits for frees that have not run before it fails for want of memory, one second by
    /// default.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Has a stream wait for another's work before the pool grows, for those who would rather hold less than run streams
    /// apart. Without it a stream gets memory that another has not finished with only where its request would be refused
    /// otherwise.
    ///
    /// ```
    /// use bursar::device::DeviceContext;
    /// use bursar::memory::{Build, DeviceMemoryResource};
    /// use bursar::sim::Sim;
    /// use bursar::{Bytes, DeviceId, PagePool, Stack, leaf, tag};
    ///
    /// let context = DeviceContext::open(Sim::seeded(1), DeviceId(0))?;
    /// let pool = PagePool::default().wait_before_growing();
    /// let memory = Stack::new().layer(pool.clone()).over(leaf::Frames).build(&context)?;
    /// let (copies, kernels) = (context.create_stream(0)?, context.create_stream(0)?);
    ///
    /// let block = memory.allocate(64 << 20, 256, copies, tag!("batch"))?;
    /// memory.deallocate(block, copies)?;
    /// let block = memory.allocate(64 << 20, 256, kernels, tag!("batch"))?;
    /// assert_eq!(pool.readings()[0].held, Bytes::mib(64));
    /// memory.deallocate(block, kernels)?;
    /// # Ok::<(), bursar::Error>(())
    /// ```
    #[must_use]
    pub const fn wait_before_growing(mut self) -> Self {
        self.wait_before_growing = true;
        self
    }

    /// Returns a reading of each pool that is alive.
    pub fn readings(&self) -> Vec<PoolReading> {
        self.living().iter().map(|pool| pool.read()).collect()
    }

    /// Returns the ranges of addresses at which the pools that are alive have memory, in order: for pictures of what lies
    /// where. Blocks lie inside them.
    ///
    /// ```
    /// use bursar::device::DeviceContext;
    /// use bursar::memory::{Build, DeviceMemoryResource};
    /// use bursar::sim::Sim;
    /// use bursar::{DeviceId, PagePool, Stack, leaf, tag};
    ///
    /// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    /// let pool = PagePool::default();
    /// let memory = Stack::new().layer(pool.clone()).over(leaf::Frames).build(&context)?;
    /// let block = memory.allocate(5 << 20, 256, context.default_stream(), tag!("batch"))?;
    /// let ranges = pool.ranges();
    /// assert!(ranges.iter().any(|range| range.contains(&block.ptr())));
    /// assert_eq!(ranges.iter().map(|range| range.end.0 - range.start.0).sum::<u64>(), pool.readings()[0].held.get());
    /// # memory.deallocate(block, context.default_stream())?;
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn ranges(&self) -> Vec<Range<DevicePtr>> {
        let mut ranges: Vec<_> = self.living().iter().flat_map(|pool| pool.ranges()).collect();
        ranges.sort_by_key(|range| range.start);
        ranges
    }

    /// Has each pool give back whole free frames until no more than `keep` is cached; returns how much went.
    pub fn trim(&self, keep: Bytes) -> Bytes {
        self.living().iter().fold(Bytes::ZERO, |sum, pool| sum.saturating_add(pool.trim_to(keep)))
    }

    /// Has each pool give everything back, its addresses too, for those who keep a pool that they do not need any more; returns
    /// whether all did. A pool with blocks, or one that another thread is growing, keeps its addresses; one without refuses
    /// every later request.
    ///
    /// ```
    /// use bursar::device::DeviceContext;
    /// use bursar::memory::{Build, DeviceMemoryResource};
    /// use bursar::sim::Sim;
    /// use bursar::{DeviceId, PagePool, Stack, leaf, tag};
    ///
    /// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    /// let (pool, stream) = (PagePool::default(), context.default_stream());
    /// let memory = Stack::new().layer(pool.clone()).over(leaf::Frames).build(&context)?;
    /// let block = memory.allocate(5 << 20, 256, stream, tag!("batch"))?;
    /// assert!(!pool.retire(), "it has a block");
    /// memory.deallocate(block, stream)?;
    /// assert!(pool.retire());
    /// assert!(memory.allocate(5 << 20, 256, stream, tag!("batch")).is_err());
    /// # Ok::<(), bursar::Error>(())
    /// ```
    pub fn retire(&self) -> bool {
        self.living().iter().filter(|pool| !pool.retire()).count() == 0
    }

    fn living(&self) -> Vec<Arc<dyn BuiltPool>> {
        let built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        built.iter().filter_map(Weak::upgrade).collect()
    }
}

/// A reading of one pool at a moment.
///
/// ```
/// use bursar::memory::PoolReading;
/// use bursar::{Bytes, DeviceId};
///
/// let reading = PoolReading { held: Bytes::mib(4), live: Bytes::mib(1), ..PoolReading::default() };
/// assert!(reading.live < reading.held);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolReading {
    /// The device whose memory it is.
    pub device: DeviceId,
    /// The bytes that it holds of the device.
    pub held: Bytes,
    /// The bytes that users hold of it.
    pub live: Bytes,
    /// The bytes that nobody uses.
    pub cached: Bytes,
    /// The part of those that is not known to be free for every stream: freed and not known to be done with, or kept by a stream or a
    /// thread for its next requests.
    pub pending: Bytes,
    /// The most that lies free in one piece.
    pub largest_free_run: Bytes,
}

/// A pool over any frame source, for the handle.
trait BuiltPool: fmt::Debug + Send + Sync {
    fn read(&self) -> PoolReading;
    fn ranges(&self) -> Vec<Range<DevicePtr>>;
    fn trim_to(&self, keep: Bytes) -> Bytes;
    fn retire(&self) -> bool;
}

impl<F: FrameSource> BuiltPool for PagePoolResource<F> {
    fn read(&self) -> PoolReading {
        let (device, live) = (self.context.device(), self.bytes_outstanding());
        let MemoryUsage { held, cached, pending, largest_free_run, .. } = self.state.memory_usage();
        PoolReading { device, held, live, cached, pending, largest_free_run: largest_free_run.unwrap_or_default() }
    }

    fn ranges(&self) -> Vec<Range<DevicePtr>> {
        let in_bytes = |range: Range<u64>| DevicePtr(range.start * UNIT)..DevicePtr(range.end * UNIT);
        self.state.lists().space.ranges().into_iter().map(in_bytes).collect()
    }

    fn trim_to(&self, keep: Bytes) -> Bytes {
        self.trim(keep)
    }

    fn retire(&self) -> bool {
        self.abandon_asleep();
        self.trim(Bytes::ZERO);
        let is_retired = self.give_addresses_back();
        if is_retired {
            self.context.leave_sleeper(self);
        }
        is_retired
    }
}

/// The number of times that a device's memory goes into the pool's addresses; they cost nothing, and room between
/// frames is what blocks grow into.
pub(super) const ADDRESSES: u64 = 16;

/// The size up to which a pool is small: pages are few enough then that one stream can have them moved one by one.
const SMALL_POOL: u64 = 3 << 30;

impl<F: FrameSource> Layer<F> for PagePool {
    type Output = Arc<PagePoolResource<F>>;

    fn layer(&self, source: F) -> Result<Arc<PagePoolResource<F>>> {
        let fixed = self.fixed.map_or(Ok(0), fixed_units)?;
        let granule = source.frame_granularity().get() / UNIT;
        let largest = (self.largest_frame.get() / UNIT / granule * granule).max(granule);
        let addresses = reserve(&source, granule)?;
        let magazine = self.magazine.get() / UNIT;
        let longest_cached = if fixed == 0 { magazine / 16 } else { fixed }.min(LONGEST).min(magazine);
        let longest_cached_bytes = longest_cached * UNIT;
        let longest_exact_bytes = if fixed == 0 { longest_cached_bytes } else { 0 };
        let Self { patience, wait_before_growing, .. } = *self;
        let settings = Settings {
            fixed,
            longest_cached,
            longest_cached_bytes,
            longest_exact_bytes,
            patience,
            wait_before_growing,
        };
        let sizes = FrameSizes { page: granule, largest, small_pool: SMALL_POOL / UNIT };
        let space = AddressSpace::new(addresses.clone(), sizes);
        let context = source.context().clone();
        let (owner, state) = (OwnerId::unique(), PoolState::new(space, magazine, &context));
        let (number, name) = (PoolNumber::of(owner), LimitName::unnamed("pool"));
        let pool = Arc::new(PagePoolResource {
            source,
            context,
            owner,
            number,
            name,
            settings,
            addresses,
            state,
            is_retired: AtomicBool::new(false),
        });
        let member: Weak<dyn Member> = Arc::downgrade(&pool) as Weak<dyn Member>;
        pool.context.join(member);
        let sleeper: Weak<dyn Sleeper> = Arc::downgrade(&pool) as Weak<dyn Sleeper>;
        pool.context.join_sleeper(sleeper);
        let built_pool: Weak<dyn BuiltPool> = Arc::downgrade(&pool) as Weak<dyn BuiltPool>;
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        built.retain(|pool| pool.strong_count() > 0);
        built.push(built_pool);
        Ok(pool)
    }
}

/// Returns the length of blocks of one size, in units.
fn fixed_units(bytes: Bytes) -> Result<u64> {
    match is_size(bytes.get()) {
        true => Ok(bytes.get().div_ceil(UNIT)),
        false => Err(Error::InvalidSize { requested: bytes.get() }),
    }
}

/// Reserves the pool's addresses, in units: as many as the driver gives, down to what the device has. Where it gives
/// none, those of pools that are gone may have been left behind.
fn reserve(source: &impl FrameSource, granule: u64) -> Result<Range<u64>> {
    let context = source.context();
    if context.facts().capabilities.page_granularity.is_none() {
        return Ok(0..0);
    }
    let total = context.driver().memory(context.device()).map_err(|error| context.failed(error))?.total.get();
    let least = total.next_multiple_of(granule * UNIT);
    let (mut bytes, mut is_trimmed) = (least.saturating_mul(ADDRESSES), false);
    loop {
        match context.driver().address_reserve(context.device(), bytes, 0) {
            Ok(ptr) => return Ok(ptr.0 / UNIT..(ptr.0 + bytes) / UNIT),
            Err(error) if bytes == least && is_trimmed => return Err(context.failed(error)),
            Err(_) if bytes == least => {
                context.trim();
                is_trimmed = true;
            }
            Err(_) => bytes = (bytes / 2).next_multiple_of(granule * UNIT).max(least),
        }
    }
}
