//! How far streams have come with what was freed on them, asked with no lock held.

use super::hands;
use super::lane::Mark;
use super::middle::{Limbo, Question};
use super::runs::UNIT;
use super::shelf::Shelf;
use bursar_core::{Action, Bytes, DeviceContext, DriverError, Record, Result};
use std::time::{Duration, Instant};

/// How long a bounded wait sleeps between two looks.
const POLL: Duration = Duration::from_micros(50);

impl Shelf {
    /// Finds out how far a stream has come with what was freed on it. One that is idle has passed everything; one that is
    /// not is asked about an event that was recorded earlier, and is given one to be asked about later.
    pub(super) fn ask(&self, context: &DeviceContext, lane: usize) -> Result<(), DriverError> {
        let Some(held) = context.hold_slot_for_memory(lane)? else { return Ok(()) };
        let mut question = self.middle().question(lane);
        let idle = hands::is_idle(context, held.raw());
        let mut unneeded = None;
        let answer = match (idle, question.event.take()) {
            (Ok(true), mark) => {
                self.settle(context, &question, question.before);
                unneeded = mark.map(|mark| mark.event);
                Ok(())
            }
            (Ok(false), Some(mark)) => match hands::query(context, mark.event) {
                Ok(progress) if progress.is_complete() => {
                    self.settle(context, &question, mark.before);
                    unneeded = Some(mark.event);
                    Ok(())
                }
                other => {
                    unneeded = self.middle().keep_event(&question, mark);
                    other.map(drop)
                }
            },
            (Ok(false), None) => hands::record(context, held.raw()).map(|event| {
                unneeded = self.middle().keep_event(&question, Mark { event, before: question.before });
            }),
            (Err(error), mark) => {
                unneeded = mark.and_then(|mark| self.middle().keep_event(&question, mark));
                Err(error)
            }
        };
        unneeded.into_iter().for_each(|event| hands::give_back(context, event));
        answer
    }

    fn settle(&self, context: &DeviceContext, question: &Question, before: u64) {
        let found = self.middle().passed(question, before);
        if found > 0 {
            let granted = Bytes(found * UNIT);
            context.sink().emit(&Record { granted, ..Record::new(Action::Reap, context.device()) });
        }
    }

    /// Finds out, without waiting, what everyone may have by now. A stream that cannot be asked does not keep the others
    /// from being asked.
    pub(super) fn look_everywhere(&self, context: &DeviceContext) -> Result<(), DriverError> {
        let has_limbo = !self.middle().limbo.is_empty();
        if has_limbo {
            self.leave_limbo(context);
        }
        let lanes = self.middle().busy_lanes();
        let mut outcome = Ok(());
        for lane in lanes {
            outcome = outcome.and(self.ask(context, lane));
        }
        outcome
    }

    /// Frees what could not be put in order when it was freed, as far as it can be now. What still cannot was reported.
    #[cold]
    fn leave_limbo(&self, context: &DeviceContext) {
        let limbo = {
            let mut middle = self.middle();
            middle.flights += 1;
            std::mem::take(&mut middle.limbo)
        };
        let left: Vec<_> =
            limbo.into_iter().filter_map(|mut one| self.free_in_order(context, &mut one).err().map(|_| one)).collect();
        let mut middle = self.middle();
        middle.flights -= 1;
        middle.limbo.extend(left);
    }

    fn free_in_order(&self, context: &DeviceContext, limbo: &mut Limbo) -> Result<()> {
        let stream = context.lasting(limbo.stream)?;
        let has_run = |stream| context.has_run(stream, Duration::ZERO).unwrap_or(false);
        let is_over = has_run(limbo.home) && has_run(stream);
        if !is_over && limbo.home != stream {
            context.order_after(limbo.home, stream)?;
        }
        let held = context.hold_for_free(stream)?;
        if let Some(ptr) = limbo.untold.take() {
            hands::tell_freed(context, ptr, held.raw());
        }
        self.middle().give(stream.slot(), limbo.at, limbo.len);
        Ok(())
    }

    /// Waits, at most for `patience`, until everything that was freed is known to be done with, as far as its streams can
    /// be asked.
    pub(super) fn wait_for_pending(&self, context: &DeviceContext, patience: Duration) -> Result<()> {
        let start = Instant::now();
        self.drain(None, None);
        let look = || self.look_everywhere(context).map_err(|error| context.failed(error));
        if patience == Duration::MAX {
            return self.wait_for_all(context).map_err(|error| context.failed(error));
        }
        loop {
            look()?;
            if self.middle().unsettled() == 0 || start.elapsed() >= patience {
                return Ok(());
            }
            std::thread::sleep(POLL.min(patience));
        }
    }

    fn wait_for_all(&self, context: &DeviceContext) -> Result<(), DriverError> {
        let mut outcome = self.look_everywhere(context);
        if self.middle().unsettled() == 0 {
            return outcome;
        }
        if !self.middle().limbo.is_empty() {
            context.order_ended(Duration::MAX);
            self.leave_limbo(context);
        }
        let lanes = self.middle().busy_lanes();
        for lane in lanes {
            let waited = context.hold_slot_for_memory(lane).and_then(|held| match held {
                Some(held) => hands::synchronize(context, held.raw()),
                None => Ok(()),
            });
            outcome = outcome.and(waited);
        }
        let stuck = self.middle().limbo.first().and_then(|limbo| context.unordered(limbo.stream));
        outcome.and(self.look_everywhere(context)).and(stuck.map_or(Ok(()), Err))
    }
}
