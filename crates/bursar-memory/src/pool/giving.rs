//! Frames that leave a pool, or what is left of one, with no lock held.

use super::hands;
use super::plan::{Move, Stuck};
use super::runs::UNIT;
use super::shelf::Shelf;
use bursar_core::{
    Action, Bytes, DeviceContext, DevicePtr, DriverError, Frame, FrameKind, Record, RefusedFrame, Result,
};

/// Takes a frame back that is mapped nowhere, or refuses it.
pub(super) type Release<'a> = &'a dyn Fn(Frame) -> Result<(), RefusedFrame>;

impl Shelf {
    /// Tries again to unmap what could not be unmapped.
    pub(super) fn unstick(&self, context: &DeviceContext) -> Result<(), DriverError> {
        let mut stuck = {
            let mut middle = self.middle();
            let stuck = middle.ground.take_stuck();
            if stuck.is_empty() {
                return Ok(());
            }
            middle.flights += 1;
            stuck
        };
        let mut outcome = Ok(());
        while let Some(Stuck { at, len, .. }) = stuck.last() {
            outcome = hands::unmap(context, *at, *len);
            match (outcome.is_ok(), stuck.pop()) {
                (true, Some(free)) => self.middle().ground.unstuck(free),
                (_, still) => {
                    stuck.extend(still);
                    break;
                }
            }
        }
        let mut middle = self.middle();
        middle.flights -= 1;
        stuck.into_iter().for_each(|still| middle.ground.stick(still));
        outcome
    }

    /// Gives a frame back that is mapped nowhere; one that is not taken stays.
    pub(super) fn release(&self, frame: Frame, release: Release<'_>) {
        let bytes = frame.bytes();
        match release(frame) {
            Ok(()) => self.middle().ground.gave_back(bytes),
            Err(RefusedFrame { frame, .. }) => self.middle().ground.keep(frame),
        }
    }

    /// Gives whole free frames back until no more than `keep` units are free; returns how much went.
    pub(super) fn give_back(&self, context: &DeviceContext, keep: u64, release: Release<'_>) -> Bytes {
        if let Err(error) = self.unstick(context) {
            context.fault().record(error);
        }
        let (moves, mut loose) = {
            let mut middle = self.middle();
            middle.flights += 1;
            middle.trim(keep)
        };
        for Move { from, placed } in moves {
            let is_mapped = matches!(placed.frame.kind(), FrameKind::Pages(_));
            match if is_mapped { hands::unmap(context, from, placed.len) } else { Ok(()) } {
                Ok(()) => {
                    if is_mapped {
                        self.middle().ground.give_addresses(from, placed.len);
                    }
                    loose.push(placed.frame);
                }
                Err(error) => {
                    context.fault().record(error);
                    self.middle().enter(from, placed);
                }
            }
        }
        let bytes = Bytes(loose.iter().map(|frame| frame.bytes().get()).sum());
        loose.into_iter().for_each(|frame| self.release(frame, release));
        self.middle().flights -= 1;
        if bytes > Bytes::ZERO {
            tell(context, Action::Trim, 0, bytes.get() / UNIT);
        }
        bytes
    }
}

/// Tells the sink of a change to a pool's frames.
pub(super) fn tell(context: &DeviceContext, action: Action, at: u64, len: u64) {
    if context.sink().wants(action) {
        let (ptr, granted) = (DevicePtr(at * UNIT), Bytes(len * UNIT));
        context.sink().emit(&Record { ptr, granted, ..Record::new(action, context.device()) });
    }
}
