//! Frames made, mapped, unmapped and given back, with no lock held.

use super::giving::tell;
use super::plan::{Growth, Move, Undone, units};
use super::runs::UNIT;
use super::{PagePoolResource, hands};
use bursar_core::{Action, Bytes, DriverError, Error, Frame, FrameSource, Holder, Result};

impl<F: FrameSource> PagePoolResource<F> {
    /// Makes, moves and maps the frames of a growth. What is more memory is made first, so that nothing has moved where
    /// there is none.
    pub(super) fn carry_out(&self, mut growth: Growth) -> Result<(Growth, Vec<Frame>), (Box<Undone>, Error)> {
        let mut made = match self.make(&growth.make) {
            Ok(made) => made,
            Err(error) => return Err((Box::new(growth.undone(Vec::new(), Vec::new())), error)),
        };
        let mut moved = Vec::new();
        if let Err(error) = self.unmap_all(&mut growth.moves, |next| moved.push(next)) {
            return Err((Box::new(growth.undone(moved, made)), error));
        }
        let Growth { melt, melted, .. } = &mut growth;
        let given_back = self.unmap_all(melt, |Move { from, placed }| {
            melted.push((from, placed.len));
            self.release(placed.frame);
        });
        let remade = given_back.and_then(|()| self.make(&growth.remake));
        let spared = remade.and_then(|mut remade| {
            made.append(&mut remade);
            self.make_slack(&mut growth, &mut made)
        });
        if let Err(error) = spared {
            return Err((Box::new(growth.undone(moved, made)), error));
        }
        let frames = growth.spare.iter().chain(moved.iter().map(|moved| &moved.placed.frame)).chain(&made);
        if let Err((error, mapped)) = self.map_all(growth.at, growth.need, frames) {
            let mut undone = growth.undone(moved, made);
            undone.stick(mapped);
            return Err((Box::new(undone), error));
        }
        moved.iter().for_each(|moved| self.tell(Action::Remap, moved.from, moved.placed.len));
        growth.melted.iter().for_each(|&(from, len)| self.tell(Action::Remap, from, len));
        if !growth.make.is_empty() {
            self.tell(Action::Grow, growth.at, growth.make.iter().sum());
        }
        growth.moves = moved;
        Ok((growth, made))
    }

    /// Unmaps frames one after the other and hands each on; those that could not be unmapped stay.
    fn unmap_all(&self, frames: &mut Vec<Move>, mut then: impl FnMut(Move)) -> Result<()> {
        while let Some(next) = frames.pop() {
            if let Err(error) = hands::unmap(self.context(), next.from, next.placed.len) {
                frames.push(next);
                return Err(self.context().failed(error));
            }
            then(next);
        }
        Ok(())
    }

    /// Maps frames one after the other, `len` units in all. Where that fails nothing is mapped, or else the first frames
    /// are, so many units long, because they could not be unmapped.
    fn map_all<'a>(&self, start: u64, len: u64, frames: impl Iterator<Item = &'a Frame>) -> Result<(), (Error, u64)> {
        let (context, mut at, mut mapped) = (self.context(), start, Ok(()));
        for frame in frames {
            mapped = hands::map(context, at, frame);
            if mapped.is_err() {
                break;
            }
            at += units(frame.bytes());
        }
        mapped.and_then(|()| hands::allow(context, start, len)).map_err(|error| {
            let unmapped = if at > start { hands::unmap(context, start, at - start) } else { Ok(()) };
            let is_stuck = unmapped.inspect_err(|&error| context.fault().record(error)).is_err();
            (context.failed(error), if is_stuck { at - start } else { 0 })
        })
    }

    /// Tries again to unmap what could not be unmapped.
    pub(super) fn unstick(&self) -> Result<(), DriverError> {
        self.shelf.unstick(&self.context)
    }

    fn make(&self, lens: &[u64]) -> Result<Vec<Frame>> {
        let mut made = Vec::with_capacity(lens.len());
        for &len in lens {
            match self.source.create_frame(len * UNIT) {
                Ok(frame) => {
                    self.middle().ground.made(frame.bytes());
                    made.push(frame);
                }
                Err(error) => {
                    let had = made.iter().map(|frame| frame.bytes().get()).sum();
                    made.into_iter().for_each(|frame| self.release(frame));
                    return Err(of_all(error, Bytes(lens.iter().sum::<u64>() * UNIT), Bytes(had)));
                }
            }
        }
        Ok(made)
    }

    /// Makes what a growth has to spare, as far as there is memory for it.
    fn make_slack(&self, growth: &mut Growth, made: &mut Vec<Frame>) -> Result<()> {
        let mut lens = std::mem::take(&mut growth.slack).into_iter();
        while let Some(len) = lens.next() {
            match self.make(&[len]) {
                Ok(mut frame) => made.append(&mut frame),
                Err(error) => {
                    self.middle().ground.do_without(growth, len + lens.sum::<u64>());
                    return if error.is_capacity() { Ok(()) } else { Err(error) };
                }
            }
        }
        Ok(())
    }

    /// Gives a frame back that is mapped nowhere.
    pub(super) fn release(&self, frame: Frame) {
        self.shelf.release(frame, &|frame| self.source.release_frame(frame));
    }

    /// Gives whole free frames back until no more than `keep` units are free; returns how much went.
    pub(super) fn give_back(&self, keep: u64) -> Bytes {
        self.shelf.give_back(&self.context, keep, &|frame| self.source.release_frame(frame))
    }

    pub(super) fn tell(&self, action: Action, at: u64, len: u64) {
        tell(&self.context, action, at, len);
    }
}

/// The refusal of one frame, in the numbers of all that were to be made: `had` were, and have gone back.
fn of_all(refused: Error, requested: Bytes, had: Bytes) -> Error {
    match refused {
        Error::OutOfBudget { remaining, limit, .. } => {
            Error::OutOfBudget { requested, remaining: remaining.saturating_add(had), limit }
        }
        Error::OutOfMemory { device, free, total, .. } => {
            Error::OutOfMemory { device, requested, free: free.saturating_add(had), total }
        }
        other => other,
    }
}
