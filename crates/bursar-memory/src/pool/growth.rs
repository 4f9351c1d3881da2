//! More memory where it is needed: frames moved, and frames made.

use super::ground::{Growth, Move, Placed};
use super::middle::Undone;
use super::runs::UNIT;
use super::{Pool, Want, hands};
use bursar_core::{
    Action, Bytes, DevicePtr, DriverError, Error, Frame, FrameKind, FrameSource, Holder, Record, RefusedFrame, Result,
    Status,
};
use std::ops::Range;

/// How often a request that is about to be refused looks again while others move frames about.
const ROUNDS: u32 = 1 << 16;

impl<F: FrameSource> Pool<F> {
    /// Grows for a request; where there is no memory for it, does what can be done about that and tries again.
    pub(super) fn grow_or_explain(&self, want: Want) -> Result<u64> {
        let context = self.context();
        let refused = |error: &Error| error.is_capacity();
        match self.take_or_grow(want) {
            Err(error) if refused(&error) => {}
            other => return other,
        }
        self.source.reap()?;
        self.wait_for_pending(self.settings.patience)?;
        match self.take_or_grow(want) {
            Err(error) if refused(&error) => {}
            other => return other,
        }
        context.trim();
        // What another thread has in hand may come back between a look and a refusal: only one that began with nothing in
        // anybody's hand counts.
        let mut quiet = self.middle().flights == 0;
        let mut outcome = self.take_or_grow(want);
        for _ in 0..ROUNDS {
            if quiet || !outcome.as_ref().is_err_and(refused) {
                break;
            }
            std::thread::yield_now();
            quiet = self.middle().flights == 0;
            outcome = self.take_or_grow(want);
        }
        outcome.map_err(|error| if refused(&error) { context.explain(error, Bytes(want.len * UNIT)) } else { error })
    }

    /// Takes what is free, or else plans, with the middle in hand for both: what others free in between fits, and there
    /// would be nothing to map.
    fn take_or_grow(&self, want: Want) -> Result<u64> {
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
                taken.map_or_else(|| self.take_or_grow(want), Ok)
            }
            Err((undone, error)) => {
                self.middle().undo(*undone, home);
                Err(error)
            }
        }
    }

    /// Makes, moves and maps the frames of a growth. What is more memory is made first, so that nothing has moved where
    /// there is none.
    fn carry_out(&self, mut growth: Growth) -> Result<(Growth, Vec<Frame>), (Box<Undone>, Error)> {
        let mut made = match self.make(&growth.make) {
            Ok(made) => made,
            Err(error) => return Err((Box::new(undone(growth, Vec::new(), Vec::new())), error)),
        };
        let mut moved = Vec::new();
        if let Err(error) = self.unmap_all(&mut growth.moves, |next| moved.push(next)) {
            return Err((Box::new(undone(growth, moved, made)), error));
        }
        let Growth { melt, melted, .. } = &mut growth;
        let given_back = self.unmap_all(melt, |Move { from, placed }| {
            melted.push((from, placed.len));
            self.release(placed.frame);
        });
        match given_back.and_then(|()| self.make(&growth.remake)) {
            Ok(mut remade) => made.append(&mut remade),
            Err(error) => return Err((Box::new(undone(growth, moved, made)), error)),
        }
        let frames = growth.spare.iter().chain(moved.iter().map(|moved| &moved.placed.frame)).chain(&made);
        if let Err((error, lost)) = self.map_all(growth.at, growth.need, frames) {
            let mut undone = undone(growth, moved, made);
            if lost {
                (undone.need, undone.loose) = (0, Vec::new());
            }
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

    /// Maps frames one after the other, `len` units in all. Where that fails nothing is mapped, or else, as the flag says,
    /// the frames are lost with their addresses: they can neither be used nor unmapped, and stay counted.
    fn map_all<'a>(&self, start: u64, len: u64, frames: impl Iterator<Item = &'a Frame>) -> Result<(), (Error, bool)> {
        let (context, mut at, mut mapped) = (self.context(), start, Ok(()));
        for frame in frames {
            mapped = hands::map(context, at, frame);
            if mapped.is_err() {
                break;
            }
            at += super::ground::units(frame.bytes());
        }
        mapped.and_then(|()| hands::allow(context, start, len)).map_err(|error| {
            let unmapped = if at > start { hands::unmap(context, start, at - start) } else { Ok(()) };
            let lost = unmapped.inspect_err(|&error| context.fault().record(error)).is_err();
            (context.failed(error), lost)
        })
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

    /// Gives a frame back that is mapped nowhere.
    fn release(&self, frame: Frame) {
        let bytes = frame.bytes();
        match self.source.release_frame(frame) {
            Ok(()) => self.middle().ground.gave_back(bytes),
            Err(RefusedFrame { frame, .. }) => self.middle().ground.keep(frame),
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

    /// Gives whole free frames back until no more than `keep` units are free; answers how much went.
    pub(super) fn give_back(&self, keep: u64) -> Bytes {
        let (moves, mut loose) = {
            let mut middle = self.middle();
            middle.flights += 1;
            middle.trim(keep)
        };
        let context = self.context();
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
        loose.into_iter().for_each(|frame| self.release(frame));
        self.middle().flights -= 1;
        if bytes > Bytes::ZERO {
            self.tell(Action::Trim, 0, bytes.get() / UNIT);
        }
        bytes
    }

    fn tell(&self, action: Action, at: u64, len: u64) {
        let context = self.context();
        if context.sink().wants(action) {
            let (ptr, granted) = (DevicePtr(at * UNIT), Bytes(len * UNIT));
            context.sink().emit(&Record { ptr, granted, ..Record::new(action, context.device()) });
        }
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

/// What is left of a growth of which some frames have been unmapped and some made.
fn undone(growth: Growth, moved: Vec<Move>, made: Vec<Frame>) -> Undone {
    let Growth { at, need, base, spare, mut moves, mut melt, melted, .. } = growth;
    moves.append(&mut melt);
    let vacated = moved.iter().map(|moved| (moved.from, moved.placed.len)).chain(melted).collect();
    let loose = spare.into_iter().chain(moved.into_iter().map(|moved| moved.placed.frame)).chain(made).collect();
    Undone { at, need, base, still: moves, vacated, loose }
}

impl<F: FrameSource> Drop for Pool<F> {
    fn drop(&mut self) {
        let waited = self.wait_for_pending(std::time::Duration::MAX);
        if let Err(Error::Driver(error)) = waited {
            self.context().fault().record(error);
        }
        self.give_back(0);
        let (events, empty) = {
            let mut middle = self.middle();
            (middle.take_events(), middle.ground.held() == 0)
        };
        events.into_iter().for_each(|event| hands::give_back(self.context(), event));
        let Range { start, end } = self.addresses;
        if empty
            && start < end
            && let Err(error) = hands::release_addresses(self.context(), start, end - start)
        {
            self.context().fault().record(error);
        }
    }
}
