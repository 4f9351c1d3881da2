//! More memory where it is needed: frames moved, and frames made.

use super::plan::Placed;
use super::runs::UNIT;
use super::{PagePoolResource, Want};
use bursar_core::{Action, Bytes, DevicePtr, DriverError, Error, FrameKind, FrameSource, Holder, Result, Status};

/// How often a request that is about to be refused looks again while others move frames about.
const ROUNDS: u32 = 1 << 16;

/// In how many of those it asks all streams again how far they are.
const LOOKS: u32 = 16;

impl<F: FrameSource> PagePoolResource<F> {
    /// Grows for a request; where there is no memory for it, does what can be done about that and tries again.
    pub(super) fn grow_or_explain(&self, want: Want) -> Result<u64> {
        let (context, bytes) = (self.context(), Bytes(want.len * UNIT));
        let refused = |outcome: &Result<u64>| outcome.as_ref().is_err_and(Error::is_capacity);
        let explained = |outcome: Result<u64>| outcome.map_err(|error| context.explain(error, bytes));
        let mut outcome = self.take_or_grow(want, None);
        if !refused(&outcome) {
            return outcome;
        }
        if outcome.as_ref().is_err_and(|error| is_beyond(error, bytes)) {
            return explained(outcome);
        }
        self.source.reap()?;
        self.wait_for_pending(self.settings.patience)?;
        outcome = self.take_or_grow(want, outcome.err());
        if !refused(&outcome) {
            return outcome;
        }
        context.trim();
        // What another thread has in hand may come back between a look and a refusal: only one that began with nothing in
        // anybody's hand counts.
        let mut quiet = self.middle().flights == 0;
        outcome = self.take_or_grow(want, None);
        for round in 0..ROUNDS {
            if !refused(&outcome) || (quiet && round >= LOOKS) {
                break;
            }
            std::thread::yield_now();
            quiet = self.middle().flights == 0;
            outcome = if round < LOOKS {
                // Others took what everyone may have and freed as much on their own streams since.
                self.drain(None, None);
                self.look_everywhere().map_err(|error| context.failed(error))?;
                self.take_or_grow(want, outcome.err())
            } else {
                self.take_or_grow(want, None)
            };
        }
        if refused(&outcome) { explained(outcome) } else { outcome }
    }

    /// Takes what is free, or else plans, with the middle in hand for both: what others free in between fits, and there
    /// would be nothing to map. Where as much had to be made as was `refused` before, that is the answer again.
    fn take_or_grow(&self, want: Want, refused: Option<Error>) -> Result<u64> {
        let mut middle = self.middle();
        if let Some(at) = middle.take(want.place, want.len, want.align) {
            return Ok(at);
        }
        if self.addresses.is_empty() {
            drop(middle);
            return self.add_slab(want);
        }
        let room = want.len + want.align - 1;
        let plan = middle.plan(want.place, room);
        let plan = match (plan, refused) {
            (Some((growth, home)), Some(refused)) if growth.make.iter().sum::<u64>() >= missing(&refused) => {
                middle.undo(growth.undone(Vec::new(), Vec::new()), home);
                return Err(refused);
            }
            (plan, _) => plan,
        };
        drop(middle);
        let Some((growth, home)) = plan else {
            let error = DriverError::new("address_reserve", self.context.device(), Status::OutOfMemory);
            return Err(self.context.allocation_failed(error, Bytes(room * UNIT)));
        };
        match self.carry_out(growth) {
            Ok((growth, frames)) => {
                let mut middle = self.middle();
                middle.grown(growth, home, frames);
                let taken = middle.take(want.place, want.len, want.align);
                middle.gather(want.place);
                drop(middle);
                taken.map_or_else(|| self.take_or_grow(want, None), Ok)
            }
            Err((undone, error)) => {
                self.middle().undo(*undone, home);
                Err(error)
            }
        }
    }

    /// Where the device cannot map pages: memory with an address of its own. Its last unit is never granted, so that two
    /// slabs which happen to lie side by side do not become one.
    fn add_slab(&self, want: Want) -> Result<u64> {
        let room = want.len + want.align;
        let frame = self.source.create_frame(room * UNIT)?;
        let FrameKind::Slab(DevicePtr(ptr)) = frame.kind() else {
            self.release(frame);
            return Err(Error::Unsupported { device: self.context().device(), what: "frames that cannot be mapped" });
        };
        let len = frame.bytes().get() / UNIT - 1;
        self.tell(Action::Grow, ptr / UNIT, len + 1);
        let mut middle = self.middle();
        middle.ground.made(frame.bytes());
        middle.enter(ptr / UNIT, Placed { frame, len });
        let taken = middle.take(want.place, want.len, want.align);
        drop(middle);
        taken.map_or_else(|| self.add_slab(want), Ok)
    }
}

/// Whether so much could never be granted, whatever is freed.
fn is_beyond(refused: &Error, bytes: Bytes) -> bool {
    match *refused {
        Error::OutOfBudget { limit, .. } => bytes > limit,
        Error::OutOfMemory { total, .. } => bytes > total,
        _ => false,
    }
}

/// How much was to be made, in units.
fn missing(refused: &Error) -> u64 {
    match *refused {
        Error::OutOfBudget { requested, .. } | Error::OutOfMemory { requested, .. } => requested.get() / UNIT,
        _ => u64::MAX,
    }
}
