//! The pool's one long range of addresses: where frames are mapped in it, and where nothing is.
//!
//! Frames are as long as [`FrameSizes`] says. Where a large block needs many small frames they are released and replaced
//! by larger ones, since driver calls cost by the frame, whatever its size: to release a frame takes half as long as to
//! move it. A pool that several streams share, when it must grow, grows to an eighteenth more than was in use since it
//! was trimmed; whole free frames are moved first.
//!
//! **A frame is unmapped only out of the common runs**, which hold nothing that work might still touch. What lies free on
//! the stream of a request *follows* it instead: the frame is mapped a second time, where it is needed, and the addresses
//! that it left are unmapped once the stream has passed what was freed there. So a program that runs ahead of its device
//! holds no more than one that waits for it.

use super::frame_sizes::{FrameSizes, pieces};
use super::growth_plan::{FollowingFrame, FrameMove, GrowthPlan, PlacedFrame, StuckFrames, units};
use super::runs::{Run, Runs};
use bursar_core::{Bytes, Frame};
use std::collections::BTreeMap;
use std::ops::Range;

/// The part by which a pool that several streams share may hold more than was ever in use at once: what lies free
/// between the blocks of one stream is not at once another's, and without slack frames would be moved for nearly every
/// large block.
const SLACK_PART: u64 = 18;

/// The number of frames, each at most a quarter as long as those that would be made of them, from which on it is cheaper
/// to make them anew: measured, a frame takes 26 µs to give back, 48 to move and 37 to make.
const GATHER_FROM: usize = 2;

/// The most frames that follow a stream in one growth: each takes as long as one that is moved, and what follows cannot be
/// gathered into larger frames.
const MOST_FOLLOWING: usize = 64;

/// The most addresses that frames which followed may have left and not been unmapped from, in times of what is held: there
/// are [more](super::layer::ADDRESSES) of them.
const MOST_VACATED: u64 = 4;

/// The addresses and frames of a pool, in units.
#[derive(Debug)]
pub(super) struct AddressSpace {
    sizes: FrameSizes,
    /// Frames by the address they are mapped at, or by their own where the device cannot map.
    placed: BTreeMap<u64, PlacedFrame>,
    /// Reserved addresses with nothing mapped there: first address to length.
    holes: BTreeMap<u64, u64>,
    /// Frames that are mapped nowhere.
    unmapped: Vec<Frame>,
    /// Frames that could not be unmapped and are to be.
    stuck: Vec<StuckFrames>,
    /// Addresses that frames left which followed their streams, and are still mapped at.
    vacated: Vec<VacatedRange>,
    held: u64,
    most_held: u64,
    /// The most that was in use when a pool of several streams grew.
    peak: u64,
    /// Set where more memory was refused, until a part of what was held then has been given back: no slack is asked for
    /// meanwhile, and blocks share nothing longer than a page.
    refused_at: Option<u64>,
    /// The longest frame that blocks share, as of the last growth.
    shared_len: u64,
    /// The pages of exclusive frames: those that are longer. One block has such a frame whole, or nobody has any of it.
    /// So are those of frames that sleep, which nobody is granted any of.
    exclusive: PageSet,
    /// The frames that sleep: first address to length.
    asleep: BTreeMap<u64, u64>,
}

impl AddressSpace {
    /// Makes the space of a range of addresses with nothing mapped there; an empty one where the device cannot map.
    pub(super) fn new(range: Range<u64>, sizes: FrameSizes) -> Self {
        let holes = if range.is_empty() { BTreeMap::new() } else { [(range.start, range.end - range.start)].into() };
        let exclusive = PageSet::new(range, sizes.page);
        Self {
            sizes,
            placed: BTreeMap::new(),
            holes,
            unmapped: Vec::new(),
            stuck: Vec::new(),
            vacated: Vec::new(),
            held: 0,
            most_held: 0,
            peak: 0,
            refused_at: None,
            shared_len: sizes.page,
            exclusive,
            asleep: BTreeMap::new(),
        }
    }

    /// Returns what the pool holds of the device, in units.
    pub(super) const fn held(&self) -> u64 {
        self.held
    }

    /// Returns the most that the pool ever held of the device, in units.
    pub(super) const fn most_held(&self) -> u64 {
        self.most_held
    }

    /// Returns what lies in no run and is not in use, in units: frames that are mapped nowhere, or stuck.
    pub(super) fn unmapped(&self) -> u64 {
        let frames = self.unmapped.iter().chain(self.stuck.iter().flat_map(|stuck| &stuck.frames));
        frames.map(|frame| units(frame.bytes())).sum()
    }

    /// Returns what is stuck, in units.
    pub(super) fn stuck(&self) -> u64 {
        self.stuck.iter().map(|stuck| stuck.len).sum()
    }

    /// Returns whether the pool is small.
    #[inline]
    pub(super) const fn is_small(&self) -> bool {
        self.held < self.sizes.small_pool
    }

    /// Returns the smallest length of a frame, in units.
    pub(super) const fn granule(&self) -> u64 {
        self.sizes.page
    }

    /// Returns the length of the largest frame that is mapped, in units.
    pub(super) fn largest_placed(&self) -> u64 {
        self.placed.values().map(|placed| units(placed.frame.bytes())).max().unwrap_or(0)
    }

    /// Returns the ranges that frames are mapped at, those side by side as one.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (&at, placed) in &self.placed {
            match ranges.last_mut() {
                Some(last) if last.end == at => last.end += units(placed.frame.bytes()),
                _ => ranges.push(at..at + units(placed.frame.bytes())),
            }
        }
        ranges
    }

    /// Returns the units in frames of which all that can be granted lies in runs, or which are mapped nowhere.
    pub(super) fn units_in_whole_frames(&self, free: &Runs) -> u64 {
        let whole = self.whole_frames(free).into_iter().filter_map(|whole| self.placed.get(&whole.at));
        let unmapped = self.unmapped.iter().map(|frame| units(frame.bytes()));
        whole.map(|placed| units(placed.frame.bytes())).chain(unmapped).sum()
    }

    /// Finds the place for a block of `len` units at a multiple of `align` where least has to be mapped: behind a free run
    /// that ends where addresses are free, or all of the addresses between two free runs. Where no run is beside addresses
    /// that reach, it is where there is most room. With `room`, that many addresses are left free behind it. `beside` returns
    /// the free run that ends at an address, and the one that begins at another. A frame cannot be mapped across others,
    /// so they must do so exactly.
    pub(super) fn find_place(
        &self,
        len: u64,
        align: u64,
        room: u64,
        beside: impl Fn(u64, u64) -> (Option<Run>, Option<Run>),
    ) -> Option<GrowthPlace> {
        let in_hole = |(&at, &hole): (&u64, &u64)| {
            let (before, after) = beside(at, at + hole);
            let before = before.filter(|run| run.len_from(align) > 0)?;
            let (have, need) = (before.len_from(align), self.missing(len, before.len_from(align)));
            if need + room <= hole {
                return Some(GrowthPlace { at, need, before: Some(before), after: None });
            }
            let after = after.filter(|after| room == 0 && have + hole + after.len >= len)?;
            // The end of the block shares no exclusive frame.
            if self.taken_in_part(after.at, len - have - hole).is_some() {
                return None;
            }
            Some(GrowthPlace { at, need: hole, before: Some(before), after: Some(after) })
        };
        let place = self.holes.iter().filter_map(in_hole).min_by_key(|place| place.need);
        place.or_else(|| self.roomiest(len, align))
    }

    /// Returns the place for a block of `len` units at a multiple of `align` where there is most room.
    fn roomiest(&self, len: u64, align: u64) -> Option<GrowthPlace> {
        let need = self.missing(len, 0);
        let room = |(&at, &hole): (&u64, &u64)| {
            let first = at.next_multiple_of(align);
            (first + need <= at + hole).then_some((hole, first))
        };
        let (_, at) = self.holes.iter().filter_map(room).max_by_key(|&(hole, _)| hole)?;
        Some(GrowthPlace { at, need, before: None, after: None })
    }

    /// Returns how much has to be mapped for `len` units of which `have` are there.
    fn missing(&self, len: u64, have: u64) -> u64 {
        len.saturating_sub(have).next_multiple_of(self.sizes.page)
    }

    /// Chooses the frames for a growth whose block ends after `used` of the units that are missing, in this order: frames
    /// that are mapped nowhere; frames that lie whole in `free` and not beside the growth, the largest that fit first,
    /// and of one size those in the shortest runs, which are of least use to others; frames that lie whole in the stream's
    /// `own` runs and follow it; new frames. Where several streams share the pool, with `in_use` units in use, new frames
    /// for slack are added.
    pub(super) fn choose_frames(
        &mut self,
        growth: &mut GrowthPlan,
        used: u64,
        free: &mut Runs,
        own: Option<&mut Runs>,
        in_use: Option<u64>,
    ) {
        // A longer frame would keep what is free of it; where frames are shared that long anyway, it may.
        let shares_end = self.shared_len == self.sizes.page && !used.is_multiple_of(self.sizes.page);
        let missing = self.take_whole(growth, free);
        let missing = own.map_or(missing, |own| self.take_following(growth, missing, own));
        let larger = if missing > 0 { self.extend_to_larger(growth, missing, free) } else { None };
        let each = if self.refused_at.is_some() { self.sizes.largest } else { self.shared_len };
        let (small, large) = growth.moves.drain(..).partition(|moved: &FrameMove| moved.placed.len * 4 <= each);
        (growth.consolidate, growth.moves) = (small, large);
        if growth.consolidate.len() < GATHER_FROM {
            growth.moves.append(&mut growth.consolidate);
        }
        // They are taken from the end: the shortest comes to lie last.
        growth.moves.sort_by_key(|moved| moved.placed.len);
        if let Some((at, rest)) = larger.and_then(|(at, rest)| Some((self.remove_frame(at, free)?, rest))) {
            // It is made anew: the part that is missing, and the rest behind it.
            let gathered: u64 = growth.consolidate.iter().map(|moved| moved.placed.len).sum();
            growth.remake = self.sizes.gathered(gathered + missing, each, shares_end);
            growth.remake.extend(pieces(rest, self.sizes.largest));
            growth.consolidate.push(at);
            return;
        }
        let gathered = growth.consolidate.iter().map(|moved| moved.placed.len).sum();
        growth.remake = self.sizes.gathered(gathered, each, shares_end);
        growth.make = match gathered {
            0 => self.sizes.for_block(missing, used.saturating_sub(growth.need - missing)),
            _ => pieces(missing, self.sizes.largest),
        };
        if shares_end
            && growth.make.is_empty()
            && growth.remake.is_empty()
            && growth.moves.first().is_some_and(|last| last.placed.len > self.sizes.page)
        {
            // The last frame is the one that the end of the block shares with the next.
            growth.consolidate.push(growth.moves.remove(0));
            let len = growth.consolidate.iter().map(|moved| moved.placed.len).sum();
            growth.remake = self.sizes.gathered(len, self.sizes.largest, true);
        }
        if missing > 0
            && let Some(in_use) = in_use
        {
            growth.slack = pieces(self.extend_by_slack(growth, missing, in_use), self.shared_len);
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
        let mut whole = self.whole_frames(free);
        self.shut(&whole);
        whole.sort_unstable_by_key(|whole| (whole.len, u64::MAX - whole.run));
        while missing > 0
            && let Some(nth) = whole.iter().rposition(|whole| whole.len <= missing)
        {
            whole.truncate(nth + 1);
            let Some(whole) = whole.pop() else { break };
            missing -= whole.len;
            growth.moves.extend(self.remove_frame(whole.at, free));
        }
        missing
    }

    /// Chooses frames that lie whole in the stream's `own` runs for a growth, the largest first, and one that is longer than
    /// what is missing if there are addresses for it; returns the units that are missing then.
    fn take_following(&mut self, growth: &mut GrowthPlan, mut missing: u64, own: &mut Runs) -> u64 {
        let vacated = self.vacated.iter().map(|vacated| vacated.len).sum::<u64>();
        if missing == 0 || vacated + missing > self.held * MOST_VACATED {
            return missing;
        }
        let mut whole = self.whole_frames(own);
        whole.sort_unstable_by_key(|whole| (whole.len, u64::MAX - whole.run));
        while missing > 0
            && growth.follow.len() < MOST_FOLLOWING
            && let Some(nth) = whole.iter().rposition(|whole| whole.len <= missing)
        {
            whole.truncate(nth + 1);
            let Some(whole) = whole.pop() else { break };
            missing -= whole.len;
            self.follow(growth, whole, own);
        }
        if missing > 0
            && let Some(larger) = self.extend_to_larger(growth, missing, own).map(|(at, _)| at)
            && let Some(larger) = self.whole_frames(own).into_iter().find(|whole| whole.at == larger)
        {
            missing = 0;
            self.follow(growth, larger, own);
        }
        missing
    }

    fn follow(&mut self, growth: &mut GrowthPlan, whole: WholeFrame, own: &mut Runs) {
        let removed = self.remove_frame(whole.at, own).into_iter();
        growth.follow.extend(removed.map(|FrameMove { from, placed }| FollowingFrame {
            from,
            placed,
            stamp: whole.stamp,
        }));
    }

    /// Keeps addresses that a frame has left, and is mapped at until a stream has passed a time.
    pub(super) fn vacate(&mut self, vacated: VacatedRange) {
        self.vacated.push(vacated);
    }

    /// Takes out the vacated addresses for which `is_passed` is true.
    pub(super) fn take_vacated(&mut self, is_passed: impl Fn(&VacatedRange) -> bool) -> Vec<VacatedRange> {
        self.vacated.extract_if(.., |vacated| is_passed(vacated)).collect()
    }

    /// Returns the addresses that are vacated and not unmapped.
    pub(super) fn vacated(&self) -> &[VacatedRange] {
        &self.vacated
    }

    /// Returns how much has to be made for a growth: what is missing once the frames that lie whole in `free` are moved,
    /// unless a larger one fits, because there are addresses behind the growth for the rest of it.
    pub(super) fn units_to_make(&self, growth: &GrowthPlan, free: &Runs) -> u64 {
        let mut lens: Vec<_> = self.whole_frames(free).into_iter().map(|whole| whole.len).collect();
        lens.sort_unstable();
        let (mut missing, mut larger) = (growth.need, None);
        for &len in lens.iter().rev() {
            match missing.checked_sub(len) {
                Some(rest) => missing = rest,
                None => larger = Some(len),
            }
        }
        let behind = self.holes.get(&(growth.at + growth.need)).copied().unwrap_or(0);
        if larger.is_some_and(|larger| larger - missing <= behind) { 0 } else { missing }
    }

    /// Returns the room behind a growth that every frame fits in.
    pub(super) const fn most_room(&self) -> u64 {
        self.sizes.largest
    }

    /// Chooses the frames for a growth as [`choose_frames`](Self::choose_frames) does, and makes none anew.
    pub(super) fn move_frames(&mut self, growth: &mut GrowthPlan, free: &mut Runs, own: Option<&mut Runs>) {
        let missing = self.take_whole(growth, free);
        let missing = own.map_or(missing, |own| self.take_following(growth, missing, own));
        let larger = if missing > 0 { self.extend_to_larger(growth, missing, free) } else { None };
        match larger.and_then(|(at, _)| self.remove_frame(at, free)) {
            Some(larger) => growth.moves.insert(0, larger),
            None => growth.make = pieces(missing, self.sizes.largest),
        }
    }

    /// Plans to split the exclusive frame at an address for a block, in place; where it does not lie whole in the free
    /// run, blocks share it from now on.
    pub(super) fn plan_split(&mut self, at: u64, block: (u64, u64), run: Run, free: &mut Runs) -> Option<GrowthPlan> {
        let len = self.placed.get(&at)?.len;
        if at < run.at || run.end() < at + len {
            self.open(at);
            return None;
        }
        let mut split = GrowthPlan::in_place((at, len));
        split.remake = self.sizes.split((at, len), block, self.shared_len);
        split.consolidate.extend(self.remove_frame(at, free));
        Some(split)
    }

    /// Brings the longest frame that blocks share up to date, in a pool that can hold `most` units and that several streams
    /// use, or one.
    pub(super) fn update_shared_len(&mut self, has_streams: bool, most: u64) {
        let shared_len = match self.refused_at {
            Some(_) => self.sizes.page,
            None => self.sizes.shared_len(self.held, has_streams, most),
        };
        if shared_len > self.shared_len && self.has_exclusive() {
            let short = self.placed.iter().filter(|(_, placed)| placed.len <= shared_len);
            short.for_each(|(&at, placed)| self.exclusive.remove(at, placed.len));
        }
        self.shared_len = shared_len;
    }

    /// Makes whole free frames exclusive again that are longer than blocks share.
    fn shut(&mut self, whole: &[WholeFrame]) {
        let long = whole.iter().filter(|whole| whole.len > self.shared_len);
        long.for_each(|whole| self.exclusive.insert(whole.at, whole.len));
    }

    /// Returns whether there are exclusive frames.
    #[inline(always)]
    pub(super) const fn has_exclusive(&self) -> bool {
        self.exclusive.count > 0
    }

    /// Returns the first exclusive frame of which a block would have a part and not the whole.
    pub(super) fn taken_in_part(&self, at: u64, len: u64) -> Option<u64> {
        if let Some(asleep) = self.first_asleep(at, len) {
            return Some(asleep);
        }
        [at, at + len - 1].into_iter().filter(|&unit| self.exclusive.contains(unit)).find_map(|unit| {
            let (&start, placed) = self.placed.range(..=unit).next_back()?;
            (start < at || at + len < start + placed.len).then_some(start)
        })
    }

    /// Returns the first frame that sleeps of which a block would have a part.
    fn first_asleep(&self, at: u64, len: u64) -> Option<u64> {
        let (&start, &asleep) = self.asleep.range(..at + len).next_back()?;
        (at < start + asleep).then_some(start)
    }

    /// Returns the frames that are mapped, in order: where each is, and how much of it can be granted.
    pub(super) fn placed(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.placed.iter().map(|(&at, placed)| (at, placed.len))
    }

    /// Takes a frame out that falls asleep, and returns whether blocks share it. Its addresses stay.
    pub(super) fn put_to_sleep(&mut self, at: u64) -> Option<(PlacedFrame, bool)> {
        let placed = self.placed.remove(&at)?;
        let is_exclusive = !self.exclusive.is_nowhere() && self.exclusive.contains(at);
        self.exclusive.insert(at, placed.len);
        self.asleep.insert(at, placed.len);
        Some((placed, is_exclusive))
    }

    /// Enters a frame that is awake again where it was.
    pub(super) fn wake(&mut self, at: u64, placed: PlacedFrame, is_exclusive: bool) {
        self.asleep.remove(&at);
        if !is_exclusive {
            self.exclusive.remove(at, placed.len);
        }
        self.placed.insert(at, placed);
    }

    /// Lets blocks share the frames of which a block has a part, however long they are.
    pub(super) fn open_for(&mut self, at: u64, len: u64) {
        debug_assert!(self.first_asleep(at, len).is_none(), "{len} at {at} are awake");
        while self.has_exclusive()
            && let Some(frame) = self.taken_in_part(at, len)
        {
            self.open(frame);
        }
    }

    /// Lets blocks share the frame at an address, however long it is.
    pub(super) fn open(&mut self, at: u64) {
        if let Some(placed) = self.placed.get(&at) {
            self.exclusive.remove(at, placed.len);
        }
    }

    /// Extends a growth by what a pool with `in_use` units in use should grow by besides what is missing, if there are
    /// addresses for it behind the growth, which are then taken; returns the units.
    fn extend_by_slack(&mut self, growth: &mut GrowthPlan, missing: u64, in_use: u64) -> u64 {
        self.peak = self.peak.max(in_use);
        let most = (self.peak + self.peak / SLACK_PART) / self.sizes.page * self.sizes.page;
        let (end, more) = (growth.at + growth.need, most.saturating_sub(self.held + missing));
        if more == 0 || self.refused_at.is_some() || self.holes.get(&end).is_none_or(|&hole| hole < more) {
            return 0;
        }
        self.claim_range(end, more);
        growth.need += more;
        more
    }

    /// Takes slack that could not be made off a growth, and asks for none until something is given back.
    pub(super) fn give_up_slack(&mut self, growth: &mut GrowthPlan, slack: u64) {
        growth.need -= slack;
        self.note_refusal();
        self.release_range(growth.at + growth.need, slack);
    }

    /// Forgets how much was in use: what was given back is not taken to spare again.
    pub(super) const fn forget_peak(&mut self) {
        self.peak = 0;
    }

    /// Enters that more memory was refused.
    pub(super) fn note_refusal(&mut self) {
        self.refused_at = Some(self.held);
    }

    /// Extends a growth so that the smallest whole free frame of more than `missing` units fits, if there are addresses
    /// for it behind the growth, which are then taken; returns where the frame is, and by how much it is longer.
    fn extend_to_larger(&mut self, growth: &mut GrowthPlan, missing: u64, free: &Runs) -> Option<(u64, u64)> {
        let whole = self.whole_frames(free).into_iter().filter(|whole| whole.len > missing).min_by_key(|w| w.len)?;
        let (end, more) = (growth.at + growth.need, whole.len - missing);
        if self.holes.get(&end).is_none_or(|&hole| hole < more) {
            return None;
        }
        self.claim_range(end, more);
        growth.need += more;
        Some((whole.at, more))
    }

    /// Returns the frames that lie whole in free runs.
    pub(super) fn whole_frames(&self, free: &Runs) -> Vec<WholeFrame> {
        let in_run = |run: Run| {
            let frames = self.placed.range(run.range()).map(|(&at, placed)| (at, placed.len));
            let inside = frames.filter(move |&(at, len)| at + len <= run.end());
            inside.map(move |(at, len)| WholeFrame { at, len, run: run.len, stamp: run.stamp })
        };
        free.iter_long(self.sizes.page.saturating_sub(1).max(1)).flat_map(in_run).collect()
    }

    /// Takes a whole free frame out, and its memory out of `free`, so that it can be unmapped.
    pub(super) fn remove_frame(&mut self, at: u64, free: &mut Runs) -> Option<FrameMove> {
        let placed = self.placed.remove(&at)?;
        self.exclusive.remove(at, placed.len);
        free.cut(at..at + placed.len);
        Some(FrameMove { from: at, placed })
    }

    /// Enters a frame at the address it is mapped at.
    pub(super) fn place(&mut self, at: u64, placed: PlacedFrame) {
        if placed.len > self.shared_len && !self.exclusive.is_nowhere() {
            self.exclusive.insert(at, placed.len);
        }
        self.placed.insert(at, placed);
    }

    /// Keeps a frame that is mapped nowhere.
    pub(super) fn keep_unmapped(&mut self, frame: Frame) {
        self.unmapped.push(frame);
    }

    /// Keeps frames that could not be unmapped, with their addresses.
    pub(super) fn keep_stuck(&mut self, stuck: StuckFrames) {
        self.stuck.push(stuck);
    }

    pub(super) fn take_stuck(&mut self) -> Vec<StuckFrames> {
        std::mem::take(&mut self.stuck)
    }

    /// Enters that stuck frames have been unmapped after all.
    pub(super) fn recover_stuck(&mut self, stuck: StuckFrames) {
        self.release_range(stuck.at, stuck.len);
        stuck.frames.into_iter().for_each(|frame| self.keep_unmapped(frame));
    }

    pub(super) fn take_unmapped(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.unmapped)
    }

    /// Counts a frame that was made.
    pub(super) fn count_made(&mut self, bytes: Bytes) {
        self.held += units(bytes);
        self.most_held = self.most_held.max(self.held);
    }

    /// Counts a frame that was given back.
    pub(super) fn count_released(&mut self, bytes: Bytes) {
        self.held -= units(bytes);
        // Frames that are made anew, or elsewhere, are no more room than there was.
        if self.refused_at.is_some_and(|held| self.held < held - held / 8) {
            self.refused_at = None;
        }
    }

    /// Takes all addresses out, if all of them are one hole; returns whether they were.
    pub(super) fn take_addresses(&mut self, all: &Range<u64>) -> bool {
        let is_whole = self.holes.len() == 1 && self.holes.get(&all.start) == Some(&(all.end - all.start));
        if is_whole {
            self.holes.clear();
        }
        is_whole
    }

    /// Claims addresses: takes them out of the hole they are in.
    pub(super) fn claim_range(&mut self, at: u64, len: u64) {
        let Some((&start, &hole)) = self.holes.range(..=at).next_back() else { return };
        debug_assert!(at + len <= start + hole, "addresses that are free");
        self.holes.remove(&start);
        if start < at {
            self.holes.insert(start, at - start);
        }
        if at + len < start + hole {
            self.holes.insert(at + len, start + hole - at - len);
        }
    }

    /// Releases addresses that nothing is mapped at any more, which become a hole, or part of one.
    pub(super) fn release_range(&mut self, mut at: u64, mut len: u64) {
        if len == 0 {
            return;
        }
        if let Some((&start, &hole)) = self.holes.range(..at).next_back()
            && start + hole == at
        {
            self.holes.remove(&start);
            (at, len) = (start, hole + len);
        }
        if let Some(next) = self.holes.remove(&(at + len)) {
            len += next;
        }
        self.holes.insert(at, len);
    }
}

/// The place of a growth: `need` units of addresses at `at`, and the free runs that become one with them.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrowthPlace {
    pub(super) at: u64,
    pub(super) need: u64,
    pub(super) before: Option<Run>,
    pub(super) after: Option<Run>,
}

/// A frame that lies whole in a free run of `run` units.
#[derive(Clone, Copy, Debug)]
pub(super) struct WholeFrame {
    pub(super) at: u64,
    pub(super) len: u64,
    run: u64,
    stamp: u64,
}

/// Addresses that a frame left to follow its stream. It is unmapped there once the stream at `slot` has passed what was
/// stamped `stamp`.
#[derive(Clone, Copy, Debug)]
pub(super) struct VacatedRange {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) slot: usize,
    pub(super) stamp: u64,
}

/// A set of the pages of a range of addresses.
#[derive(Debug)]
struct PageSet {
    start: u64,
    page: u64,
    pages: Vec<u64>,
    count: u64,
}

impl PageSet {
    /// Makes the empty set of a range of addresses; one that has no pages where the range is empty.
    fn new(range: Range<u64>, page: u64) -> Self {
        let words = (range.end - range.start).div_ceil(page).div_ceil(u64::from(u64::BITS));
        Self { start: range.start, page, pages: vec![0; words as usize], count: 0 }
    }

    const fn is_nowhere(&self) -> bool {
        self.pages.is_empty()
    }

    /// Returns the word and the bit of the page that an address lies in.
    #[inline]
    const fn bit(&self, at: u64) -> (usize, u64) {
        let page = (at - self.start) / self.page;
        ((page / u64::BITS as u64) as usize, 1 << (page % u64::BITS as u64))
    }

    #[inline]
    fn contains(&self, at: u64) -> bool {
        let (word, bit) = self.bit(at);
        self.pages[word] & bit != 0
    }

    fn insert(&mut self, at: u64, len: u64) {
        for page in 0..len / self.page {
            let (word, bit) = self.bit(at + page * self.page);
            self.count += u64::from(self.pages[word] & bit == 0);
            self.pages[word] |= bit;
        }
    }

    fn remove(&mut self, at: u64, len: u64) {
        if self.count > 0 {
            for page in 0..len / self.page {
                let (word, bit) = self.bit(at + page * self.page);
                self.count -= u64::from(self.pages[word] & bit != 0);
                self.pages[word] &= !bit;
            }
        }
    }
}
