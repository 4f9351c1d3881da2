//! Sleep and wake: frames given back while their addresses stay, and taken again for the same addresses.
//!
//! Falling asleep has four steps. Nothing is locked across the driver's calls.
//! 1. It is *said*: uses that are declared from now on, and requests where all of the pool is to sleep, are refused;
//!    uses and streams are waited for, and what is free becomes known.
//! 2. The frames are *taken out* of the address space, with the free runs in them.
//! 3. Contents are *saved*. Up to here nothing has changed on the device, so a failure puts the frames back.
//! 4. Frames are unmapped and *released*, which ends their charge. One that the driver does not let go of stays, and is
//!    charged; the pool is asleep all the same, and waking takes it as it is.
//!
//! `waking.rs` has the way back.

mod waking;

use super::asleep::{FallingFrame, FallingFrames, IsMoving, Ranges};
use super::contents::{Contents, ContentsPlan};
use super::free_lists::FreeLists;
use super::runs::{Run, UNIT};
use super::{PagePoolResource, driver_calls};
use bursar_core::{
    AllocTag, AsleepId, Bytes, DeviceContext, DevicePtr, Error, Frame, FrameSource, HostStore, RefusedFrame, Result,
    SleepReading, SleepReport, SleepRequest, SleepState, Sleeper, WakeReport, WakeRequest,
};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The sleeps of a pool.
#[derive(Debug)]
pub(super) struct SleepRecord {
    /// The process whose memory it is.
    process: u32,
    /// Read on the long path; written with the free lists locked.
    level: AtomicU8,
    sleeps: Mutex<Vec<Sleep>>,
}

/// Nothing sleeps; some of it does; all of it does.
const AWAKE: u8 = 0;
const PARTLY: u8 = 1;
const WHOLE: u8 = 2;

impl Default for SleepRecord {
    fn default() -> Self {
        Self { process: std::process::id(), level: AtomicU8::new(AWAKE), sleeps: Mutex::default() }
    }
}

impl SleepRecord {
    /// Returns whether anything sleeps, or is about to.
    pub(super) fn is_any(&self) -> bool {
        self.level.load(SeqCst) != AWAKE
    }

    /// Refuses a request where all of the pool sleeps, or is about to.
    pub(super) fn check_awake(&self, context: &DeviceContext) -> Result<()> {
        match self.level.load(SeqCst) {
            WHOLE => Err(Error::Asleep { device: context.device(), what: "the pool", is_moving: false }),
            _ => Ok(()),
        }
    }

    fn sleeps(&self) -> MutexGuard<'_, Vec<Sleep>> {
        self.sleeps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the level up to date.
    fn update(&self, lists: &FreeLists) {
        let level = match (lists.asleep.is_whole(), lists.asleep.is_empty()) {
            (true, _) => WHOLE,
            (_, true) => AWAKE,
            _ => PARTLY,
        };
        self.level.store(level, SeqCst);
    }
}

/// Memory that sleeps, by one call.
#[derive(Debug)]
struct Sleep {
    /// Its number with the free lists, and with the context.
    number: u64,
    id: AsleepId,
    tag: Option<AllocTag>,
    frames: Vec<SleepingFrame>,
    /// The runs that are free in them.
    free: Vec<Run>,
    contents: Contents,
    /// Set where the limits keep its place.
    has_place: bool,
}

/// A frame that sleeps.
#[derive(Debug)]
struct SleepingFrame {
    at: u64,
    len: u64,
    bytes: Bytes,
    is_exclusive: bool,
    /// The ranges of the contents that are its own.
    saved: Range<usize>,
    physical: Physical,
}

/// The physical memory of a frame.
#[derive(Debug)]
enum Physical {
    /// Mapped where it belongs.
    Mapped(Frame),
    /// Mapped nowhere.
    Unmapped(Frame),
    /// The driver's.
    Released,
}

impl Sleep {
    /// Returns the device memory that the driver has of it, and a place is kept for where one is.
    fn away(&self) -> Bytes {
        Bytes(self.frames.iter().filter(|frame| frame.is_away()).map(|frame| frame.bytes.get()).sum())
    }

    /// Returns the device memory that waking takes: that of the pages that blocks are in.
    fn needed(&self, lists: &mut FreeLists) -> Bytes {
        let used = lists.used_pages(self.frames_away(), &self.free);
        Bytes(used.iter().flatten().map(|pages| (pages.end - pages.start) * UNIT).sum())
    }

    /// Returns the first address and the length of each frame whose memory the driver has.
    fn frames_away(&self) -> impl Iterator<Item = (u64, u64)> + Clone {
        self.frames.iter().filter(|frame| frame.is_away()).map(|frame| (frame.at, frame.len))
    }
}

impl<F: FrameSource> PagePoolResource<F> {
    /// Refuses where all of the pool sleeps.
    pub(super) fn check_awake(&self, lists: &FreeLists) -> Result<()> {
        if lists.asleep.is_whole() { Err(self.asleep(lists)) } else { Ok(()) }
    }

    #[cold]
    fn asleep(&self, lists: &FreeLists) -> Error {
        let (device, is_moving) = (self.context.device(), lists.asleep.is_moving());
        Error::Asleep { device, what: "the pool", is_moving }
    }

    fn begin_move(&self) -> Result<Moving<'_, F>> {
        if self.state.sleep.process != std::process::id() {
            // The frames are the parent's, and locks may be held by threads that are not here.
            return Err(Error::Forked);
        }
        let mut lists = self.state.lists();
        let begun = lists.asleep.begin_move();
        drop(lists);
        let device = self.context.device();
        begun.map_err(|IsMoving| Error::Asleep { device, what: "the pool", is_moving: true })?;
        Ok(Moving { pool: self })
    }

    /// Returns those of some blocks that are this pool's.
    fn own_ranges(&self, blocks: &[Range<DevicePtr>]) -> Ranges {
        let in_units = |range: &Range<DevicePtr>| (range.start.0 / UNIT, range.end.0.div_ceil(UNIT));
        blocks.iter().map(in_units).filter(|(start, _)| self.addresses.contains(start)).collect()
    }

    /// Says that ranges sleep from now on; returns the number of the sleep with the free lists, and with the context.
    fn say_asleep(&self, request: &SleepRequest) -> (u64, AsleepId) {
        let ranges = match &request.only {
            None => [(self.addresses.start, self.addresses.end)].into(),
            Some((_, blocks)) => self.own_ranges(blocks),
        };
        let in_bytes = |(&start, &end): (&u64, &u64)| DevicePtr(start * UNIT)..DevicePtr(end * UNIT);
        let id = self.context.begin_sleep(&ranges.iter().map(in_bytes).collect::<Vec<_>>());
        let mut lists = self.state.lists();
        let number = lists.asleep.enter(ranges, request.only.is_none());
        self.state.sleep.update(&lists);
        drop(lists);
        self.context.raise_alarm();
        (number, id)
    }

    /// Waits for uses and streams, and finds out what is free.
    fn come_to_rest(&self, request: &SleepRequest) -> Result<()> {
        let (context, state) = (&self.context, &self.state);
        context.fault().check()?;
        context.wait_for_all_streams(request.patience)?;
        state.drain(None, None);
        // A frame is given back only once it is mapped nowhere else.
        state.ask_all(context).and_then(|()| state.unmap_vacated(context)).map_err(|error| context.failed(error))?;
        if request.only.is_none() {
            let release = |frame| self.source.release_frame(frame);
            state.release_frames(context, 0, &release);
        }
        Ok(())
    }

    fn take_out(&self, number: u64) -> FallingFrames {
        loop {
            let mut lists = self.state.lists();
            if let Some(falling) = lists.take_frames_to_sleep(number) {
                return falling;
            }
            drop(lists);
            std::thread::yield_now();
        }
    }

    /// Tells a driver that listens what sleeps from here on, and what is kept of it.
    fn note_asleep(&self, frames: &[FallingFrame], live: &[Vec<Range<u64>>]) {
        if !self.context.listens() {
            return;
        }
        // Page by page, since each may be abandoned before it wakes.
        let page = self.state.lists().space.granule();
        for (frame, live) in frames.iter().zip(live) {
            for at in (frame.at..frame.at + frame.placed.len).step_by(page as usize) {
                driver_calls::note_asleep(&self.context, at, page);
                for range in live {
                    let (start, end) = (range.start.max(at * UNIT), range.end.min((at + page) * UNIT));
                    if start < end {
                        driver_calls::note_saved(&self.context, DevicePtr(start), end - start);
                    }
                }
            }
        }
    }

    /// Ends a sleep, with its frames mapped where they were.
    fn end_sleep(&self, number: u64, id: AsleepId, falling: FallingFrames) {
        for frame in &falling.frames {
            driver_calls::note_awake(&self.context, frame.at, frame.placed.len);
        }
        let mut lists = self.state.lists();
        lists.end_sleep(number, falling);
        self.state.sleep.update(&lists);
        drop(lists);
        self.context.end_sleep(id);
        self.state.retry_unordered(&self.context);
    }

    /// Gives the memory of frames that sleep back, as far as the driver takes it, with their place or without; returns how
    /// much it took.
    fn give_back(&self, frames: &mut [SleepingFrame], keep_place: bool) -> Bytes {
        let mut released = Bytes::ZERO;
        for frame in frames {
            let physical = match std::mem::replace(&mut frame.physical, Physical::Released) {
                Physical::Mapped(of) => match driver_calls::unmap(&self.context, frame.at, frame.len) {
                    Ok(()) => Physical::Unmapped(of),
                    Err(error) => {
                        self.context.fault().record(error);
                        Physical::Mapped(of)
                    }
                },
                physical => physical,
            };
            frame.physical = match physical {
                Physical::Unmapped(of) => match self.release(of, keep_place) {
                    Ok(()) => {
                        self.state.lists().space.count_released(frame.bytes);
                        released = released.saturating_add(frame.bytes);
                        Physical::Released
                    }
                    Err(RefusedFrame { frame: of, error }) => {
                        if let Error::Driver(error) = error {
                            self.context.fault().record(error);
                        }
                        Physical::Unmapped(of)
                    }
                },
                physical => physical,
            };
        }
        released
    }

    fn release(&self, frame: Frame, keep_place: bool) -> Result<(), RefusedFrame> {
        match keep_place {
            true => self.source.release_frame_keeping_place(frame),
            false => self.source.release_frame(frame),
        }
    }
}

/// The one who falls asleep or wakes, until this is dropped.
struct Moving<'a, F: FrameSource> {
    pool: &'a PagePoolResource<F>,
}

impl<F: FrameSource> Drop for Moving<'_, F> {
    fn drop(&mut self) {
        self.pool.state.lists().asleep.end_move();
    }
}

/// Returns what is left of ranges without others, all in bytes, and how much was taken off.
fn without(ranges: &[Range<u64>], others: &[Range<DevicePtr>]) -> (Vec<Range<u64>>, u64) {
    let (mut left, mut removed) = (ranges.to_vec(), 0);
    for other in others {
        let cut = |range: Range<u64>| {
            let (low, high) = (range.start..other.start.0.min(range.end), other.end.0.max(range.start)..range.end);
            [low, high].into_iter().filter(|part| part.start < part.end)
        };
        left = left.into_iter().flat_map(cut).collect();
    }
    let len = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).sum::<u64>();
    removed += len(ranges) - len(&left);
    (left, removed)
}

impl<F: FrameSource> Sleeper for PagePoolResource<F> {
    fn sleep(&self, store: &dyn HostStore, request: &SleepRequest) -> Result<SleepReport> {
        let began = Instant::now();
        if self.addresses.is_empty() {
            return Err(Error::Unsupported { device: self.context.device(), what: "sleep: it cannot map memory" });
        }
        let _moving = self.begin_move()?;
        if self.state.lists().asleep.is_whole() {
            return Ok(SleepReport::default());
        }
        if request.only.as_ref().is_some_and(|(_, blocks)| self.own_ranges(blocks).is_empty()) {
            return Ok(SleepReport::default());
        }
        let (number, id) = self.say_asleep(request);
        if let Err(error) = self.come_to_rest(request) {
            self.end_sleep(number, id, FallingFrames::default());
            return Err(error);
        }
        let waited = began.elapsed();
        let falling = self.take_out(number);
        let mut discarded = 0;
        let live_of = |frame: &FallingFrame| {
            let in_bytes = frame.live.iter().map(|range| range.start * UNIT..range.end * UNIT).collect::<Vec<_>>();
            let everything = [DevicePtr(0)..DevicePtr(u64::MAX)];
            let (left, removed) =
                without(&in_bytes, if request.discard_all { &everything } else { request.discard.as_slice() });
            discarded += removed;
            left
        };
        let live: Vec<_> = falling.frames.iter().map(live_of).collect();
        self.note_asleep(&falling.frames, &live);
        let (plan, saved) = ContentsPlan::new(&live, request.piece);
        let contents = match plan.save(&self.context, store) {
            Ok(contents) => contents,
            Err(error) => {
                self.end_sleep(number, id, falling);
                return Err(error);
            }
        };
        let FallingFrames { frames, free } = falling;
        let asleep = |(FallingFrame { at, placed, is_exclusive, .. }, saved)| SleepingFrame {
            at,
            len: placed.len,
            bytes: placed.frame.bytes(),
            is_exclusive,
            saved,
            physical: Physical::Mapped(placed.frame),
        };
        let mut frames: Vec<_> = frames.into_iter().zip(saved).map(asleep).collect();
        let all: u64 = frames.iter().map(|frame| frame.bytes.get()).sum();
        let released = self.give_back(&mut frames, request.keep_place);
        let saved = contents.bytes();
        let shared = request.only.as_ref().map_or(0, |(_, blocks)| {
            let lists = self.state.lists();
            blocks.iter().map(|block| lists.space.placed_bytes(block)).sum()
        });
        let tag = request.only.as_ref().map(|(tag, _)| *tag);
        let has_place = request.keep_place;
        self.state.sleep.sleeps().push(Sleep { number, id, tag, frames, free, contents, has_place });
        let kept = Bytes(shared + all - released.get());
        let (discarded, elapsed) = (Bytes(discarded), began.elapsed());
        Ok(SleepReport { released, saved, discarded, kept, waited, elapsed })
    }

    fn wake(&self, request: &WakeRequest) -> Result<WakeReport> {
        let began = Instant::now();
        let _moving = self.begin_move()?;
        if request.only.is_some() && self.state.lists().asleep.is_whole() {
            // A tag that sleeps by itself cannot be used while all of the pool sleeps.
            let what = "the whole pool (so that no tag wakes by itself)";
            return Err(Error::Asleep { device: self.context.device(), what, is_moving: false });
        }
        // Also what sleeps on gives up what it needs no more: a place may be kept for it.
        let mut all = std::mem::take(&mut *self.state.sleep.sleeps());
        all.iter_mut().for_each(|sleep| self.abandon_unused(sleep));
        let is_meant = |sleep: &Sleep| request.only.is_none_or(|tag| sleep.tag == Some(tag));
        let (meant, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_meant);
        self.state.sleep.sleeps().extend(others);
        // The last to fall asleep is the first to wake: that which has all of the pool comes before tags.
        let (mut report, mut meant) = (WakeReport::default(), meant.into_iter().rev());
        while let Some(sleep) = meant.next() {
            match self.wake_one(sleep, request.patience) {
                Ok(woken) => report = report.and(woken),
                Err(error) => {
                    let mut sleeps = self.state.sleep.sleeps();
                    sleeps.extend(meant);
                    sleeps.sort_by_key(|sleep| sleep.number);
                    return Err(error);
                }
            }
        }
        Ok(WakeReport { elapsed: began.elapsed(), ..report })
    }

    fn sleep_reading(&self) -> SleepReading {
        let sleeps = self.state.sleep.sleeps();
        let mut lists = self.state.lists();
        let (is_moving, is_whole, is_awake) =
            (lists.asleep.is_moving(), lists.asleep.is_whole(), lists.asleep.is_empty());
        let asleep = sleeps.iter().map(|sleep| sleep.needed(&mut lists)).fold(Bytes::ZERO, Bytes::saturating_add);
        drop(lists);
        let state = match () {
            () if is_moving => SleepState::Moving,
            () if is_whole => SleepState::Asleep,
            () if is_awake => SleepState::Awake,
            () => SleepState::Partly,
        };
        let on_host = sleeps.iter().map(|sleep| sleep.contents.on_host()).fold(Bytes::ZERO, Bytes::saturating_add);
        SleepReading { state, asleep, on_host }
    }
}
