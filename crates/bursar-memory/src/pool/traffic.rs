//! Memory that goes from one stream to another: what is asked, and who waits for whom.

use super::lane::Mark;
use super::{PagePoolResource, Want, hands};
use bursar_core::{DriverError, FrameSource, Holder, Result};
use std::time::Duration;

impl<F: FrameSource> PagePoolResource<F> {
    /// Asks the streams that have freed much how far they are, for a large request that is met next.
    #[cold]
    fn look(&self) -> Result<()> {
        let lanes = self.middle().rich_lanes();
        lanes
            .into_iter()
            .try_for_each(|lane| self.shelf.ask(&self.context, lane))
            .map_err(|error| self.context().failed(error))
    }

    /// A block that neither the stream nor everyone has free: one that other streams are done with, one that they are not,
    /// behind a wait, one that a magazine keeps, or one that the pool grows by, in this order.
    #[cold]
    pub(super) fn find(&self, want: Want) -> Result<u64> {
        if self.middle().should_look(want.place, want.len) {
            self.look()?;
            let taken = self.middle().take(want.place, want.len, want.align);
            if let Some(at) = taken {
                return Ok(at);
            }
        }
        loop {
            self.look_everywhere().map_err(|error| self.context().failed(error))?;
            let taken = self.middle().take(want.place, want.len, want.align);
            if let Some(at) = taken.map_or_else(|| self.behind_a_wait(want), |at| Ok(Some(at)))? {
                return Ok(at);
            }
            if !self.drain(None, None) {
                return self.grow_or_explain(want);
            }
        }
    }

    /// What another stream has free and is not done with, behind a wait that is put into the stream it is for. What was
    /// freed longest ago comes first.
    fn behind_a_wait(&self, want: Want) -> Result<Option<u64>> {
        let fits = {
            let mut middle = self.middle();
            if let Some(at) = middle.take_seen(want.place, want.len, want.align) {
                return Ok(Some(at));
            }
            middle.lanes_that_fit(want.place, want.len, want.align)
        };
        for lane in fits {
            self.wait_for_lane(lane, want).map_err(|error| self.context().failed(error))?;
            let taken = self.middle().take_seen(want.place, want.len, want.align);
            if taken.is_some() {
                return Ok(taken);
            }
        }
        Ok(None)
    }

    /// Has the stream that wants something come after everything freed on another.
    fn wait_for_lane(&self, lane: usize, want: Want) -> Result<(), DriverError> {
        let context = self.context();
        let Some(held) = context.hold_slot_for_memory(lane)? else { return Ok(()) };
        let Some(waiting) = context.hold_slot(want.place) else { return Ok(()) };
        let question = self.middle().question(lane);
        let spare = question.event.map(|mark| mark.event);
        let recorded = hands::record(context, held.raw());
        let waited = recorded.and_then(|event| hands::wait(context, waiting.raw(), event).map(|()| event));
        let (mut middle, before) = (self.middle(), question.before);
        let unneeded = match waited {
            Ok(event) => {
                middle.waits(want.place, &question, before);
                [spare, middle.keep_event(&question, Mark { event, before })]
            }
            Err(_) => [recorded.ok(), question.event.and_then(|mark| middle.keep_event(&question, mark))],
        };
        drop(middle);
        unneeded.into_iter().flatten().for_each(|event| hands::give_back(context, event));
        waited.map(drop)
    }

    /// Finds out, without waiting, what everyone may have by now.
    pub(super) fn look_everywhere(&self) -> Result<(), DriverError> {
        self.shelf.look_everywhere(&self.context)
    }

    /// Waits, at most for `patience`, until everything that was freed is known to be done with, as far as its streams can
    /// be asked.
    pub(super) fn wait_for_pending(&self, patience: Duration) -> Result<()> {
        self.shelf.wait_for_pending(&self.context, patience)
    }
}
