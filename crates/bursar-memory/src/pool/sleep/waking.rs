//! The way back of what sleeps: memory for the pages that blocks are in, and their contents.
//!
//! First the pages are *abandoned* that no block is in any more, so that no more memory is taken than blocks need. Then
//! frames are made, mapped and filled one after the other, so that copies run while the next frames are made. The contents
//! stay on the host until all are back: a failure gives the frames back again, and the pool is asleep as before.

use super::super::asleep::{FallingFrame, FallingFrames};
use super::super::contents::CopyStreams;
use super::super::growth_plan::PlacedFrame;
use super::super::runs::UNIT;
use super::super::{PagePoolResource, driver_calls};
use super::record::{Physical, SleepingFrame, SleepingFrames, Which};
use bursar_core::{Bytes, DevicePtr, Error, Frame, FrameSource, Holder, Result, Sleeper, WakeReport, WakeRequest};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

impl<F: FrameSource> PagePoolResource<F> {
    /// Takes memory for a frame that sleeps, in its place, and maps it where it was.
    fn take_back(&self, frame: &mut SleepingFrame) -> Result<Bytes> {
        let (context, mut taken) = (&self.context, Bytes::ZERO);
        let physical = match std::mem::replace(&mut frame.physical, Physical::Released) {
            Physical::Released => {
                let of = self.make_in_place(frame.bytes)?;
                self.state.lists().space.count_made(of.bytes());
                taken = of.bytes();
                Physical::Unmapped(of)
            }
            physical => physical,
        };
        let (physical, mapped) = match physical {
            Physical::Unmapped(of) => match driver_calls::map(context, frame.at, &of) {
                Ok(()) => (Physical::Mapped(of), Ok(())),
                Err(error) => (Physical::Unmapped(of), Err(context.failed(error))),
            },
            physical => (physical, Ok(())),
        };
        frame.physical = physical;
        mapped?;
        // Also of one that stayed mapped: it may be from a wake that failed here.
        driver_calls::allow_access(context, frame.at, frame.len).map_err(|error| context.failed(error))?;
        Ok(taken)
    }

    /// Makes a frame in its place; where the device has none left, every pool of it gives back what it can first.
    fn make_in_place(&self, bytes: Bytes) -> Result<Frame> {
        match self.source.create_frame_in_place(bytes) {
            Err(refused) if refused.is_capacity() && self.context.trim() > Bytes::ZERO => {
                self.source.create_frame_in_place(bytes)
            }
            made => made,
        }
    }

    /// Frees what was freed asleep, as far as its frames are awake: there, nothing else ends it before its tag wakes. While somebody else
    /// moves the pool, nothing.
    pub(in super::super) fn free_awake_parts(&self, is_mover: bool) {
        let mut lists = self.state.lists();
        if lists.asleep.is_moving() && !is_mover {
            return;
        }
        let Some(taken) = lists.take_awake_frees() else { return };
        drop(lists);
        for range in taken.ranges() {
            // Before it is granted: whoever is granted a block can use it.
            self.context.abandon_asleep(&(DevicePtr(range.start * UNIT)..DevicePtr(range.end * UNIT)));
        }
        self.state.lists().enter_awake_frees(taken);
        self.state.retry_unordered(&self.context);
    }

    /// Abandons the pages of frames that no block is in any more, also where waking is refused then; their addresses, and
    /// their place with the limits, are anyone's from then on.
    pub(super) fn abandon_unused(&self, set: &mut SleepingFrames) {
        let (before, mut free) = (set.away(), std::mem::take(&mut set.free));
        let (left, abandoned) = self.state.lists().abandon_unused(set.frames_away(), &mut free);
        set.free = free;
        if abandoned.is_empty() {
            return;
        }
        let mut left = left.into_iter();
        let pieces = |frame: SleepingFrame| match frame.is_away() {
            true => left.next().unwrap_or_default().into_iter().map(|range| frame.piece(range)).collect(),
            false => vec![frame],
        };
        set.frames = std::mem::take(&mut set.frames).into_iter().flat_map(pieces).collect();
        if set.place.is_some() {
            self.source.give_up_place(before.saturating_sub(set.away()));
        }
        for (&at, &end) in &abandoned {
            driver_calls::note_abandoned(&self.context, at, end - at);
            self.context.abandon_asleep(&(DevicePtr(at * UNIT)..DevicePtr(end * UNIT)));
        }
        let mut lists = self.state.lists();
        abandoned.into_iter().for_each(|(at, end)| lists.space.release_range(at, end - at));
    }

    /// Ends all sleeps of a pool that nobody has a block of: no device memory is taken for them, and their place and their host
    /// memory go back.
    pub(in super::super) fn abandon_asleep(&self) {
        if self.state.sleep.is_any() && self.bytes_outstanding() == Bytes::ZERO {
            // There is nobody to be told: one that somebody else moves just now, or that fails, stays as it is.
            let _outcome = self.wake(&WakeRequest::default());
        }
    }

    /// Takes memory for all frames of a set and copies their contents back; returns how much was taken, and how much was
    /// copied. An error says whether something may still be copied.
    fn restore(&self, set: &mut SleepingFrames) -> Result<(Bytes, Bytes), (Error, bool)> {
        let SleepingFrames { frames, contents, .. } = set;
        contents.wait_for_copies(&self.context).map_err(|error| (error, true))?;
        let streams = CopyStreams::take(&self.context).map_err(|error| (error, false))?;
        let (mut taken, mut restored) = (Bytes::ZERO, Bytes::ZERO);
        let submitted = frames.iter_mut().try_for_each(|frame| {
            taken = taken.saturating_add(self.take_back(frame)?);
            let within = DevicePtr(frame.at * UNIT)..DevicePtr((frame.at + frame.len) * UNIT);
            restored = restored.saturating_add(contents.restore(&streams, frame.saved.clone(), &within)?);
            Ok(())
        });
        let settled = streams.settle();
        if settled.as_ref().is_err_and(|unsettled| unsettled.may_be_in_flight) {
            contents.leave_copies();
            return settled.map(|()| (taken, restored)).map_err(|unsettled| (unsettled.error, true));
        }
        let settled = settled.map_err(|unsettled| unsettled.error);
        submitted.and(settled).map(|()| (taken, restored)).map_err(|error| (error, false))
    }

    /// Wakes frames that are meant, and ends the sleep of ranges that are, once all of their frames are awake. What all of the pool
    /// needs to be awake comes first, and after that what slept by itself before: after an error of the second, the first is awake.
    /// All else sleeps as before.
    pub(super) fn wake_those(&self, which: Which<'_>, patience: Duration) -> Result<WakeReport> {
        self.free_awake_parts(true);
        let mut asleep = self.state.sleep.asleep();
        asleep.waking = asleep.needed_and_on_host(&mut self.state.lists());
        let (numbers, whole, mut all) = (asleep.numbers(which), asleep.whole(), std::mem::take(&mut asleep.frames));
        drop(asleep);
        // Also what sleeps on gives up what it needs no more: a place may be kept for it.
        all.iter_mut().for_each(|set| self.abandon_unused(set));
        let is_first = |set: &SleepingFrames| !set.of.is_disjoint(&whole);
        let woken = [true, false].into_iter().try_fold(WakeReport::default(), |woken, first| {
            let is_meant = |set: &SleepingFrames| set.are_meant(which, &numbers) && is_first(set) == first;
            let mut meant: Vec<_> = all.iter_mut().filter(|set| is_meant(set)).collect();
            let woken = woken.and(self.restore_all(&mut meant, patience)?);
            for SleepingFrames { frames, free, .. } in all.extract_if(.., |set| is_meant(set)) {
                self.enter_awake(FallingFrames { frames: frames.into_iter().filter_map(awake).collect(), free });
            }
            self.end_sleep_of(if first { &whole } else { &numbers }, &all);
            Ok(woken)
        });
        let mut asleep = self.state.sleep.asleep();
        (asleep.frames, asleep.waking) = (all, Default::default());
        drop(asleep);
        woken
    }

    /// Ends the sleep of those among some ranges that frames which sleep have no part of.
    fn end_sleep_of(&self, numbers: &BTreeSet<u64>, frames: &[SleepingFrames]) {
        let is_over = |number| numbers.contains(&number) && frames.iter().all(|set| !set.of.contains(&number));
        let over = self.state.sleep.asleep().ranges.extract_if(.., |ranges| is_over(ranges.number)).collect();
        self.end_sleep(over);
    }

    /// Takes memory for all frames of some sets, in places that are taken together, and copies their contents back. After an error
    /// all of it is given back.
    fn restore_all(&self, sets: &mut [&mut SleepingFrames], patience: Duration) -> Result<WakeReport> {
        let needed = away_without_place(sets);
        if needed > Bytes::ZERO {
            self.take_place(needed, patience)?;
        }
        let mut report = WakeReport::default();
        for nth in 0..sets.len() {
            match self.restore(sets[nth]) {
                Ok((taken, restored)) => report = report.and(WakeReport { taken, restored, ..WakeReport::default() }),
                Err((error, may_be_copied)) => {
                    // What was made in the place goes back to it.
                    let settled = if may_be_copied { nth } else { nth + 1 };
                    sets[..settled].iter_mut().for_each(|set| _ = self.give_back(&mut set.frames, true));
                    self.source.give_up_place(away_without_place(sets));
                    return Err(error);
                }
            }
        }
        Ok(report)
    }
}

/// Returns the device memory that the driver has of some sets and that no place is kept for.
fn away_without_place(sets: &[&mut SleepingFrames]) -> Bytes {
    let without_place = sets.iter().filter(|set| set.place.is_none());
    without_place.map(|set| set.away()).fold(Bytes::ZERO, Bytes::saturating_add)
}

impl SleepingFrame {
    /// Returns whether the driver has its memory.
    pub(super) const fn is_away(&self) -> bool {
        matches!(self.physical, Physical::Released)
    }

    /// Returns a piece of a frame whose memory the driver has.
    fn piece(&self, range: Range<u64>) -> Self {
        let (at, len) = (range.start, range.end - range.start);
        Self {
            at,
            len,
            bytes: Bytes(len * UNIT),
            // Blocks share what a part of was abandoned.
            is_exclusive: self.is_exclusive && len == self.len,
            saved: self.saved.clone(),
            physical: Physical::Released,
        }
    }
}

/// Returns a frame that is mapped where it was.
pub(super) fn awake(SleepingFrame { at, len, is_exclusive, physical, .. }: SleepingFrame) -> Option<FallingFrame> {
    let Physical::Mapped(frame) = physical else { return None };
    Some(FallingFrame { at, placed: PlacedFrame { frame, len }, is_exclusive, live: Vec::new(), of: BTreeSet::new() })
}
