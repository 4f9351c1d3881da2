//! The pools of a device that can sleep, and the ranges that are asleep.
//!
//! Memory sleeps when its frames are given back while its addresses stay. Who uses a block by declaring the use is
//! refused meanwhile: the ranges that sleep are entered here, and looked up where a use begins, at the price of one load
//! while nothing sleeps.

mod asked;
mod request;

pub use request::{BlocksOf, SleepDecision, SleepRequest, SleepRequestId, TagRecord, TaggedBlocks, WakeRequest};

use super::DeviceContext;
use crate::{Bytes, DevicePtr, Error, HostMemory, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A lender of host memory, which the contents of device memory go to while it sleeps.
///
/// ```
/// use bursar::Result;
/// use bursar::memory::{HostMemory, HostStore};
///
/// /// Memory that is not pinned: it does, and copies take several times as long.
/// #[derive(Debug)]
/// struct Heap;
///
/// impl HostStore for Heap {
///     fn lend(&self, bytes: usize) -> Result<Box<dyn HostMemory>> {
///         Ok(Box::new(vec![0u8; bytes]))
///     }
/// }
/// ```
pub trait HostStore: fmt::Debug + Send + Sync {
    /// Lends `bytes` of host memory, waiting for it where it has to be made. It goes back when it is dropped. Called from
    /// a thread of its own while earlier pieces are being filled.
    fn lend(&self, bytes: usize) -> Result<Box<dyn HostMemory>>;
}

/// The result of falling asleep.
///
/// ```
/// use bursar::Bytes;
/// use bursar::memory::SleepReport;
///
/// let report = SleepReport { released: Bytes::gib(2), saved: Bytes::gib(1), ..SleepReport::default() };
/// assert!(report.released > report.saved, "what was free or given up needs no copy");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SleepReport {
    /// The device memory that went back to the driver.
    pub released: Bytes,
    /// The contents that were copied to the host.
    pub saved: Bytes,
    /// The contents that were given up.
    pub discarded: Bytes,
    /// The part of what was to sleep that stays on the device, because it shares frames with memory that is awake, or because the
    /// driver did not take it back.
    pub kept: Bytes,
    /// The time that it took to come to rest: uses and streams were waited for.
    pub waited: Duration,
    /// The time that it took in all.
    pub elapsed: Duration,
}

impl SleepReport {
    /// Returns the sum of two reports.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            released: self.released.saturating_add(other.released),
            saved: self.saved.saturating_add(other.saved),
            discarded: self.discarded.saturating_add(other.discarded),
            kept: self.kept.saturating_add(other.kept),
            waited: self.waited + other.waited,
            elapsed: self.elapsed + other.elapsed,
        }
    }
}

/// The result of waking.
///
/// ```
/// use bursar::memory::WakeReport;
///
/// assert_eq!(WakeReport::default().taken, bursar::Bytes::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeReport {
    /// The device memory that was taken from the driver again.
    pub taken: Bytes,
    /// The contents that were copied back.
    pub restored: Bytes,
    /// The time that it took in all.
    pub elapsed: Duration,
}

impl WakeReport {
    /// Returns the sum of two reports.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            taken: self.taken.saturating_add(other.taken),
            restored: self.restored.saturating_add(other.restored),
            elapsed: self.elapsed + other.elapsed,
        }
    }
}

/// The state of memory that can sleep.
///
/// ```
/// use bursar::memory::SleepState;
///
/// assert_eq!(SleepState::default().to_string(), "awake");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SleepState {
    /// In use as usual.
    #[default]
    Awake,
    /// The blocks of some tags are asleep.
    Partly,
    /// Between the two.
    Moving,
    /// All of it is asleep.
    Asleep,
}

impl fmt::Display for SleepState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Awake => "awake",
            Self::Partly => "partly asleep",
            Self::Moving => "falling asleep or waking",
            Self::Asleep => "asleep",
        })
    }
}

/// A reading of memory that can sleep.
///
/// ```
/// use bursar::memory::SleepReading;
///
/// assert_eq!(SleepReading::default().asleep, bursar::Bytes::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SleepReading {
    /// The state.
    pub state: SleepState,
    /// The device memory that waking takes: that of the pages which blocks are in, less with each that is freed meanwhile.
    pub asleep: Bytes,
    /// The host memory that contents lie in.
    pub on_host: Bytes,
}

impl SleepReading {
    /// Returns the reading of this and of other memory together: asleep only if both are.
    ///
    /// ```
    /// use bursar::Bytes;
    /// use bursar::memory::{SleepReading, SleepState};
    ///
    /// let asleep = SleepReading { state: SleepState::Asleep, asleep: Bytes::gib(1), ..SleepReading::default() };
    /// assert_eq!(asleep.and(asleep).asleep, Bytes::gib(2));
    /// assert_eq!(asleep.and(SleepReading::default()).state, SleepState::Partly);
    /// ```
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let state = match (self.state, other.state) {
            (one, same) if one == same => one,
            (SleepState::Moving, _) | (_, SleepState::Moving) => SleepState::Moving,
            _ => SleepState::Partly,
        };
        let (asleep, on_host) = (self.asleep.saturating_add(other.asleep), self.on_host.saturating_add(other.on_host));
        Self { state, asleep, on_host }
    }
}

/// Memory of a device that can sleep, as a pool is.
///
/// ```
/// # use bursar::prelude::*;
/// fn bytes_asleep(context: &DeviceContext) -> Bytes {
///     let asleep = context.sleepers().into_iter().map(|sleeper| sleeper.sleep_reading().asleep);
///     asleep.fold(Bytes::ZERO, Bytes::saturating_add)
/// }
/// ```
pub trait Sleeper: fmt::Debug + Send + Sync {
    /// Waits until nothing is in use, has the contents of what sleeps copied to memory of `store` unless they are given up, and
    /// gives the device memory back of all frames that nothing is awake in. Addresses stay.
    ///
    /// After an error it is awake or asleep as it was, with all contents, or, where the driver let neither be completed, asleep:
    /// the [reading](Self::sleep_reading) says which.
    fn sleep(&self, store: &dyn HostStore, request: &SleepRequest) -> Result<SleepReport>;

    /// Takes device memory again and copies contents back, to the same addresses. After an error all that was meant sleeps as it
    /// did; but where tags slept by themselves before all of it did, that may be the tags alone.
    fn wake(&self, request: &WakeRequest) -> Result<WakeReport>;

    /// Wakes what [`sleep`](Self::sleep) put to sleep by a request of this identity, and gives up the places that it took: for
    /// one who puts several sleepers to sleep, of which a later one is refused. What others put to sleep before or since
    /// sleeps on; contents that the request gave up are gone.
    fn undo_sleep(&self, request: &SleepRequest) -> Result<WakeReport>;

    /// Returns whether it sleeps, and how much of it.
    fn sleep_reading(&self) -> SleepReading;
}

/// The identity of ranges that were [put to sleep](DeviceContext::begin_sleep).
///
/// ```
/// # use bursar::memory::{AsleepId, DevicePtr};
/// # use bursar::prelude::*;
/// # fn show(context: &DeviceContext) {
/// let id: AsleepId = context.begin_sleep(&[DevicePtr(4096)..DevicePtr(8192)]);
/// assert!(context.check_awake(DevicePtr(5000)).is_err());
/// context.end_sleep(id);
/// # }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the ranges sleep until they are woken by it"]
pub struct AsleepId(u64);

/// The sleepers of one context.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    all: Mutex<Vec<Weak<dyn Sleeper>>>,
    /// The number of sets of ranges that sleep.
    count: AtomicUsize,
    ranges: Mutex<AsleepRanges>,
    /// The requests by which memory sleeps because others asked for it, the last one last.
    asked: Mutex<Vec<SleepRequestId>>,
    /// The number of uses that end before the call that makes them returns.
    uses: AtomicUsize,
}

/// A use of blocks that are awake, which is over when this is dropped.
#[derive(Debug)]
pub(crate) struct AwakeUse<'a>(&'a AtomicUsize);

impl Drop for AwakeUse<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// The ranges that sleep: by their identity, from the first address to the one after the last.
#[derive(Debug, Default)]
struct AsleepRanges {
    last: u64,
    sets: Vec<(u64, BTreeMap<u64, u64>)>,
}

impl Sleepers {
    fn ranges(&self) -> MutexGuard<'_, AsleepRanges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceContext {
    /// Has `sleeper` be among those that sleep with the device, for as long as it lives.
    pub fn join_sleeper(&self, sleeper: Weak<dyn Sleeper>) {
        let mut all = self.sleepers.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|sleeper| sleeper.strong_count() > 0);
        all.push(sleeper);
    }

    /// Has a sleeper no more be among them: it is never used again, though it may live on.
    pub fn leave_sleeper(&self, sleeper: &dyn Sleeper) {
        let mut all = self.sleepers.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0 && !std::ptr::addr_eq(other.as_ptr(), sleeper));
    }

    /// Returns the memory of the device that can sleep.
    pub fn sleepers(&self) -> Vec<Arc<dyn Sleeper>> {
        let all = self.sleepers.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Puts the memory of the device that can sleep to sleep, as a request says: all that it means or, after an error, nothing;
    /// but where there are several sleepers, those before the one that was refused may have given up the contents that they were to.
    ///
    /// ```
    /// # use bursar::Result;
    /// # use bursar::memory::{HostStore, SleepReport, SleepRequest};
    /// # use bursar::prelude::*;
    /// fn sleep_all(context: &DeviceContext, store: &dyn HostStore) -> Result<SleepReport> {
    ///     context.sleep(store, &SleepRequest::default())
    /// }
    /// ```
    pub fn sleep(&self, store: &dyn HostStore, request: &SleepRequest) -> Result<SleepReport> {
        let (mut report, sleepers) = (SleepReport::default(), self.sleepers());
        for (nth, sleeper) in sleepers.iter().enumerate() {
            match sleeper.sleep(store, request) {
                Ok(slept) => report = report.and(slept),
                Err(error) => {
                    // The first failure is the cause; what cannot be woken says so by its reading.
                    sleepers[..nth].iter().for_each(|sleeper| drop(sleeper.undo_sleep(request)));
                    return Err(error);
                }
            }
        }
        Ok(report)
    }

    /// Wakes the memory of the device that sleeps, as a request says. After an error what it means sleeps on; where there are several
    /// sleepers, those before the one that was refused are awake.
    pub fn wake(&self, request: &WakeRequest) -> Result<WakeReport> {
        let sleepers = self.sleepers().into_iter();
        sleepers.map(|sleeper| sleeper.wake(request)).try_fold(WakeReport::default(), |sum, woken| Ok(sum.and(woken?)))
    }

    /// Undoes a [`sleep`](Self::sleep) of the device's memory by this request, which met no error: for one who puts several
    /// devices to sleep, of which a later one is refused. What cannot be woken says so by its reading.
    pub fn undo_sleep(&self, request: &SleepRequest) {
        self.sleepers().iter().for_each(|sleeper| drop(sleeper.undo_sleep(request)));
    }

    /// Refuses uses of blocks in these ranges that are declared from now on.
    pub fn begin_sleep(&self, ranges: &[Range<DevicePtr>]) -> AsleepId {
        let mut all = self.sleepers.ranges();
        all.last += 1;
        let id = all.last;
        all.sets.push((id, ranges.iter().map(|range| (range.start.0, range.end.0)).collect()));
        self.sleepers.count.store(all.sets.len(), SeqCst);
        AsleepId(id)
    }

    /// Allows uses of blocks again that [`begin_sleep`](Self::begin_sleep) has refused since.
    pub fn end_sleep(&self, AsleepId(id): AsleepId) {
        let mut all = self.sleepers.ranges();
        all.sets.retain(|&(of, _)| of != id);
        self.sleepers.count.store(all.sets.len(), SeqCst);
    }

    /// Takes a range that nobody has a block in any more out of everything that sleeps: what is mapped there next is awake.
    pub fn abandon_asleep(&self, range: &Range<DevicePtr>) {
        for (_, ranges) in &mut self.sleepers.ranges().sets {
            cut(ranges, range.start.0..range.end.0);
        }
    }

    /// Returns whether any memory of the device sleeps or is about to, at the price of one load.
    ///
    /// ```
    /// # use bursar::prelude::*;
    /// # fn show(context: &DeviceContext) {
    /// let may_launch = !context.has_asleep();
    /// # }
    /// ```
    #[inline]
    pub fn has_asleep(&self) -> bool {
        self.sleepers.count.load(SeqCst) > 0
    }

    /// Refuses an address that lies in a range which sleeps, at the price of one load where none does.
    #[inline]
    pub fn check_awake(&self, ptr: DevicePtr) -> Result<()> {
        if self.has_asleep() { self.look_up_asleep(ptr, 1) } else { Ok(()) }
    }

    /// Begins a use of blocks that are awake; whoever falls asleep waits until it is over.
    pub(super) fn use_awake<const N: usize>(&self, blocks: [DevicePtr; N]) -> Result<AwakeUse<'_>> {
        self.use_awake_ranges(blocks.map(|block| (block, 1)))
    }

    /// Begins a use of ranges that are awake, each an address and a length; whoever falls asleep waits until it is over.
    pub(crate) fn use_awake_ranges(&self, ranges: impl IntoIterator<Item = (DevicePtr, u64)>) -> Result<AwakeUse<'_>> {
        // Counted before it looks, as whoever falls asleep says so before it counts: one of the two sees the other.
        self.sleepers.uses.fetch_add(1, SeqCst);
        let using = AwakeUse(&self.sleepers.uses);
        if self.has_asleep() {
            ranges.into_iter().try_for_each(|(ptr, bytes)| self.look_up_asleep(ptr, bytes))?;
        }
        Ok(using)
    }

    /// Returns whether no such use is under way.
    pub(super) fn has_no_awake_uses(&self) -> bool {
        self.sleepers.uses.load(SeqCst) == 0
    }

    #[cold]
    fn look_up_asleep(&self, DevicePtr(at): DevicePtr, bytes: u64) -> Result<()> {
        let end = at.saturating_add(bytes.max(1));
        let overlaps = |ranges: &BTreeMap<u64, u64>| ranges.range(..end).next_back().is_some_and(|(_, &end)| at < end);
        match self.sleepers.ranges().sets.iter().any(|(_, ranges)| overlaps(ranges)) {
            true => Err(Error::Asleep { device: self.device, what: "a block", is_moving: false }),
            false => Ok(()),
        }
    }
}

/// Takes a range out of ranges that do not overlap.
fn cut(ranges: &mut BTreeMap<u64, u64>, cut: Range<u64>) {
    let overlapping = ranges.range(..cut.end).rev().take_while(|&(_, &end)| cut.start < end);
    for (start, end) in overlapping.map(|(&start, &end)| (start, end)).collect::<Vec<_>>() {
        ranges.remove(&start);
        let left = [(start, cut.start), (cut.end, end)].into_iter().filter(|(start, end)| start < end);
        ranges.extend(left);
    }
}
