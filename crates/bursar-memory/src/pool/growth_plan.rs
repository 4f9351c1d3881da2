//! The plan of a growth: made and entered with the free lists locked, carried out in between with nothing locked.

use super::free_lists::{FreeLists, Request};
use super::runs::{Run, UNIT};
use bursar_core::{Bytes, Frame};

/// Returns the length of a frame, in units.
pub(super) fn units(bytes: Bytes) -> u64 {
    bytes.get() / UNIT
}

/// A frame where it is mapped.
#[derive(Debug)]
pub(super) struct PlacedFrame {
    pub(super) frame: Frame,
    /// The units of it that can be granted.
    pub(super) len: u64,
}

/// A frame that is to be unmapped from where it is.
#[derive(Debug)]
pub(super) struct FrameMove {
    pub(super) from: u64,
    pub(super) placed: PlacedFrame,
}

/// The free list that a growth extends.
#[derive(Clone, Copy, Debug)]
pub(super) enum TargetList {
    /// The runs that every stream may have.
    Common,
    /// Those of the stream at this slot.
    Lane(usize),
}

/// The plan for a request that no free run fits: a stretch of addresses, and the frames to map there, in this order.
#[derive(Debug)]
pub(super) struct GrowthPlan {
    /// The first of the addresses, and the units that are missing there.
    pub(super) at: u64,
    pub(super) need: u64,
    /// The free run just before, which becomes one with them.
    pub(super) base: Option<Run>,
    /// The list that the base was taken from, and that the whole goes to.
    pub(super) target: TargetList,
    /// Frames that are mapped nowhere.
    pub(super) unmapped: Vec<Frame>,
    /// Frames that are free where they are.
    pub(super) moves: Vec<FrameMove>,
    /// Small frames that are free where they are, to be given back and made anew as larger ones.
    pub(super) consolidate: Vec<FrameMove>,
    /// The addresses and lengths of those that have been given back.
    pub(super) consolidated: Vec<(u64, u64)>,
    /// The lengths of frames to be made as more memory, and in place of those that were given back.
    pub(super) make: Vec<u64>,
    pub(super) remake: Vec<u64>,
    /// The lengths of frames to be made besides, if there is memory for them; they come last.
    pub(super) slack: Vec<u64>,
    /// Set where a frame is made anew at its own address.
    is_in_place: bool,
}

impl GrowthPlan {
    fn new((at, need): (u64, u64), base: Option<Run>, target: TargetList) -> Self {
        Self {
            at,
            need,
            base,
            target,
            unmapped: Vec::new(),
            moves: Vec::new(),
            consolidate: Vec::new(),
            consolidated: Vec::new(),
            make: Vec::new(),
            remake: Vec::new(),
            slack: Vec::new(),
            is_in_place: false,
        }
    }

    /// Makes the plan to make the frame at these addresses anew.
    pub(super) fn in_place(addresses: (u64, u64)) -> Self {
        Self { is_in_place: true, ..Self::new(addresses, None, TargetList::Common) }
    }

    /// Gives the plan up, once some frames have been unmapped and some made.
    pub(super) fn give_up(self, moved: Vec<FrameMove>, made: Vec<Frame>) -> FailedGrowth {
        let Self { at, mut need, base, target, unmapped, mut moves, mut consolidate, mut consolidated, .. } = self;
        if self.is_in_place {
            // The addresses are the frame's own: claimed while it is mapped there, and released once.
            need = if consolidate.is_empty() { need } else { 0 };
            consolidated.clear();
        }
        moves.append(&mut consolidate);
        let vacated = moved.iter().map(|moved| (moved.from, moved.placed.len)).chain(consolidated).collect();
        let unmapped =
            unmapped.into_iter().chain(moved.into_iter().map(|moved| moved.placed.frame)).chain(made).collect();
        FailedGrowth { at, need, base, target, unmoved: moves, vacated, unmapped, stuck: None }
    }
}

/// The rest of a plan that could not be carried out.
#[derive(Debug)]
pub(super) struct FailedGrowth {
    at: u64,
    need: u64,
    base: Option<Run>,
    target: TargetList,
    /// Frames that are still where they were.
    unmoved: Vec<FrameMove>,
    /// The addresses of frames that are mapped nowhere now.
    vacated: Vec<(u64, u64)>,
    /// Frames that are mapped nowhere now, in the order in which they were to be mapped.
    unmapped: Vec<Frame>,
    stuck: Option<StuckFrames>,
}

impl FailedGrowth {
    /// Sets the first frames apart, `len` units of them, which were mapped and cannot be unmapped.
    pub(super) fn set_stuck(&mut self, len: u64) {
        let mut mapped = 0;
        let is_mapped = |frame: &&Frame| {
            mapped += units(frame.bytes());
            mapped <= len
        };
        let count = self.unmapped.iter().take_while(is_mapped).count();
        let frames: Vec<_> = self.unmapped.drain(..count).collect();
        if len > 0 {
            self.stuck = Some(StuckFrames { at: self.at, len, frames });
            (self.at, self.need) = (self.at + len, self.need - len);
        }
    }
}

/// Frames that lie one after the other and could be neither used nor unmapped.
#[derive(Debug)]
pub(super) struct StuckFrames {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) frames: Vec<Frame>,
}

impl FreeLists {
    /// Plans how a stream gets a block that no run has room for; `None` where no addresses are left for it. Frames are
    /// made anew only if they `can_remake`: where a limit was lowered, what is given back is gone.
    ///
    /// Everything that the plan needs is taken out of the lists, so that nobody else gets it until the plan is entered
    /// or undone.
    pub(super) fn plan_growth(
        &mut self,
        Request { len, align, slot }: Request,
        can_remake: bool,
    ) -> Option<GrowthPlan> {
        let own = self.lane_if_open(slot);
        let ending = |end| own.and_then(|lane| lane.runs.ending_at(end)).or_else(|| self.common.ending_at(end));
        let base = self.space.best_base(len, align, ending);
        let addresses = self.space.claim(len, align, base)?;
        let target = match base {
            Some(base) => match self.lane(slot).runs.take_starting_at(base.at) {
                Some(_) => TargetList::Lane(slot),
                None => {
                    self.common.cut(base.range());
                    TargetList::Common
                }
            },
            None => TargetList::Common,
        };
        let mut plan = GrowthPlan::new(addresses, base, target);
        let shared = self.open_lane_count > 1;
        // The base was taken out of the lists above, so it counts as in use, like the `need` units that follow it.
        let in_use = self.space.held() - self.free_units() + plan.need;
        let used = len - base.map_or(0, |base| base.len_from(align)).min(len);
        if !can_remake {
            self.space.move_frames(&mut plan, &mut self.common);
        } else {
            self.space.choose_frames(&mut plan, used, &mut self.common, shared.then_some(in_use));
        }
        self.in_flight += 1;
        Some(plan)
    }

    /// Plans to split the frames of which a request would have a part, where the first run that fits is common.
    pub(super) fn plan_split(&mut self, Request { len, align, .. }: Request) -> Option<GrowthPlan> {
        let position = self.common.find_aligned(len, align)?;
        let (at, run) = (position.at.next_multiple_of(align), self.common.get(position));
        let frame = self.space.taken_in_part(at, len)?;
        let plan = self.space.plan_split(frame, (at, len), run, &mut self.common)?;
        self.in_flight += 1;
        Some(plan)
    }

    /// Enters a growth that was carried out: its frames lie where it says, one after the other.
    pub(super) fn enter_growth(&mut self, plan: GrowthPlan, made: Vec<Frame>) {
        self.in_flight -= 1;
        plan.moves.iter().for_each(|moved| self.space.release_range(moved.from, moved.placed.len));
        if !plan.is_in_place {
            plan.consolidated.iter().for_each(|&(from, len)| self.space.release_range(from, len));
        }
        let mut at = plan.at;
        for frame in plan.unmapped.into_iter().chain(plan.moves.into_iter().map(|m| m.placed.frame)).chain(made) {
            let len = units(frame.bytes());
            self.space.place(at, PlacedFrame { frame, len });
            at += len;
        }
        let stamp = plan.base.map_or(0, |base| base.stamp);
        let start = plan.base.map_or(plan.at, |base| base.at);
        self.put_back(plan.target, Run { at: start, len: plan.at + plan.need - start, stamp });
    }

    /// Undoes a plan that could not be carried out.
    pub(super) fn undo_growth(&mut self, failed: FailedGrowth) {
        self.in_flight -= 1;
        self.space.release_range(failed.at, failed.need);
        for FrameMove { from, placed } in failed.unmoved {
            self.enter_frame(from, placed);
        }
        for (from, len) in failed.vacated {
            self.space.release_range(from, len);
        }
        failed.unmapped.into_iter().for_each(|frame| self.space.keep_unmapped(frame));
        failed.stuck.into_iter().for_each(|stuck| self.space.keep_stuck(stuck));
        if let Some(base) = failed.base {
            self.put_back(failed.target, base);
        }
    }

    fn put_back(&mut self, target: TargetList, run: Run) {
        match target {
            TargetList::Common => self.add_common(run),
            TargetList::Lane(slot) => {
                let added = self.lane(slot).add(run);
                debug_assert!(added, "{run:?} was taken out");
            }
        }
    }

    /// Enters a frame where it is mapped, all of it free for every stream.
    pub(super) fn enter_frame(&mut self, at: u64, placed: PlacedFrame) {
        self.add_common(Run { at, len: placed.len, stamp: 0 });
        self.space.place(at, placed);
    }
}
