//! Memory that goes from one stream to another: how far streams have come with what was freed on them, and who waits
//! for whom.
//!
//! The driver is asked with nothing locked. A stream that cannot be asked keeps what was freed on it, and keeps no
//! other stream from being asked.

use super::address_space::VacatedRange;
use super::driver_calls;
use super::free_lists::UnorderedFree;
use super::runs::UNIT;
use super::{PagePoolResource, PoolState};
use bursar_core::{
    Action, Bytes, DeviceContext, DriverError, FrameSource, Record, Result, interrupt_interval, is_interrupted,
};
use std::time::{Duration, Instant};

/// The time that a bounded wait sleeps between two questions.
const POLL: Duration = Duration::from_micros(50);

impl PoolState {
    /// Asks how far a stream has come with what was freed on it, and lets everyone have what it has passed. One that is
    /// busy is given an event to be asked about later, if it has none.
    pub(super) fn ask(&self, context: &DeviceContext, lane: usize) -> Result<(), DriverError> {
        let Some(held) = context.hold_slot_for_question(lane)? else { return Ok(()) };
        let mut question = self.lists().question(lane);
        let mut passed = question.progress.ask(context, Some(&held), question.before);
        if matches!(passed, Ok(None)) && !question.progress.is_marked() {
            passed = question.progress.mark(context, &held, question.before).map(|()| None);
        }
        let (found, mut unneeded) = self.lists().end_question(question, passed.ok().flatten());
        unneeded.forget(context);
        if found > 0 {
            let granted = Bytes(found * UNIT);
            context.sink().emit(&Record { granted, ..Record::new(Action::Reap, context.device()) });
        }
        passed.map(drop)
    }

    /// Asks every stream that has something free, without waiting, so that what it is done with becomes common. A
    /// stream that cannot be asked does not keep the others from being asked.
    pub(super) fn ask_all(&self, context: &DeviceContext) -> Result<(), DriverError> {
        let has_unordered = !self.lists().unordered.is_empty();
        if has_unordered {
            self.retry_unordered(context);
        }
        let streams = self.lists().pending_streams();
        self.ask_each(context, streams)
    }

    /// Asks the streams that keep memory in limbo from the stream at `slot`.
    pub(super) fn ask_partners(&self, context: &DeviceContext, slot: usize) -> Result<bool, DriverError> {
        let partners = self.lists().partners_in_limbo(slot);
        let any = !partners.is_empty();
        self.ask_each(context, partners).map(|()| any)
    }

    /// Asks a stream which is not known to have passed what was freed on it, if nothing of that is left to be asked about.
    pub(super) fn ask_if_unknown(&self, context: &DeviceContext, slot: usize) -> Result<(), DriverError> {
        let is_unknown =
            self.lists().lane_if_open(slot).is_some_and(|lane| lane.runs.is_empty() && !lane.has_passed_all());
        if is_unknown { self.ask(context, slot) } else { Ok(()) }
    }

    fn ask_each(&self, context: &DeviceContext, lanes: Vec<usize>) -> Result<(), DriverError> {
        let mut outcome = Ok(());
        for lane in lanes {
            outcome = outcome.and(self.ask(context, lane));
        }
        outcome
    }

    /// Frees what could not be put in order when it was freed, as far as it can be now. What still cannot was reported.
    #[cold]
    pub(super) fn retry_unordered(&self, context: &DeviceContext) {
        let unordered = {
            let mut lists = self.lists();
            lists.in_flight += 1;
            std::mem::take(&mut lists.unordered)
        };
        let retry = |mut one| self.free_in_order(context, &mut one).err().map(|_| one);
        let left: Vec<_> = unordered.into_iter().filter_map(retry).collect();
        let mut lists = self.lists();
        lists.in_flight -= 1;
        lists.unordered.extend(left);
    }

    fn free_in_order(&self, context: &DeviceContext, unordered: &mut UnorderedFree) -> Result<()> {
        let stream = context.lasting(unordered.stream)?;
        let has_run = |stream| context.has_run(stream, Duration::ZERO).unwrap_or(false);
        let is_over = has_run(unordered.home) && has_run(stream);
        if !is_over && unordered.home != stream {
            context.order_after(unordered.home, stream)?;
        }
        let held = context.hold_for_noted_free(stream)?;
        if let Some(ptr) = unordered.unreported.take() {
            driver_calls::note_free_on(context, ptr, held.raw());
        }
        let mut lists = self.lists();
        match unordered.is_vacated {
            true => {
                let (slot, stamp) = (stream.slot(), lists.lane(stream.slot()).now);
                lists.space.vacate(VacatedRange { at: unordered.at, len: unordered.len, slot, stamp });
            }
            false => lists.free_own(stream.slot(), unordered.at, unordered.len),
        }
        Ok(())
    }

    /// Waits, at most for `patience`, until everything that was freed is known to be done with, as far as its streams
    /// can be asked.
    pub(super) fn wait_for_pending(&self, context: &DeviceContext, patience: Duration) -> Result<()> {
        let start = Instant::now();
        self.drain(None, None);
        let ask = || self.ask_all(context).map_err(|error| context.failed(error));
        if patience == Duration::MAX && interrupt_interval().is_none() {
            return self.wait_for_all(context).map_err(|error| context.failed(error));
        }
        loop {
            ask()?;
            if start.elapsed() >= patience || is_interrupted() || !self.lists().is_pending() {
                return Ok(());
            }
            std::thread::sleep(POLL.min(patience));
        }
    }

    /// Waits for every stream that has something free, as long as it takes.
    fn wait_for_all(&self, context: &DeviceContext) -> Result<(), DriverError> {
        let mut outcome = self.ask_all(context);
        if !self.lists().is_pending() {
            return outcome;
        }
        if !self.lists().unordered.is_empty() {
            context.order_ended(Duration::MAX);
            self.retry_unordered(context);
        }
        let streams = self.lists().pending_streams();
        for lane in streams {
            let waited = context.hold_slot_for_question(lane).and_then(|held| match held {
                Some(held) => driver_calls::synchronize(context, held.raw()),
                None => Ok(()),
            });
            outcome = outcome.and(waited);
        }
        let stuck = self.lists().unordered.first().and_then(|first| context.order_error(first.stream));
        outcome.and(self.ask_all(context)).and(stuck.map_or(Ok(()), Err))
    }
}

impl<F: FrameSource> PagePoolResource<F> {
    /// Asks the other streams that have freed much how far they are, for a request of the stream at `slot` that is met
    /// next.
    #[cold]
    pub(super) fn ask_streams_that_freed_much(&self, slot: usize) -> Result<()> {
        let lanes = self.state.lists().lanes_worth_asking();
        lanes
            .into_iter()
            .filter(|&lane| lane != slot)
            .try_for_each(|lane| self.state.ask(&self.context, lane))
            .map_err(|error| self.context.failed(error))
    }

    /// Has the stream at a slot come after everything that was freed on another.
    pub(super) fn wait_for_lane(&self, lane: usize, slot: usize) -> Result<(), DriverError> {
        let (context, state) = (&self.context, &self.state);
        let Some(held) = context.hold_slot_for_question(lane)? else { return Ok(()) };
        let Some(waiting) = context.hold_slot_for_question(slot)? else { return Ok(()) };
        let mut question = state.lists().question(lane);
        let waited = question.progress.have_wait(context, &held, &waiting, question.before);
        let mut lists = state.lists();
        if waited.is_ok() {
            lists.enter_wait(slot, &question);
        }
        let (_, mut unneeded) = lists.end_question(question, None);
        drop(lists);
        unneeded.forget(context);
        waited
    }
}
