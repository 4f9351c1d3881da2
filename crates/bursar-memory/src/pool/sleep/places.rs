//! The places that limits keep for what sleeps: taken for its frames, so that waking is not refused, and given up again.

use super::super::PagePoolResource;
use super::super::runs::UNIT;
use super::record::{SleepingFrames, SleepingRanges, Which};
use bursar_core::{Bytes, Error, FrameSource, Holder, Result, SleepRequest, explain};
use std::time::{Duration, Instant};

impl<F: FrameSource> PagePoolResource<F> {
    /// Takes a place with the limits: at once, or in the turn of whoever waits for it. A refusal says who has the memory.
    pub(super) fn take_place(&self, bytes: Bytes, patience: Duration) -> Result<()> {
        let explained = |refused| explain(&self.context, |survey| self.survey(survey), refused, bytes, (bytes, UNIT));
        self.try_take_place(bytes, patience).map_err(explained)
    }

    /// Before a refusal every pool of the device gives back what it can, and before a wait this one what is free once its work has run.
    fn try_take_place(&self, bytes: Bytes, patience: Duration) -> Result<()> {
        let began = Instant::now();
        let is_refused = |taken: &Result<()>| taken.as_ref().is_err_and(Error::is_capacity);
        let mut taken = self.source.take_place(bytes, Duration::ZERO);
        if is_refused(&taken) {
            self.context.trim();
            taken = self.source.take_place(bytes, Duration::ZERO);
        }
        if !is_refused(&taken) || patience.is_zero() {
            return taken;
        }
        if self.state.lists().units_in_whole_frames() > 0 {
            self.state.wait_for_pending(&self.context, patience)?;
            self.trim(Bytes::ZERO);
        }
        self.source.take_place(bytes, patience.saturating_sub(began.elapsed()))
    }

    /// Has the limits keep the place of what sleeps already and is meant, where a request asks for that; after an error none is
    /// kept more than before.
    pub(super) fn keep_places(&self, request: &SleepRequest) -> Result<()> {
        if !request.keep_place {
            return Ok(());
        }
        let mut all = std::mem::take(&mut self.state.sleep.asleep().frames);
        let numbers = request.tags().map(|tags| self.state.sleep.asleep().numbers(Which::Tags(&tags)));
        let is_meant = |set: &SleepingFrames| numbers.as_ref().is_none_or(|numbers| !set.of.is_disjoint(numbers));
        let kept = all.iter_mut().filter(|set| set.place.is_none() && is_meant(set)).try_for_each(|set| {
            self.abandon_unused(set);
            if set.away() > Bytes::ZERO {
                self.take_place(set.away(), Duration::ZERO)?;
            }
            set.place = Some(request.id);
            Ok(())
        });
        let mut asleep = self.state.sleep.asleep();
        asleep.frames = all;
        let is_meant = |ranges: &&mut SleepingRanges| {
            ranges.place.is_none() && numbers.as_ref().is_none_or(|numbers| numbers.contains(&ranges.number))
        };
        asleep.ranges.iter_mut().filter(is_meant).for_each(|ranges| ranges.place = Some(request.id));
        drop(asleep);
        kept.inspect_err(|_| self.give_up_places(request))
    }

    /// Gives up the places that a request has had the limits keep for what slept before.
    pub(super) fn give_up_places(&self, request: &SleepRequest) {
        let mut asleep = self.state.sleep.asleep();
        let is_meant = |set: &&mut SleepingFrames| set.place == Some(request.id) && set.by != request.id;
        let places: Vec<_> =
            asleep.frames.iter_mut().filter(is_meant).map(|set| (set.place.take(), set.away())).collect();
        let is_meant = |ranges: &&mut SleepingRanges| ranges.place == Some(request.id) && ranges.by != request.id;
        asleep.ranges.iter_mut().filter(is_meant).for_each(|ranges| ranges.place = None);
        drop(asleep);
        places.into_iter().for_each(|(_, bytes)| self.source.give_up_place(bytes));
    }
}
