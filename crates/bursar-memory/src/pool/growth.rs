//! More memory where it is needed: frames moved, and frames made.
//!
//! Taking and planning are one step with the free lists locked, so that what others free in between is found and not
//! mapped again. The plan is carried out with nothing locked, and entered, or undone, afterwards.

use super::free_lists::Request;
use super::growth_plan::{FailedGrowth, FrameMove, GrowthBounds, GrowthPlan, PlacedFrame, units};
use super::layer::ADDRESSES;
use super::runs::UNIT;
use super::{PagePoolResource, driver_calls};
use bursar_core::{
    Action, Bytes, DeviceContext, DevicePtr, DriverError, Error, Frame, FrameKind, FrameSource, Record, Result, Status,
    Survey,
};

impl<F: FrameSource> PagePoolResource<F> {
    /// Takes what is free, or else grows, by moving frames or making them. Where as much had to be made as was
    /// `refused` before, that refusal is returned again.
    pub(super) fn take_or_grow(&self, request: Request, refused: Option<Error>) -> Result<u64> {
        let bounds = self.bounds();
        let mut lists = self.state.lists();
        self.check_awake(&lists)?;
        lists.sweep_asleep();
        if let Some(at) = lists.take(request) {
            return Ok(at);
        }
        if self.addresses.is_empty() {
            drop(lists);
            return self.grow_by_slab(request);
        }
        // A frame is given back only once it is mapped nowhere else.
        if lists.has_passed_vacated() {
            drop(lists);
            self.state.unmap_vacated(&self.context).map_err(|error| self.context.failed(error))?;
            return self.take_or_grow(request, refused);
        }
        if bounds.can_remake
            && let Some(split) = lists.plan_split(request)
        {
            drop(lists);
            self.enter(split)?;
            return self.take_or_grow(request, refused);
        }
        // Work may still touch what fits, or a limit was lowered, so it cannot be split: another place, or a part of an
        // exclusive frame after all.
        if let Some(at) = lists.take_apart(request).or_else(|| lists.take_any(request)) {
            return Ok(at);
        }
        let plan = lists.plan_growth(request, bounds);
        let plan = match (plan, refused) {
            (Some(plan), Some(refused)) if plan.make.iter().sum::<u64>() >= refused_units(&refused) => {
                lists.undo_growth(plan.give_up(Vec::new(), Vec::new()));
                return Err(refused);
            }
            (plan, _) => plan,
        };
        drop(lists);
        let Some(plan) = plan else {
            let error = DriverError::new("address_reserve", self.context.device(), Status::OutOfMemory);
            return Err(self.context.allocation_failed(error, Bytes(request.len * UNIT)));
        };
        self.enter(plan)?;
        let mut lists = self.state.lists();
        let taken = lists.take_any(request);
        lists.claim_common(request.slot);
        drop(lists);
        taken.map_or_else(|| self.take_or_grow(request, None), Ok)
    }

    /// Carries a plan out and enters it, or undoes it.
    fn enter(&self, plan: GrowthPlan) -> Result<()> {
        match self.carry_out(plan) {
            Ok((plan, made)) => {
                self.state.lists().enter_growth(plan, made);
                Ok(())
            }
            Err((failed, error)) => {
                let mut lists = self.state.lists();
                lists.undo_growth(*failed);
                if error.is_capacity() {
                    lists.space.note_refusal();
                }
                Err(error)
            }
        }
    }

    /// Grows where the device cannot map pages: by memory with an address of its own. Its last unit is never granted,
    /// so that two slabs which happen to lie side by side do not become one.
    fn grow_by_slab(&self, request: Request) -> Result<u64> {
        let room = request.len + request.align;
        let frame = self.source.create_frame(room * UNIT)?;
        let FrameKind::Slab(DevicePtr(ptr)) = frame.kind() else {
            self.release_frame(frame);
            return Err(Error::Unsupported { device: self.context.device(), what: "frames that cannot be mapped" });
        };
        let len = frame.bytes().get() / UNIT - 1;
        emit(&self.context, Action::Grow, ptr / UNIT, len + 1);
        let mut lists = self.state.lists();
        lists.space.count_made(frame.bytes());
        lists.enter_frame(ptr / UNIT, PlacedFrame { frame, len });
        let taken = lists.take(request);
        drop(lists);
        taken.map_or_else(|| self.grow_by_slab(request), Ok)
    }

    /// Makes, moves and maps the frames of a growth. More memory is made first, so that nothing has moved where there
    /// is none.
    fn carry_out(&self, mut plan: GrowthPlan) -> Result<(GrowthPlan, Vec<Frame>), (Box<FailedGrowth>, Error)> {
        let mut made = match self.make_frames(&plan.make) {
            Ok(made) => made,
            Err(error) => return Err((Box::new(plan.give_up(Vec::new(), Vec::new())), error)),
        };
        let mut moved = Vec::new();
        if let Err(error) = self.unmap_all(&mut plan.moves, |next| moved.push(next)) {
            return Err((Box::new(plan.give_up(moved, made)), error));
        }
        let GrowthPlan { consolidate, consolidated, .. } = &mut plan;
        let given_back = self.unmap_all(consolidate, |FrameMove { from, placed }| {
            consolidated.push((from, placed.len));
            self.release_frame(placed.frame);
        });
        let remade = given_back.and_then(|()| self.make_frames(&plan.remake));
        let complete = remade.and_then(|mut remade| {
            made.append(&mut remade);
            self.make_slack(&mut plan, &mut made)
        });
        if let Err(error) = complete {
            return Err((Box::new(plan.give_up(moved, made)), error));
        }
        let mapped = {
            let _following = (!plan.follow.is_empty()).then(|| self.state.follow());
            self.map_all(plan.at, plan.need, plan.frames(&moved, &made))
        };
        if let Err((error, mapped)) = mapped {
            let mut failed = plan.give_up(moved, made);
            failed.set_stuck(mapped);
            return Err((Box::new(failed), error));
        }
        moved.iter().for_each(|moved| emit(&self.context, Action::Remap, moved.from, moved.placed.len));
        plan.follow.iter().for_each(|follow| emit(&self.context, Action::Remap, follow.from, follow.placed.len));
        plan.consolidated.iter().for_each(|&(from, len)| emit(&self.context, Action::Remap, from, len));
        if !plan.make.is_empty() {
            emit(&self.context, Action::Grow, plan.at, plan.make.iter().sum());
        }
        plan.moves = moved;
        Ok((plan, made))
    }

    /// Unmaps frames one after the other and passes each to `then`; those that could not be unmapped stay.
    fn unmap_all(&self, frames: &mut Vec<FrameMove>, mut then: impl FnMut(FrameMove)) -> Result<()> {
        while let Some(next) = frames.pop() {
            if let Err(error) = driver_calls::unmap(&self.context, next.from, next.placed.len) {
                frames.push(next);
                return Err(self.context.failed(error));
            }
            then(next);
        }
        Ok(())
    }

    /// Maps frames one after the other, `len` units in all. Where that fails nothing is mapped, or else the first
    /// frames are, because they could not be unmapped: the error comes with their length.
    fn map_all<'a>(&self, start: u64, len: u64, frames: impl Iterator<Item = &'a Frame>) -> Result<(), (Error, u64)> {
        let (context, mut at, mut mapped) = (&self.context, start, Ok(()));
        for frame in frames {
            mapped = driver_calls::map(context, at, frame);
            if mapped.is_err() {
                break;
            }
            at += units(frame.bytes());
        }
        mapped.and_then(|()| driver_calls::allow_access(context, start, len)).map_err(|error| {
            let unmapped = if at > start { driver_calls::unmap(context, start, at - start) } else { Ok(()) };
            let is_stuck = unmapped.inspect_err(|&error| context.fault().record(error)).is_err();
            (context.failed(error), if is_stuck { at - start } else { 0 })
        })
    }

    /// Makes frames of these lengths, all of them or none.
    fn make_frames(&self, lens: &[u64]) -> Result<Vec<Frame>> {
        if lens.len() > FEW && !self.may_have(lens.iter().sum()) {
            // Refused as a whole, so that none is made first; where there is room by now, it is one frame.
            let whole = self.source.create_frame(lens.iter().sum::<u64>() * UNIT)?;
            self.state.lists().space.count_made(whole.bytes());
            return Ok(vec![whole]);
        }
        let mut made = Vec::with_capacity(lens.len());
        for &len in lens {
            match self.source.create_frame(len * UNIT) {
                Ok(frame) => {
                    self.state.lists().space.count_made(frame.bytes());
                    made.push(frame);
                }
                Err(error) => {
                    let had = made.iter().map(|frame| frame.bytes().get()).sum();
                    made.into_iter().for_each(|frame| self.release_frame(frame));
                    return Err(refusal_of_all(error, Bytes(lens.iter().sum::<u64>() * UNIT), Bytes(had)));
                }
            }
        }
        Ok(made)
    }

    /// Returns each limit below that is known, and what is used of it.
    fn limits(&self) -> Vec<(Bytes, Bytes)> {
        let survey = Survey::of_path(|survey| self.source.survey(survey));
        survey.limits().filter_map(|limit| limit.figures).collect()
    }

    /// Returns what the limits below and the device allow the pool.
    fn bounds(&self) -> GrowthBounds {
        let limits = self.limits();
        let device = (self.addresses.end - self.addresses.start) / ADDRESSES;
        GrowthBounds {
            can_remake: limits.iter().all(|(limit, used)| used <= limit),
            most: limits.iter().map(|&(limit, _)| units(limit)).fold(device, u64::min),
        }
    }

    /// Returns whether the limits below and the device had room for `len` units just now.
    fn may_have(&self, len: u64) -> bool {
        let left = self.limits().into_iter().map(|(limit, used)| limit.saturating_sub(used));
        let free = self.context.driver().memory(self.context.device()).map_or(Bytes::MAX, |memory| memory.free);
        left.fold(free, Bytes::min) >= Bytes(len * UNIT)
    }

    /// Makes the slack of a growth, as far as there is memory for it.
    fn make_slack(&self, plan: &mut GrowthPlan, made: &mut Vec<Frame>) -> Result<()> {
        let mut lens = std::mem::take(&mut plan.slack).into_iter();
        while let Some(len) = lens.next() {
            match self.make_frames(&[len]) {
                Ok(mut frame) => made.append(&mut frame),
                Err(error) => {
                    self.state.lists().space.give_up_slack(plan, len + lens.sum::<u64>());
                    return if error.is_capacity() { Ok(()) } else { Err(error) };
                }
            }
        }
        Ok(())
    }

    /// Gives a frame back that is mapped nowhere.
    fn release_frame(&self, frame: Frame) {
        self.state.release_frame(frame, &|frame| self.source.release_frame(frame));
    }
}

/// The number of frames up to which they are just made, and released again where there is no room for all.
const FEW: usize = 4;

/// Puts the refusal of one frame into the numbers of all that were to be made: `had` were, and have gone back.
fn refusal_of_all(mut refused: Error, whole: Bytes, had: Bytes) -> Error {
    if let Error::OutOfBudget { requested, remaining: left, .. } | Error::OutOfMemory { requested, free: left, .. } =
        &mut refused
    {
        (*requested, *left) = (whole, left.saturating_add(had));
    }
    refused
}

/// Returns how much was to be made when it was refused, in units.
fn refused_units(refused: &Error) -> u64 {
    match *refused {
        Error::OutOfBudget { requested, .. } | Error::OutOfMemory { requested, .. } => requested.get() / UNIT,
        _ => u64::MAX,
    }
}

/// Tells the sink of a change to a pool's frames.
pub(super) fn emit(context: &DeviceContext, action: Action, at: u64, len: u64) {
    if context.sink().wants(action) {
        let (ptr, granted) = (DevicePtr(at * UNIT), Bytes(len * UNIT));
        context.sink().emit(&Record { ptr, granted, ..Record::new(action, context.device()) });
    }
}
