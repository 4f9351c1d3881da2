//! The memory of a pool that sleeps, in two lists: *ranges*, whose uses are refused, each of a tag or of all of the pool; and *frames*,
//! whose memory is away, with their contents.
//!
//! Frames fall asleep once nothing in them is awake, so those of one request may have blocks of several tags, also of such as
//! slept before. They are kept in *sets* that the same ranges have a part of: a tag wakes with all sets that have blocks of it,
//! and ranges wake once no set has a part of them.

use super::super::contents::Contents;
use super::super::free_lists::FreeLists;
use super::super::runs::{Run, UNIT};
use bursar_core::{AllocTag, AsleepId, Bytes, DeviceContext, Error, Frame, Result, SleepRequestId};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The sleeps of a pool.
#[derive(Debug)]
pub(in super::super) struct SleepRecord {
    /// The process whose memory it is.
    process: u32,
    /// Read on the long path; written with the free lists locked.
    level: AtomicU8,
    /// The grants under way that a driver which listens is told of.
    grants: AtomicUsize,
    asleep: Mutex<SleepLists>,
}

/// A grant that a driver which listens is told of: nothing falls asleep before this is dropped.
#[derive(Debug)]
pub(in super::super) struct NotedGrant<'a>(&'a AtomicUsize);

impl Drop for NotedGrant<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Nothing sleeps; some of it does; all of it does.
const AWAKE: u8 = 0;
const PARTLY: u8 = 1;
const WHOLE: u8 = 2;

impl Default for SleepRecord {
    fn default() -> Self {
        let (level, grants) = (AtomicU8::new(AWAKE), AtomicUsize::new(0));
        Self { process: std::process::id(), level, grants, asleep: Mutex::default() }
    }
}

impl SleepRecord {
    /// Returns whether this process was forked off the one whose memory it is.
    pub(in super::super) fn is_of_parent(&self) -> bool {
        self.process != std::process::id()
    }

    /// Returns whether anything sleeps, or is about to.
    pub(in super::super) fn is_any(&self) -> bool {
        self.level.load(SeqCst) != AWAKE
    }

    /// Refuses a request where all of the pool sleeps, or is about to.
    pub(in super::super) fn check_awake(&self, context: &DeviceContext) -> Result<()> {
        match self.level.load(SeqCst) {
            WHOLE => Err(Error::Asleep { device: context.device(), what: "the pool", is_moving: false }),
            _ => Ok(()),
        }
    }

    /// Begins a grant, before it is found that the pool is awake: a sleep is said before it waits for those that have begun, so
    /// one of the two sees the other.
    pub(in super::super) fn begin_grant(&self) -> NotedGrant<'_> {
        self.grants.fetch_add(1, SeqCst);
        NotedGrant(&self.grants)
    }

    /// Waits for grants that have begun. Those that begin later find that the pool sleeps.
    pub(super) fn wait_for_grants(&self) {
        while self.grants.load(SeqCst) > 0 {
            std::thread::yield_now();
        }
    }

    pub(super) fn asleep(&self) -> MutexGuard<'_, SleepLists> {
        self.asleep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the level up to date.
    pub(super) fn update(&self, lists: &FreeLists) {
        let level = match (lists.asleep.is_whole(), lists.asleep.is_empty()) {
            (true, _) => WHOLE,
            (_, true) => AWAKE,
            _ => PARTLY,
        };
        self.level.store(level, SeqCst);
    }
}

/// The ranges and the frames that sleep, each in the order in which they fell asleep.
#[derive(Debug, Default)]
pub(super) struct SleepLists {
    pub(super) ranges: Vec<SleepingRanges>,
    pub(super) frames: Vec<SleepingFrames>,
    /// The memory that waking takes, and that contents lie in, of frames that are being woken.
    pub(super) waking: (Bytes, Bytes),
}

impl SleepLists {
    /// Returns the device memory that waking takes, and the host memory that contents lie in.
    pub(super) fn needed_and_on_host(&self, lists: &mut FreeLists) -> (Bytes, Bytes) {
        self.frames.iter().fold(self.waking, |(needed, on_host), set| {
            (needed.saturating_add(set.needed(lists)), on_host.saturating_add(set.contents.on_host()))
        })
    }

    /// Returns the numbers of the ranges that are meant.
    pub(super) fn numbers(&self, which: Which<'_>) -> BTreeSet<u64> {
        let is_meant = |ranges: &&SleepingRanges| match which {
            Which::All => true,
            Which::Tags(tags) => ranges.tag.is_some_and(|tag| tags.contains(&tag)),
            Which::Request(id) => ranges.by == id,
        };
        self.ranges.iter().filter(is_meant).map(|ranges| ranges.number).collect()
    }

    /// Returns the numbers of the ranges that have all of the pool.
    pub(super) fn whole(&self) -> BTreeSet<u64> {
        self.ranges.iter().filter(|ranges| ranges.tag.is_none()).map(|ranges| ranges.number).collect()
    }

    /// Returns the request that has a place kept for one of some ranges, where one has.
    pub(super) fn place_in(&self, numbers: &BTreeSet<u64>) -> Option<SleepRequestId> {
        self.ranges.iter().filter(|ranges| numbers.contains(&ranges.number)).find_map(|ranges| ranges.place)
    }

    /// Returns whether all of the pool sleeps, and that is not meant.
    pub(super) fn has_whole_beside(&self, which: Which<'_>) -> bool {
        !self.whole().is_subset(&self.numbers(which))
    }
}

/// The part of what sleeps that a call means.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which<'a> {
    All,
    Tags(&'a [AllocTag]),
    /// That which one request put to sleep.
    Request(SleepRequestId),
}

/// Ranges whose uses are refused.
#[derive(Debug)]
pub(super) struct SleepingRanges {
    /// Their number with the free lists, and with the context.
    pub(super) number: u64,
    pub(super) id: AsleepId,
    /// The tag of their blocks; `None` for all of the pool.
    pub(super) tag: Option<AllocTag>,
    /// The request that has their place kept in every frame that they have a part of, where one has.
    pub(super) place: Option<SleepRequestId>,
    /// The request that put them to sleep.
    pub(super) by: SleepRequestId,
}

/// Frames that fell asleep by one request, and that the same ranges have a part of.
#[derive(Debug)]
pub(super) struct SleepingFrames {
    /// The request that put them to sleep.
    pub(super) by: SleepRequestId,
    /// The numbers of the ranges.
    pub(super) of: BTreeSet<u64>,
    pub(super) frames: Vec<SleepingFrame>,
    /// The runs that are free in them.
    pub(super) free: Vec<Run>,
    pub(super) contents: Contents,
    /// The request that has the limits keep their place, where one has.
    pub(super) place: Option<SleepRequestId>,
}

/// A frame that sleeps.
#[derive(Debug)]
pub(super) struct SleepingFrame {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) bytes: Bytes,
    pub(super) is_exclusive: bool,
    /// The ranges of the contents that are its own.
    pub(super) saved: Range<usize>,
    pub(super) physical: Physical,
}

/// The physical memory of a frame.
#[derive(Debug)]
pub(super) enum Physical {
    /// Mapped where it belongs.
    Mapped(Frame),
    /// Mapped nowhere.
    Unmapped(Frame),
    /// The driver's.
    Released,
}

impl SleepingFrames {
    /// Returns whether a call means them; `numbers` are those of the ranges that it means.
    pub(super) fn are_meant(&self, which: Which<'_>, numbers: &BTreeSet<u64>) -> bool {
        match which {
            Which::All => true,
            Which::Tags(_) => !self.of.is_disjoint(numbers),
            // A later request may have put the rest of a frame to sleep, and with it the frame.
            Which::Request(id) => self.by == id || !self.of.is_disjoint(numbers),
        }
    }

    /// Returns the device memory that the driver has of them, and a place is kept for where one is.
    pub(super) fn away(&self) -> Bytes {
        Bytes(self.frames.iter().filter(|frame| frame.is_away()).map(|frame| frame.bytes.get()).sum())
    }

    /// Returns the device memory that waking takes: that of the pages that blocks are in.
    pub(super) fn needed(&self, lists: &mut FreeLists) -> Bytes {
        let used = lists.used_pages(self.frames_away(), &self.free);
        Bytes(used.iter().flatten().map(|pages| (pages.end - pages.start) * UNIT).sum())
    }

    /// Returns the first address and the length of each frame whose memory the driver has.
    pub(super) fn frames_away(&self) -> impl Iterator<Item = (u64, u64)> + Clone {
        self.frames.iter().filter(|frame| frame.is_away()).map(|frame| (frame.at, frame.len))
    }
}
