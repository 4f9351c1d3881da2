//! Sleep and wake: frames given back while their addresses stay, and taken again for the same addresses.
//!
//! Falling asleep has four steps. Nothing is locked across the driver's calls.
//! 1. It is *said*: uses that are declared from now on, and requests where all of the pool is to sleep, are refused;
//!    uses and streams are waited for, and what is free becomes known.
//! 2. The frames that nothing awake has a part of are *taken out* of the address space, with the free runs in them.
//! 3. Contents are *saved*: those of blocks that slept before too, whatever the call gives up of others. Up to here nothing has
//!    changed on the device, so a failure puts the frames back, and ends the sleep of all that the call meant.
//! 4. Frames are unmapped and *released*, which ends their charge. One that the driver does not let go of stays, and is
//!    charged; the pool is asleep all the same, and waking takes it as it is.
//!
//! `record.rs` has what sleeps then, `places.rs` the places that limits keep for it, `waking.rs` the way back, and `ending.rs` the end of a
//! pool that nobody wakes.

mod ending;
mod places;
mod record;
mod waking;

pub(super) use record::SleepRecord;

use super::asleep::{FallingFrame, FallingFrames, IsMoving, Ranges};
use super::contents::ContentsPlan;
use super::free_lists::FreeLists;
use super::runs::{Run, UNIT};
use super::{PagePoolResource, driver_calls};
use bursar_core::{
    AllocTag, Bytes, DevicePtr, Error, Frame, FrameSource, HostStore, RefusedFrame, Result, SleepReading, SleepReport,
    SleepRequest, SleepState, Sleeper, WakeReport, WakeRequest, is_interrupted,
};
use record::{Physical, SleepingFrame, SleepingFrames, SleepingRanges, Which};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The time between two looks whether somebody has moved a pool.
const LOOK_EVERY: Duration = Duration::from_micros(50);

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
        if self.state.sleep.is_of_parent() {
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

    /// Begins to move as [`begin_move`](Self::begin_move) does, once whoever moves it now has, waiting at most for `patience`.
    fn begin_move_in_turn(&self, patience: Duration) -> Result<Moving<'_, F>> {
        let began = Instant::now();
        loop {
            match self.begin_move() {
                Err(Error::Asleep { is_moving: true, .. }) if began.elapsed() < patience && !is_interrupted() => {
                    std::thread::sleep(LOOK_EVERY);
                }
                begun => return begun,
            }
        }
    }

    /// Wakes what is meant, for one who moves the pool.
    fn wake_in_turn(&self, which: Which<'_>, patience: Duration, began: Instant) -> Result<WakeReport> {
        let is_of_none = matches!(which, Which::Request(_)) && self.state.sleep.asleep().numbers(which).is_empty();
        match self.check_wakes(which) {
            // All of the pool was put to sleep by another.
            Err(_) if is_of_none => return Ok(WakeReport::default()),
            checked => checked?,
        }
        let report = self.wake_those(which, patience)?;
        Ok(WakeReport { elapsed: began.elapsed(), ..report })
    }

    /// Refuses to wake a part while all of the pool sleeps.
    fn check_wakes(&self, which: Which<'_>) -> Result<()> {
        if self.state.sleep.asleep().has_whole_beside(which) {
            // What sleeps by itself cannot be used while all of the pool sleeps.
            let what = "the whole pool (so that no tag wakes by itself)";
            return Err(Error::Asleep { device: self.context.device(), what, is_moving: false });
        }
        Ok(())
    }

    /// Returns those of some blocks that are this pool's.
    fn own_ranges(&self, blocks: &[Range<DevicePtr>]) -> Ranges {
        let in_units = |range: &Range<DevicePtr>| (range.start.0 / UNIT, range.end.0.div_ceil(UNIT));
        blocks.iter().map(in_units).filter(|(start, _)| self.addresses.contains(start)).collect()
    }

    /// Says that ranges sleep from now on: those of each tag that do not sleep yet, or all. `None`, and nothing sleeps, where the
    /// tags that are meant have no block of this pool.
    ///
    /// It is decided here, and for good, which blocks are meant: none of them is freed before it was said and the alarm was raised,
    /// and from then on none is granted to others.
    fn say_asleep(&self, request: &SleepRequest) -> Option<Said> {
        let mut said = None;
        request.decide(&mut |only, discard| said = self.say_asleep_of(request, only, discard));
        said
    }

    fn say_asleep_of(
        &self,
        request: &SleepRequest,
        only: Option<&[TaggedRanges]>,
        discard: &[Range<DevicePtr>],
    ) -> Option<Said> {
        let mut said = Said { given_up: self.given_up(request, discard), ..Said::default() };
        let all = || vec![(None, [(self.addresses.start, self.addresses.end)].into())];
        let of_tags = |tags: &[TaggedRanges]| tags.iter().map(|(tag, of)| (Some(*tag), self.own_ranges(of))).collect();
        let meant: Vec<(_, Ranges)> = only.map_or_else(all, of_tags);
        if meant.iter().all(|(_, ranges)| ranges.is_empty()) {
            return None;
        }
        for (tag, ranges) in meant {
            let mut lists = self.state.lists();
            let ranges = if tag.is_some() { lists.asleep.awake_parts(ranges) } else { ranges };
            if ranges.is_empty() {
                continue;
            }
            let in_bytes: Vec<_> = ranges.iter().map(|(&start, &end)| start * UNIT..end * UNIT).collect();
            let given_up = parts_within(&in_bytes, &said.given_up);
            let number = lists.asleep.enter(ranges, given_up, tag.is_none());
            self.state.sleep.update(&lists);
            drop(lists);
            let ranges = in_pointers(&in_bytes);
            let (id, place) = (self.context.begin_sleep(&ranges), request.keep_place.then_some(request.id));
            said.ranges.push(SleepingRanges { number, id, tag, by: request.id, place });
            said.blocks.extend(ranges.into_iter().filter(|_| tag.is_some()));
        }
        self.context.raise_alarm();
        Some(said)
    }

    /// Returns the ranges whose contents are given up, in bytes: as a request says, but for those that sleep already, of
    /// which it is what was said then.
    fn given_up(&self, request: &SleepRequest, discard: &[Range<DevicePtr>]) -> Vec<Range<u64>> {
        let asked = match request.discard_all {
            true => Vec::from([Range { start: 0, end: u64::MAX }]),
            false => discard.iter().map(|range| range.start.0..range.end.0).collect(),
        };
        let lists = self.state.lists();
        let (asleep, mut given_up) = lists.asleep.ranges_and_given_up();
        given_up.extend(without(&asked, &asleep));
        given_up
    }

    /// Waits for uses and streams, and finds out what is free.
    fn come_to_rest(&self, request: &SleepRequest) -> Result<()> {
        let (context, state) = (&self.context, &self.state);
        context.fault().check()?;
        if request.only.is_none() {
            state.sleep.wait_for_grants();
        }
        context.wait_for_all_streams(request.patience)?;
        state.drain(None, None);
        // A frame is given back only once it is mapped nowhere else.
        state.ask_all(context).and_then(|()| state.unmap_vacated(context)).map_err(|error| context.failed(error))?;
        if request.tags().is_none() {
            let release = |frame| self.source.release_frame(frame);
            state.release_frames(context, 0, &release);
        }
        Ok(())
    }

    fn take_out(&self) -> FallingFrames {
        loop {
            let mut lists = self.state.lists();
            if let Some(falling) = lists.take_frames_to_sleep() {
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

    /// Enters frames that are awake where they were.
    fn enter_awake(&self, falling: FallingFrames) {
        for frame in &falling.frames {
            driver_calls::note_awake(&self.context, frame.at, frame.placed.len);
        }
        self.state.lists().wake_frames(falling);
    }

    /// Ends the sleep of ranges, whose frames are awake.
    fn end_sleep(&self, ranges: Vec<SleepingRanges>) {
        for SleepingRanges { number, id, .. } in ranges {
            // Before anything is granted there: whoever is granted a block can use it.
            self.context.end_sleep(id);
            let mut lists = self.state.lists();
            lists.end_sleep(number);
            self.state.sleep.update(&lists);
        }
        self.state.retry_unordered(&self.context);
    }

    /// Puts frames to sleep that nothing is awake in, and whose ranges were said to sleep. After an error they are awake.
    fn fall_asleep(&self, store: &dyn HostStore, request: &SleepRequest, said: &Said) -> Result<SleepReport> {
        let began = Instant::now();
        self.come_to_rest(request)?;
        self.keep_places(request)?;
        let waited = began.elapsed();
        let falling = self.take_out();
        let mut report = SleepReport { waited, ..SleepReport::default() };
        let live_of = |frame: &FallingFrame| {
            let in_bytes: Vec<_> = frame.live.iter().map(|range| range.start * UNIT..range.end * UNIT).collect();
            let left = without(&in_bytes, &said.given_up);
            report.discarded = report.discarded.saturating_add(Bytes(len_of(&in_bytes) - len_of(&left)));
            left
        };
        let live: Vec<_> = falling.frames.iter().map(live_of).collect();
        self.note_asleep(&falling.frames, &live);
        let sets = sets_of(&falling, live);
        let save = |set: &FallingSet| {
            let (plan, saved) = ContentsPlan::new(&set.live, request.piece);
            plan.save(&self.context, store).map(|contents| (contents, saved))
        };
        let saved = match sets.iter().map(save).collect::<Result<Vec<_>>>() {
            Ok(saved) => saved,
            Err(error) => {
                self.enter_awake(falling);
                self.give_up_places(request);
                return Err(error);
            }
        };
        let in_bytes = |range: &Range<u64>| range.start * UNIT..range.end * UNIT;
        let live: Vec<_> = falling.frames.iter().flat_map(|frame| frame.live.iter().map(in_bytes)).collect();
        self.context.give_up_contents(&in_pointers(&parts_within(&live, &said.given_up)));
        let mut falling: BTreeMap<_, _> = falling.frames.into_iter().map(|frame| (frame.at, frame)).collect();
        for (FallingSet { of, at, free, .. }, (contents, saved)) in sets.into_iter().zip(saved) {
            let frames = at.iter().filter_map(|at| falling.remove(at)).zip(saved);
            let mut frames: Vec<_> = frames.map(|(frame, saved)| asleep(frame, saved)).collect();
            let all = Bytes(frames.iter().map(|frame| frame.bytes.get()).sum());
            let place = request.keep_place.then_some(request.id);
            // Those who slept before and keep their place keep it in this frame, too.
            let place = place.or_else(|| self.state.sleep.asleep().place_in(&of));
            let released = self.give_back(&mut frames, place.is_some());
            report.released = report.released.saturating_add(released);
            report.kept = report.kept.saturating_add(all.saturating_sub(released));
            report.saved = report.saved.saturating_add(contents.bytes());
            let by = request.id;
            self.state.sleep.asleep().frames.push(SleepingFrames { by, of, frames, free, contents, place });
        }
        let lists = self.state.lists();
        let shared = said.blocks.iter().map(|block| lists.space.placed_bytes(block)).sum();
        report.kept = report.kept.saturating_add(Bytes(shared));
        Ok(report)
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

/// The blocks of a tag.
type TaggedRanges = (AllocTag, Vec<Range<DevicePtr>>);

/// That which a call said to sleep.
#[derive(Debug, Default)]
struct Said {
    ranges: Vec<SleepingRanges>,
    /// The ranges of blocks among them, where not all of the pool is to sleep.
    blocks: Vec<Range<DevicePtr>>,
    /// The ranges whose contents are given up, in bytes.
    given_up: Vec<Range<u64>>,
}

/// Frames that fall asleep, and that the same ranges have a part of.
#[derive(Debug, Default)]
struct FallingSet {
    of: BTreeSet<u64>,
    /// The first addresses of the frames.
    at: Vec<u64>,
    /// The ranges of each whose contents are saved.
    live: Vec<Vec<Range<u64>>>,
    free: Vec<Run>,
}

/// Returns the sets that frames fall asleep in; `live` are the ranges of each whose contents are saved.
fn sets_of(falling: &FallingFrames, live: Vec<Vec<Range<u64>>>) -> Vec<FallingSet> {
    let (mut sets, mut set_at) = (BTreeMap::<_, FallingSet>::new(), BTreeMap::new());
    for (frame, live) in falling.frames.iter().zip(live) {
        set_at.insert(frame.at, &frame.of);
        let set = sets.entry(&frame.of).or_default();
        set.at.push(frame.at);
        set.live.push(live);
    }
    for &run in &falling.free {
        let set = set_at.range(..=run.at).next_back().and_then(|(_, of)| sets.get_mut(of));
        set.into_iter().for_each(|set| set.free.push(run));
    }
    sets.into_iter().map(|(of, set)| FallingSet { of: of.clone(), ..set }).collect()
}

/// Returns a frame that sleeps, of which nothing was given back yet.
fn asleep(FallingFrame { at, placed, is_exclusive, .. }: FallingFrame, saved: Range<usize>) -> SleepingFrame {
    let (len, bytes) = (placed.len, placed.frame.bytes());
    SleepingFrame { at, len, bytes, is_exclusive, saved, physical: Physical::Mapped(placed.frame) }
}

/// Returns what is left of ranges without others.
fn without(ranges: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = ranges.to_vec();
    for other in others {
        let cut = |range: Range<u64>| {
            let (low, high) = (range.start..other.start.min(range.end), other.end.max(range.start)..range.end);
            [low, high].into_iter().filter(|part| part.start < part.end)
        };
        left = left.into_iter().flat_map(cut).collect();
    }
    left
}

/// Returns the parts of ranges that lie within others.
fn parts_within(ranges: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let parts = |range: &Range<u64>| {
        let of = |other: &Range<u64>| range.start.max(other.start)..range.end.min(other.end);
        others.iter().map(of).filter(|part| part.start < part.end).collect::<Vec<_>>()
    };
    ranges.iter().flat_map(parts).collect()
}

fn in_pointers(ranges: &[Range<u64>]) -> Vec<Range<DevicePtr>> {
    ranges.iter().map(|range| DevicePtr(range.start)..DevicePtr(range.end)).collect()
}

fn len_of(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

impl<F: FrameSource> Sleeper for PagePoolResource<F> {
    fn sleep(&self, store: &dyn HostStore, request: &SleepRequest) -> Result<SleepReport> {
        let began = Instant::now();
        if self.addresses.is_empty() {
            return Err(Error::Unsupported { device: self.context.device(), what: "sleep: it cannot map memory" });
        }
        let _moving = self.begin_move()?;
        if self.state.lists().asleep.is_whole() {
            return self.keep_places(request).map(|()| SleepReport::default());
        }
        let Some(said) = self.say_asleep(request) else { return Ok(SleepReport::default()) };
        match self.fall_asleep(store, request, &said) {
            Ok(report) => {
                self.state.sleep.asleep().ranges.extend(said.ranges);
                Ok(SleepReport { elapsed: began.elapsed(), ..report })
            }
            Err(error) => {
                self.end_sleep(said.ranges);
                Err(error)
            }
        }
    }

    fn wake(&self, request: &WakeRequest) -> Result<WakeReport> {
        let began = Instant::now();
        let _moving = self.begin_move()?;
        let which = match request.slept_by {
            Some(id) => Which::Request(id),
            None if request.only.is_empty() => Which::All,
            None => Which::Tags(&request.only),
        };
        self.wake_in_turn(which, request.patience, began)
    }

    fn undo_sleep(&self, request: &SleepRequest) -> Result<WakeReport> {
        let began = Instant::now();
        let _moving = self.begin_move_in_turn(request.patience)?;
        self.give_up_places(request);
        self.wake_in_turn(Which::Request(request.id), request.patience, began)
    }

    fn sleep_reading(&self) -> SleepReading {
        let asleep = self.state.sleep.asleep();
        let mut lists = self.state.lists();
        let (is_moving, is_whole, is_awake) =
            (lists.asleep.is_moving(), lists.asleep.is_whole(), lists.asleep.is_empty());
        let (needed, on_host) = asleep.needed_and_on_host(&mut lists);
        drop(lists);
        let state = match () {
            () if is_moving => SleepState::Moving,
            () if is_whole => SleepState::Asleep,
            () if is_awake => SleepState::Awake,
            () => SleepState::Partly,
        };
        SleepReading { state, asleep: needed, on_host }
    }
}
