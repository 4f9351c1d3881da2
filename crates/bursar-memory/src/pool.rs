//! The pool: blocks in nanoseconds, out of memory that does not fragment.
//!
//! # Bird's eye
//!
//! ```text
//!  allocate.rs  the ladder of a request          free.rs  the way back of a block
//!        │                                          │
//!  thread_cache.rs, magazine.rs    blocks that a thread freed a moment ago: no lock, no driver call
//!        │
//!  free_lists.rs, lane.rs, runs.rs free memory by stream, and what every stream may have: one short lock
//!  limbo.rs                        what was freed on another stream than its own, until one of the two has passed that
//!  asleep.rs                       what sleeps of all that, and what is freed of it meanwhile
//!        │
//!  cross_stream.rs                 how far other streams are, and waits for them     ┐ driver calls,
//!  growth.rs, growth_plan.rs       frames moved and made where memory is needed      │ nothing locked
//!  release.rs                      frames given back: trims, and the end of a pool   │
//!  sleep.rs, contents.rs           frames given back while their addresses stay      ┘
//!        │
//!  address_space.rs                one long range of addresses, with frames mapped where they are needed
//!  frame_sizes.rs                  how long frames are made, and how they are split
//!  driver_calls.rs                 the only unsafe calls of the driver
//! ```
//!
//! To change what a request tries, and in which order, start at `allocate.rs`. [`PagePool`] in `layer.rs` makes the
//! pool and holds its settings.
//!
//! # Locking
//! There is one lock, on the [`FreeLists`], and **nothing is locked across a driver call**. What has to be asked or
//! done is planned with the lists locked, carried out with nothing locked, and entered afterwards. What is taken out
//! meanwhile is in no list; it counts as *in flight*, and a request that would be refused waits for it: a refusal
//! counts only if it began with nothing in flight. Taking and planning to grow are one step, so that what others free
//! in between is found and not mapped again. Magazines are drained with the lists locked, so that no stream ends
//! between a block's leaving a magazine and its reaching a lane.
//!
//! The lock is a [`Latch`] and not a mutex, since most blocks of real programs are too large for a magazine and take
//! it.
//!
//! # Words
//! - *unit*: 256 bytes, in which addresses and lengths are counted here;
//! - *run*: a free stretch of memory, the only record there is: a block in use has none, because its token says
//!   everything;
//! - *extent*: a stretch of memory that is in no run: `at` and `len`;
//! - *lane*: the runs that were freed on one stream and that its work may still touch;
//! - *common* runs: those that every stream may have. They are granted first, and a stream's own only if no
//!   common run fits;
//! - *limbo*: memory freed on another stream than its own, while neither is known to have passed the free;
//! - *stamp*: the time of a lane at which a run was freed; it moves on with each question to the driver;
//! - *magazine*: a thread's blocks of one stream, ready to be had again; a *recent* magazine is found without looking
//!   for it;
//! - *frame*: a piece of physical memory, mapped into the addresses of the pool and moved whole;
//! - *following* frame: one that lies free on the stream of a request, and is mapped a second time where it is needed, before
//!   the stream's work has run; the addresses that it left are *vacated* until it has;
//! - *exclusive* frame: one that is longer than blocks share; one block has it whole, or it is split;
//! - *slab*: memory with an address of its own, where a device cannot map frames;
//! - *pending*: free, and not known to be done with by the streams it was freed on;
//! - *unordered*: freed on a stream that the driver could not order after the block's own; free for nobody until it
//!   can;
//! - *slot*: the index of a stream in the table of its device.

mod address_space;
mod allocate;
mod asleep;
mod contents;
mod cross_stream;
mod driver_calls;
mod extent;
mod frame_sizes;
mod free;
mod free_lists;
mod growth;
mod growth_plan;
mod lane;
mod layer;
mod limbo;
mod magazine;
mod release;
mod runs;
mod sleep;
mod thread_cache;

pub use layer::{PagePool, PoolReading};

use address_space::AddressSpace;
use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DeviceContext, DeviceMemoryResource, DevicePtr, FrameSource, Holder, Latch,
    LatchGuard, LimitName, MIN_ALIGN, Member, MemoryUsage, OwnerId, PoolFigures, RawStream, Refused, Result, Stream,
    Survey, SurveyStep, UsageSource,
};
use free_lists::{FreeLists, StreamEnd};
use runs::UNIT;
use sleep::SleepRecord;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;
use thread_cache::{PoolNumber, ThreadCaches};

/// Stream-ordered memory that is reused before more is taken from the frame source below; [`PagePool`] makes it.
///
/// A block that was freed may be granted again at once on the stream it was freed on. Another stream gets it when the
/// work before the free is known to have run, or, where the pool cannot grow, after a wait that is put into that stream;
/// so nothing is ever touched early, streams stay apart while there is memory, and nobody waits on the host. To those above, what is freed is released at once: see
/// [`bytes_outstanding`](Holder::bytes_outstanding).
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::memory::{Build, DeviceMemoryResource};
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId, GlobalDeviceBudget, PagePool, Stack, leaf, tag};
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let stack = Stack::new().layer(PagePool::default()).layer(GlobalDeviceBudget::of(Bytes::gib(1))).over(leaf::Frames);
/// let memory = stack.build(&context)?;
/// let stream = context.create_stream(0)?;
///
/// let block = memory.allocate(1 << 20, 256, stream, tag!("batch"))?;
/// let address = block.ptr();
/// memory.deallocate(block, stream)?;
/// let again = memory.allocate(1 << 20, 256, stream, tag!("batch"))?;
/// assert_eq!(again.ptr(), address);
/// assert!(memory.inner().held() >= Bytes::mib(1));
/// memory.deallocate(again, stream)?;
/// # Ok::<(), bursar::Error>(())
/// ```
pub struct PagePoolResource<F: FrameSource> {
    source: F,
    context: Arc<DeviceContext>,
    owner: OwnerId,
    /// The owner's number as the keys of recent magazines have it.
    number: PoolNumber,
    /// The name that the way of a request knows it by.
    name: LimitName,
    settings: Settings,
    /// The pool's addresses, in units; empty where the device cannot map.
    addresses: Range<u64>,
    state: Arc<PoolState>,
    /// True once the addresses were given back.
    is_retired: AtomicBool,
}

/// The settings of a [`PagePool`], as its pools use them.
#[derive(Clone, Copy, Debug)]
struct Settings {
    /// The one length of all blocks, in units; zero where there are all lengths.
    fixed: u64,
    /// The longest block that goes into a magazine, in units.
    longest_cached: u64,
    /// That length in bytes.
    longest_cached_bytes: u64,
    /// The same, or zero where all blocks have one length: a request then has to be rounded up to it first.
    longest_exact_bytes: u64,
    /// The time that a request waits for frees that have not run before it fails.
    patience: Duration,
    /// Set where a stream is made to wait for another before the pool grows, and not only where it cannot.
    wait_before_growing: bool,
}

impl<F: FrameSource> PagePoolResource<F> {
    /// Returns what the pool holds of the device.
    pub fn held(&self) -> Bytes {
        Bytes(self.state.lists().space.held() * UNIT)
    }

    /// Returns what the pool holds and nobody uses, whether or not every stream may have it yet.
    pub fn cached(&self) -> Bytes {
        // With the lists locked, so that nothing moves there from a magazine and is counted twice.
        let lists = self.state.lists();
        Bytes((lists.free_units() + self.state.caches.units()) * UNIT)
    }

    /// Returns what is cached and not known to be done with by the streams it was freed on.
    pub fn pending(&self) -> Bytes {
        let lists = self.state.lists();
        Bytes((lists.pending_units() + self.state.caches.units()) * UNIT)
    }

    /// Returns the most that lies free in one piece. More can be granted: frames are moved together where it takes
    /// that.
    pub fn largest_free_run(&self) -> Bytes {
        Bytes(self.state.lists().longest() * UNIT)
    }

    /// Returns the part of the cached memory that does not lie in the largest free run, between 0 and 1.
    pub fn fragmentation(&self) -> f64 {
        let cached = self.cached().get().max(1) as f64;
        (1.0 - self.largest_free_run().get() as f64 / cached).clamp(0.0, 1.0)
    }

    /// Gives whole free frames back to the driver until no more than `keep` is cached, as far as frames that nobody
    /// uses suffice; returns how much went. It waits for nothing: what is pending stays. Where a device cannot map
    /// frames, the driver itself waits for the device before it takes memory back.
    pub fn trim(&self, keep: Bytes) -> Bytes {
        if self.state.sleep.is_any() {
            self.free_awake_parts(false);
        }
        self.state.drain(None, None);
        if let Err(error) = self.state.ask_all(&self.context) {
            self.context.fault().record(error);
        }
        let release = |frame| self.source.release_frame(frame);
        self.state.release_frames(&self.context, keep.get().div_ceil(UNIT), &release)
    }

    /// Makes sure that `bytes` can be granted in one piece on `stream` without asking the driver for memory.
    pub fn prime(&self, bytes: Bytes, stream: Stream) -> Result<()> {
        let block = self.allocate(bytes.get(), MIN_ALIGN, stream, AllocTag::UNTAGGED)?;
        Ok(self.deallocate(block, stream)?)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<F: FrameSource> Holder for PagePoolResource<F> {
    #[inline]
    fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }

    /// Returns what users hold. What they freed is the pool's again, which sees to it that nobody gets it early.
    fn bytes_outstanding(&self) -> Bytes {
        Bytes(self.state.caches.outstanding())
    }

    fn released_total(&self) -> u64 {
        self.state.caches.released_total()
    }

    /// Finds out what every stream may have by now. It returns zero bytes: to users, memory was
    /// released when they freed it.
    fn reap(&self) -> Result<Bytes> {
        let (context, state) = (&self.context, &self.state);
        context.fault().check()?;
        state.drain(None, None);
        let unmap = |()| state.unmap_stuck(context).and_then(|()| state.unmap_vacated(context));
        state.ask_all(context).and_then(unmap).map_err(|error| context.failed(error))?;
        self.source.reap().map(|_| Bytes::ZERO)
    }

    fn reap_blocking(&self, patience: Duration) -> Result<Bytes> {
        self.context.order_ended(patience);
        self.reap()?;
        self.state.wait_for_pending(&self.context, patience)?;
        self.source.reap_blocking(patience).map(|_| Bytes::ZERO)
    }

    fn survey(&self, survey: &mut Survey) {
        if survey.wants_figures() {
            self.state.drain(None, None);
            if let Err(error) = self.state.ask_all(&self.context) {
                self.context.fault().record(error);
            }
        }
        let mut figures = self.state.figures(&self.name, self.bytes_outstanding());
        figures.moves_frames = !self.addresses.is_empty();
        figures.waits = self.settings.patience > Duration::ZERO;
        survey.add(SurveyStep::Pool(figures));
        self.source.survey(survey);
    }
}

#[deny(clippy::missing_trait_methods)]
impl<F: FrameSource> DeviceMemoryResource for PagePoolResource<F> {
    fn granted_size(&self, bytes: u64, align: u64) -> Result<Bytes> {
        self.settings.units(bytes, align).map(|(len, _)| Bytes(len * UNIT))
    }

    #[inline(always)]
    fn allocate(&self, bytes: u64, align: u64, stream: Stream, tag: AllocTag) -> Result<DeviceBlock> {
        self.allocate_cached(bytes, align, stream, tag)
    }

    #[inline(always)]
    fn deallocate(&self, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
        self.free_cached(block, stream)
    }

    /// Blocks may be used on several streams: a free is ordered after whatever its stream was made to wait for.
    fn tracks_use(&self) -> bool {
        true
    }
}

impl<F: FrameSource> Member for PagePoolResource<F> {
    fn trim(&self) -> Bytes {
        PagePoolResource::trim(self, Bytes::ZERO)
    }

    /// Returns nothing: the pool's state is a member too, and reports for both.
    fn usage(&self) -> MemoryUsage {
        MemoryUsage::default()
    }

    /// Returns nothing: the pool's state is asked.
    fn spare(&self) -> Bytes {
        Bytes::ZERO
    }

    /// Does nothing: the pool's state is told.
    fn stream_ends(&self, _: Stream, _: RawStream) {}

    /// Does nothing: no contents are the pool's.
    fn contents_given_up(&self, _: &[Range<DevicePtr>]) {}
}

impl<F: FrameSource> fmt::Debug for PagePoolResource<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagePoolResource")
            .field("device", &self.context.device())
            .field("held", &self.held())
            .field("cached", &self.cached())
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// The state of a pool that it shares with the threads that use it: their caches, and the free lists.
///
/// It outlives the pool while the driver has not got everything back, and hears of streams that end until then. A
/// thread that ends gives its cache back to the state and never owns the pool.
struct PoolState {
    caches: ThreadCaches,
    lists: Latch<FreeLists>,
    sleep: SleepRecord,
    context: Weak<DeviceContext>,
}

impl PoolState {
    /// Makes the state of an empty pool and joins it to the context; a magazine holds at most `magazine` units.
    fn new(space: AddressSpace, magazine: u64, context: &Arc<DeviceContext>) -> Arc<Self> {
        let (caches, lists) = (ThreadCaches::new(magazine), Latch::new(FreeLists::new(space)));
        let state = Arc::new(Self { caches, lists, sleep: SleepRecord::default(), context: Arc::downgrade(context) });
        let member: Weak<Self> = Arc::downgrade(&state);
        context.join(member);
        let source: Weak<Self> = Arc::downgrade(&state);
        context.join_usage(source);
        state
    }

    /// Returns how much the pool holds, and how.
    fn memory_usage(&self) -> MemoryUsage {
        let lists = self.lists();
        let in_caches = self.caches.units();
        let bytes = |units: u64| Bytes(units * UNIT);
        MemoryUsage {
            held: bytes(lists.space.held()),
            cached: bytes(lists.free_units() + in_caches),
            pending: bytes(lists.pending_units() + in_caches),
            largest_free_run: Some(bytes(lists.longest())),
            peak: Some(bytes(lists.space.most_held())),
        }
    }

    /// Returns how the pool stands, with `live` bytes in blocks, and whether it can move frames.
    fn figures(&self, name: &LimitName, live: Bytes) -> PoolFigures {
        let (mut figures, lists) = (PoolFigures::new(name.clone(), self.memory_usage(), live), self.lists());
        figures.longest_common_run = Bytes(lists.common.longest() * UNIT);
        figures.whole_frames = Bytes(lists.units_in_whole_frames() * UNIT);
        figures.stuck = Bytes(lists.space.stuck() * UNIT);
        figures.granule = Bytes(lists.space.granule() * UNIT);
        figures.largest_frame = Bytes(lists.space.largest_placed() * UNIT);
        figures
    }

    /// Locks the free lists.
    #[inline(always)]
    fn lists(&self) -> LatchGuard<'_, FreeLists> {
        self.lists.lock()
    }
}

impl UsageSource for PoolState {
    fn usage(&self) -> MemoryUsage {
        self.memory_usage()
    }
}

impl Member for PoolState {
    /// Returns nothing: the pool itself is asked, or what remains of it.
    fn trim(&self) -> Bytes {
        Bytes::ZERO
    }

    fn usage(&self) -> MemoryUsage {
        self.memory_usage()
    }

    /// Returns the bytes of whole frames. A page that a block shares, or that something in a thread's magazine does, is not spare.
    fn spare(&self) -> Bytes {
        Bytes(self.lists().units_in_whole_frames() * UNIT)
    }

    fn stream_ends(&self, stream: Stream, _: RawStream) {
        let Some(context) = self.context.upgrade() else { return };
        self.drain(None, Some(stream.slot()));
        let end = match (context.order_error(stream), context.heir()) {
            (Some(_), _) => StreamEnd::Unordered(stream),
            (None, Ok(heir)) => StreamEnd::InheritedBy(heir),
            // It was waited for.
            (None, Err(_)) => StreamEnd::Complete,
        };
        let events = self.lists().end_lane(stream.slot(), end);
        events.into_iter().for_each(|mut events| events.forget(&context));
    }

    /// Does nothing: no contents are its own.
    fn contents_given_up(&self, _: &[Range<DevicePtr>]) {}
}

impl fmt::Debug for PoolState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryUsage { held, cached, .. } = self.memory_usage();
        f.debug_struct("PoolState").field("held", &held).field("cached", &cached).finish_non_exhaustive()
    }
}
