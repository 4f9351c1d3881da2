//! The plan of a growth: made and entered with the free lists locked, carried out in between with nothing locked.

use super::address_space::{GrowthPlace, VacatedRange};
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

/// A frame that lies free on the stream of a growth, whose work may still touch it. It follows the stream: it is mapped where
/// it is needed at once, and stays mapped where it was until the stream has passed what was freed there.
#[derive(Debug)]
pub(super) struct FollowingFrame {
    pub(super) from: u64,
    pub(super) placed: PlacedFrame,
    /// The stamp of the run that it lay in.
    pub(super) stamp: u64,
}

/// The bounds of a growth, which the limits below and the device set.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrowthBounds {
    /// Set where what is given back can be had again: not where a limit was lowered below what is in use.
    pub(super) can_remake: bool,
    /// The most that a pool can ever hold under them, in units.
    pub(super) most: u64,
}

/// A list of free runs.
#[derive(Clone, Copy, Debug)]
pub(super) enum RunList {
    /// The runs that every stream may have.
    Common,
    /// Those of the stream at this slot.
    Lane(usize),
}

/// A free run beside the addresses of a growth, and the list that it was taken from.
#[derive(Clone, Copy, Debug)]
struct RunBeside {
    run: Run,
    list: RunList,
}

/// The plan for a request that no free run fits: a stretch of addresses, and the frames to map there, in this order.
#[derive(Debug)]
pub(super) struct GrowthPlan {
    /// The first of the addresses, and the units that are missing there.
    pub(super) at: u64,
    pub(super) need: u64,
    /// The free runs just before and just after, which become one with them.
    beside: Vec<RunBeside>,
    /// The slot of the stream that it is for.
    slot: usize,
    /// Frames that follow their stream.
    pub(super) follow: Vec<FollowingFrame>,
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
    fn new((at, need): (u64, u64), beside: Vec<RunBeside>, slot: usize) -> Self {
        Self {
            at,
            need,
            beside,
            slot,
            follow: Vec::new(),
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
        Self { is_in_place: true, ..Self::new(addresses, Vec::new(), 0) }
    }

    /// Returns the frames that are mapped for the growth, in their order, once some were unmapped elsewhere and some made.
    pub(super) fn frames<'a>(&'a self, moved: &'a [FrameMove], made: &'a [Frame]) -> impl Iterator<Item = &'a Frame> {
        let following = self.follow.iter().map(|following| &following.placed.frame);
        following.chain(&self.unmapped).chain(moved.iter().map(|moved| &moved.placed.frame)).chain(made)
    }

    /// Gives the plan up, once some frames have been unmapped and some made.
    pub(super) fn give_up(self, moved: Vec<FrameMove>, made: Vec<Frame>) -> FailedGrowth {
        let Self { at, mut need, beside, slot, follow, unmapped, mut moves, mut consolidate, mut consolidated, .. } =
            self;
        if self.is_in_place {
            // The addresses are the frame's own: claimed while it is mapped there, and released once.
            need = if consolidate.is_empty() { need } else { 0 };
            consolidated.clear();
        }
        moves.append(&mut consolidate);
        let vacated = moved.iter().map(|moved| (moved.from, moved.placed.len)).chain(consolidated).collect();
        let unmapped =
            unmapped.into_iter().chain(moved.into_iter().map(|moved| moved.placed.frame)).chain(made).collect();
        FailedGrowth {
            at,
            need,
            beside,
            slot,
            follow,
            unmoved: moves,
            vacated,
            unmapped,
            stuck: None,
            mapped_twice: None,
        }
    }
}

/// The rest of a plan that could not be carried out.
#[derive(Debug)]
pub(super) struct FailedGrowth {
    at: u64,
    need: u64,
    beside: Vec<RunBeside>,
    slot: usize,
    /// Frames that were to follow their stream, and are where they were.
    follow: Vec<FollowingFrame>,
    /// Frames that are still where they were.
    unmoved: Vec<FrameMove>,
    /// The addresses of frames that are mapped nowhere now.
    vacated: Vec<(u64, u64)>,
    /// Frames that are mapped nowhere now, in the order in which they were to be mapped.
    unmapped: Vec<Frame>,
    stuck: Option<StuckFrames>,
    /// The addresses, and how many, that frames which were to follow were mapped at, and cannot be unmapped from.
    mapped_twice: Option<(u64, u64)>,
}

impl FailedGrowth {
    /// Sets the first frames apart, `len` units of them, which were mapped and cannot be unmapped. Those that were to follow
    /// are where they were besides.
    pub(super) fn set_stuck(&mut self, len: u64) {
        let twice = self.follow.iter().map(|following| following.placed.len).sum::<u64>().min(len);
        self.mapped_twice = (twice > 0).then_some((self.at, twice));
        (self.at, self.need) = (self.at + twice, self.need - twice);
        let len = len - twice;
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
    /// Plans how a stream gets a block that no run has room for; `None` where no addresses are left for it.
    ///
    /// Everything that the plan needs is taken out of the lists, so that nobody else gets it until the plan is entered
    /// or undone.
    pub(super) fn plan_growth(&mut self, request: Request, bounds: GrowthBounds) -> Option<GrowthPlan> {
        let Request { len, align, .. } = request;
        self.sweep_asleep();
        if self.lane_if_open(request.slot).is_some_and(|lane| !lane.has_passed_all()) {
            self.space.note_run_ahead();
        }
        let (place, mut plan) = self.plan_best_place(request)?;
        let shared = self.open_lane_count > 1;
        // What lies beside was taken out of the lists above, so it counts as in use, like the `need` units between.
        let in_use = self.space.held() - self.free_units() + plan.need;
        let used = (len - place.before.map_or(0, |run| run.len_from(align)).min(len)).min(place.need);
        self.space.update_shared_len(shared, bounds.most);
        let (space, common, own) = self.parts_for(request.slot);
        if !bounds.can_remake {
            space.move_frames(&mut plan, common, own);
        } else {
            space.choose_frames(&mut plan, used, common, own, shared.then_some(in_use));
        }
        self.in_flight += 1;
        Some(plan)
    }

    /// Plans where a growth goes: where least has to be mapped, unless frames have to be made for that. Then it is where
    /// there is room for the rest of a larger frame, if fewer have to be made there, or as few and slack has room too.
    fn plan_best_place(&mut self, request: Request) -> Option<(GrowthPlace, GrowthPlan)> {
        let (place, plan) = self.plan_place(request, 0)?;
        let make = self.space.units_to_make(&plan, &self.common);
        if make == 0 {
            return Some((place, plan));
        }
        self.give_up_place(plan);
        if let Some((place, plan)) = self.plan_place(request, self.space.most_room()) {
            let made_there = self.space.units_to_make(&plan, &self.common);
            if made_there < make || (made_there == make && self.open_lane_count > 1) {
                return Some((place, plan));
            }
            self.give_up_place(plan);
        }
        self.plan_place(request, 0)
    }

    fn give_up_place(&mut self, plan: GrowthPlan) {
        self.in_flight += 1;
        self.undo_growth(plan.give_up(Vec::new(), Vec::new()));
    }

    /// Plans where a growth goes, with so much room behind it; no frames are chosen yet.
    fn plan_place(&mut self, Request { len, align, slot }: Request, room: u64) -> Option<(GrowthPlace, GrowthPlan)> {
        let own = self.lane_if_open(slot).map(|lane| &lane.runs);
        let before = |end| own.and_then(|own| own.ending_at(end)).or_else(|| self.common.ending_at(end));
        let after = |start| own.and_then(|own| own.starting_at(start)).or_else(|| self.common.starting_at(start));
        let beside = |end, start| (before(end), after(start));
        let place = self.space.find_place(len, align, room, beside)?;
        self.space.claim_range(place.at, place.need);
        let beside = [place.before, place.after].into_iter().flatten().map(|run| self.take_beside(slot, run)).collect();
        Some((place, GrowthPlan::new((place.at, place.need), beside, slot)))
    }

    /// Takes a run out of the list it is in: the stream's own, or what is common.
    fn take_beside(&mut self, slot: usize, run: Run) -> RunBeside {
        let list = match self.lane(slot).runs.take_starting_at(run.at) {
            Some(_) => RunList::Lane(slot),
            None => {
                self.common.cut(run.range());
                RunList::Common
            }
        };
        RunBeside { run, list }
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
        let mut whole = Run { at: plan.at, len: plan.need, stamp: 0 };
        let mut list = RunList::Common;
        for &FollowingFrame { from, ref placed, stamp } in &plan.follow {
            self.space.vacate(VacatedRange { at: from, len: placed.len, slot: plan.slot, stamp });
            whole.stamp = whole.stamp.max(stamp);
            list = RunList::Lane(plan.slot);
        }
        let mut at = plan.at;
        let following = plan.follow.into_iter().map(|following| following.placed.frame);
        let moved = plan.moves.into_iter().map(|moved| moved.placed.frame);
        for frame in following.chain(plan.unmapped).chain(moved).chain(made) {
            let len = units(frame.bytes());
            self.space.place(at, PlacedFrame { frame, len });
            at += len;
        }
        // All of it belongs to the stream that a part of it belongs to.
        for beside in plan.beside {
            whole.at = whole.at.min(beside.run.at);
            whole.len += beside.run.len;
            whole.stamp = whole.stamp.max(beside.run.stamp);
            list = if matches!(beside.list, RunList::Lane(_)) { beside.list } else { list };
        }
        self.put_back(list, whole);
        self.update_tightest_from();
    }

    /// Undoes a plan that could not be carried out.
    pub(super) fn undo_growth(&mut self, failed: FailedGrowth) {
        self.in_flight -= 1;
        if let Some((at, len)) = failed.mapped_twice {
            self.space.vacate(VacatedRange { at, len, slot: failed.slot, stamp: 0 });
        }
        self.space.release_range(failed.at, failed.need);
        for FollowingFrame { from, placed, stamp } in failed.follow {
            self.put_back(RunList::Lane(failed.slot), Run { at: from, len: placed.len, stamp });
            self.space.place(from, placed);
        }
        for FrameMove { from, placed } in failed.unmoved {
            self.enter_frame(from, placed);
        }
        for (from, len) in failed.vacated {
            self.space.release_range(from, len);
        }
        failed.unmapped.into_iter().for_each(|frame| self.space.keep_unmapped(frame));
        failed.stuck.into_iter().for_each(|stuck| self.space.keep_stuck(stuck));
        failed.beside.into_iter().for_each(|beside| self.put_back(beside.list, beside.run));
    }

    /// Puts a run back that was taken out of a list.
    pub(super) fn put_back(&mut self, list: RunList, run: Run) {
        match list {
            RunList::Common => self.add_common(run),
            RunList::Lane(slot) => {
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
