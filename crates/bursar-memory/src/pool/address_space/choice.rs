//! The choice of frames for a growth.
//!
//! Where a large block needs many small frames they are released and replaced by larger ones, since driver calls cost by
//! the frame, whatever its size: to release a frame takes half as long as to move it. A pool that several streams share,
//! when it must grow, grows to an eighteenth more than was in use since it was trimmed; whole free frames are moved first.

use super::super::frame_sizes::{FrameSizes, pieces};
use super::super::growth_plan::{FrameMove, GrowthPlan, units};
use super::super::runs::{Run, Runs};
use super::{AddressSpace, WholeFrame};

/// The part by which a pool that several streams share may hold more than was ever in use at once: what lies free
/// between the blocks of one stream is not at once another's, and without slack frames would be moved for nearly every
/// large block.
const SLACK_PART: u64 = 18;

/// The number of frames, each at most a quarter as long as those that would be made of them, from which on it is cheaper
/// to make them anew: measured, a frame takes 26 µs to give back, 48 to move and 37 to make.
const GATHER_FROM: usize = 2;

impl AddressSpace {
    /// Chooses the frames for a growth whose block ends after `used` of the units that are missing, in this order: frames
    /// that are mapped nowhere; frames that lie whole in `free` and not beside the growth, the largest that fit first,
    /// and of one size those in the shortest runs, which are of least use to others; frames that lie whole in the stream's
    /// `own` runs and follow it; new frames. Where several streams share the pool, with `in_use` units in use, new frames
    /// for slack are added.
    pub(in super::super) fn choose_frames(
        &mut self,
        growth: &mut GrowthPlan,
        used: u64,
        free: &mut Runs,
        own: Option<&mut Runs>,
        in_use: Option<u64>,
    ) {
        let lengths = self.lengths_to_make();
        // A longer frame would keep what is free of it; where frames are shared that long anyway, it may.
        let shares_end = self.shared_len == self.sizes.page && !used.is_multiple_of(self.sizes.page);
        let missing = self.take_whole(growth, free);
        let missing = own.map_or(missing, |own| self.take_following(growth, missing, own));
        let larger = if missing > 0 { self.extend_to_larger(growth, missing, free) } else { None };
        let each = if self.refused_at.is_some() { lengths.largest } else { self.shared_len.min(lengths.largest) };
        let (small, large) = growth.moves.drain(..).partition(|moved: &FrameMove| moved.placed.len * 4 <= each);
        (growth.consolidate, growth.moves) = (small, large);
        if growth.consolidate.len() < GATHER_FROM {
            growth.moves.append(&mut growth.consolidate);
        }
        // They are taken from the end: the shortest comes to lie last.
        growth.moves.sort_by_key(|moved| moved.placed.len);
        if let Some(larger) = larger.and_then(|larger| self.remove_frame(larger.at, free)) {
            // It is made anew: the part that is missing, and the rest behind it.
            let gathered: u64 = growth.consolidate.iter().map(|moved| moved.placed.len).sum();
            growth.remake = lengths.gathered(gathered + missing, each, shares_end);
            growth.remake.extend(pieces(larger.placed.len - missing, lengths.largest));
            growth.consolidate.push(larger);
            return;
        }
        let gathered = growth.consolidate.iter().map(|moved| moved.placed.len).sum();
        growth.remake = lengths.gathered(gathered, each, shares_end);
        growth.make = match gathered {
            0 => lengths.for_block(missing, used.saturating_sub(growth.need - missing)),
            _ => pieces(missing, lengths.largest),
        };
        if shares_end
            && growth.make.is_empty()
            && growth.remake.is_empty()
            && growth.moves.first().is_some_and(|last| last.placed.len > self.sizes.page)
        {
            // The last frame is the one that the end of the block shares with the next.
            growth.consolidate.push(growth.moves.remove(0));
            let len = growth.consolidate.iter().map(|moved| moved.placed.len).sum();
            growth.remake = lengths.gathered(len, lengths.largest, true);
        }
        if missing > 0
            && let Some(in_use) = in_use
        {
            growth.slack = pieces(self.extend_by_slack(growth, missing, in_use), self.shared_len.min(lengths.largest));
        }
    }

    /// Chooses frames that are mapped nowhere or lie whole in `free` for a growth; returns the units that are missing
    /// then.
    fn take_whole(&mut self, growth: &mut GrowthPlan, free: &mut Runs) -> u64 {
        let mut missing = growth.need;
        self.unmapped.sort_by_key(|frame| frame.bytes());
        while let Some(nth) = self.unmapped.iter().rposition(|frame| units(frame.bytes()) <= missing) {
            let frame = self.unmapped.remove(nth);
            missing -= units(frame.bytes());
            growth.unmapped.push(frame);
        }
        let whole = self.whole_frames(free);
        self.shut(&whole);
        take_largest(whole, missing, usize::MAX, |whole| growth.moves.extend(self.remove_frame(whole.at, free)))
    }

    /// Returns how much has to be made for a growth: what is missing once the frames that lie whole in `free` are moved,
    /// unless a larger one fits, because there are addresses behind the growth for the rest of it.
    pub(in super::super) fn units_to_make(&self, growth: &GrowthPlan, free: &Runs) -> u64 {
        let mut lens: Vec<_> = self.whole_frames(free).into_iter().map(|whole| whole.len).collect();
        lens.sort_unstable();
        let (mut missing, mut larger) = (growth.need, None);
        for &len in lens.iter().rev() {
            match missing.checked_sub(len) {
                Some(rest) => missing = rest,
                None => larger = Some(len),
            }
        }
        let behind = self.holes.len_at(growth.at + growth.need);
        if larger.is_some_and(|larger| larger - missing <= behind) { 0 } else { missing }
    }

    /// Returns the lengths of frames that are made now.
    fn lengths_to_make(&self) -> FrameSizes {
        if self.runs_ahead { self.sizes.ahead(self.held) } else { self.sizes }
    }

    /// Enters that the device is not done with what the stream of a growth has freed.
    pub(in super::super) const fn note_run_ahead(&mut self) {
        self.runs_ahead = true;
    }

    /// Returns the room behind a growth that every frame fits in.
    pub(in super::super) const fn most_room(&self) -> u64 {
        self.sizes.largest
    }

    /// Chooses the frames for a growth as [`choose_frames`](Self::choose_frames) does, and makes none anew.
    pub(in super::super) fn move_frames(&mut self, growth: &mut GrowthPlan, free: &mut Runs, own: Option<&mut Runs>) {
        let missing = self.take_whole(growth, free);
        let missing = own.map_or(missing, |own| self.take_following(growth, missing, own));
        let larger = if missing > 0 { self.extend_to_larger(growth, missing, free) } else { None };
        match larger.and_then(|larger| self.remove_frame(larger.at, free)) {
            Some(larger) => growth.moves.insert(0, larger),
            None => growth.make = pieces(missing, self.lengths_to_make().largest),
        }
    }

    /// Plans to split the exclusive frame at an address for a block, in place; where it does not lie whole in the free
    /// run, blocks share it from now on.
    pub(in super::super) fn plan_split(
        &mut self,
        at: u64,
        block: (u64, u64),
        run: Run,
        free: &mut Runs,
    ) -> Option<GrowthPlan> {
        let len = self.placed.get(&at)?.len;
        if at < run.at || run.end() < at + len {
            self.open(at);
            return None;
        }
        let mut split = GrowthPlan::in_place((at, len));
        split.remake = self.lengths_to_make().split((at, len), block, self.shared_len);
        split.consolidate.extend(self.remove_frame(at, free));
        Some(split)
    }

    /// Extends a growth by what a pool with `in_use` units in use should grow by besides what is missing, if there are
    /// addresses for it behind the growth, which are then taken; returns the units.
    fn extend_by_slack(&mut self, growth: &mut GrowthPlan, missing: u64, in_use: u64) -> u64 {
        self.peak = self.peak.max(in_use);
        let most = (self.peak + self.peak / SLACK_PART) / self.sizes.page * self.sizes.page;
        let (end, more) = (growth.at + growth.need, most.saturating_sub(self.held + missing));
        if more == 0 || self.refused_at.is_some() || self.holes.len_at(end) < more {
            return 0;
        }
        self.claim_range(end, more);
        growth.need += more;
        more
    }

    /// Takes slack that could not be made off a growth, and asks for none until something is given back.
    pub(in super::super) fn give_up_slack(&mut self, growth: &mut GrowthPlan, slack: u64) {
        growth.need -= slack;
        self.note_refusal();
        self.release_range(growth.at + growth.need, slack);
    }

    /// Extends a growth so that the smallest whole free frame of more than `missing` units fits, if there are addresses
    /// for it behind the growth, which are then taken; returns the frame.
    pub(super) fn extend_to_larger(
        &mut self,
        growth: &mut GrowthPlan,
        missing: u64,
        free: &Runs,
    ) -> Option<WholeFrame> {
        let whole = self.whole_frames(free).into_iter().filter(|whole| whole.len > missing).min_by_key(|w| w.len)?;
        let (end, more) = (growth.at + growth.need, whole.len - missing);
        if self.holes.len_at(end) < more {
            return None;
        }
        self.claim_range(end, more);
        growth.need += more;
        Some(whole)
    }
}

/// Takes whole free frames of no more than `missing` units together, the largest that fit first, and of one size those in
/// the shortest runs, which are of least use to others; at most so many. Returns the units that are missing then.
pub(super) fn take_largest(
    mut whole: Vec<WholeFrame>,
    mut missing: u64,
    most: usize,
    mut take: impl FnMut(WholeFrame),
) -> u64 {
    whole.sort_unstable_by_key(|whole| (whole.len, u64::MAX - whole.run));
    for _ in 0..most {
        let Some(nth) = whole.iter().rposition(|whole| whole.len <= missing) else { break };
        whole.truncate(nth + 1);
        let Some(whole) = whole.pop() else { break };
        missing -= whole.len;
        take(whole);
    }
    missing
}
