//! The pool's one long range of addresses: where frames are mapped in it, and where nothing is.
//!
//! Frames are as long as [`FrameSizes`] says. `choice.rs` chooses those of a growth, `following.rs` those among them that
//! follow a stream.
//!
//! **A frame is unmapped only out of the common runs**, which hold nothing that work might still touch.

mod choice;
mod following;
mod holes;
mod page_set;

pub(super) use following::VacatedRange;

use super::frame_sizes::FrameSizes;
use super::growth_plan::{FrameMove, PlacedFrame, StuckFrames, units};
use super::runs::{Run, Runs, UNIT};
use bursar_core::{Bytes, DevicePtr, Frame};
use holes::Holes;
use page_set::PageSet;
use std::collections::BTreeMap;
use std::ops::Range;

/// The addresses and frames of a pool, in units.
#[derive(Debug)]
pub(super) struct AddressSpace {
    sizes: FrameSizes,
    /// Frames by the address they are mapped at, or by their own where the device cannot map.
    placed: BTreeMap<u64, PlacedFrame>,
    holes: Holes,
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
    /// Set once the stream of a growth was found to run ahead of the device, until frames are given back.
    runs_ahead: bool,
}

impl AddressSpace {
    /// Makes the space of a range of addresses with nothing mapped there; an empty one where the device cannot map.
    pub(super) fn new(range: Range<u64>, sizes: FrameSizes) -> Self {
        let holes = Holes::new(&range);
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
            runs_ahead: false,
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
        let in_hole = |(at, hole): (u64, u64)| {
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
        let room = |(at, hole): (u64, u64)| {
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

    /// Brings the longest frame that blocks share up to date, in a pool that can hold `most` units and that several streams
    /// use, or one.
    pub(super) fn update_shared_len(&mut self, has_streams: bool, most: u64) {
        let shared_len = match self.refused_at {
            Some(_) => self.sizes.page,
            None if self.runs_ahead && most > self.sizes.small_pool => self.sizes.ahead(self.held).largest,
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
        !self.exclusive.is_empty()
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

    /// Returns how many bytes of a range lie in frames that are mapped.
    pub(super) fn placed_bytes(&self, range: &Range<DevicePtr>) -> u64 {
        let before = self.placed.range(..range.end.0.div_ceil(UNIT)).rev();
        let part = |(&at, placed): (&u64, &PlacedFrame)| {
            (at * UNIT).max(range.start.0)..((at + placed.len) * UNIT).min(range.end.0)
        };
        before.map(part).take_while(|part| part.start < part.end).map(|part| part.end - part.start).sum()
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

    /// Takes the pages of a frame that sleeps out of which nothing wakes: `pieces` of it are left.
    pub(super) fn cut_asleep(&mut self, at: u64, pieces: &[Range<u64>]) {
        if let Some(len) = self.asleep.remove(&at) {
            self.exclusive.remove(at, len);
        }
        for piece in pieces {
            self.exclusive.insert(piece.start, piece.end - piece.start);
            self.asleep.insert(piece.start, piece.end - piece.start);
        }
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

    /// Forgets how much was in use, and that a stream ran ahead: what was given back is not taken to spare again.
    pub(super) const fn forget_past(&mut self) {
        (self.peak, self.runs_ahead) = (0, false);
    }

    /// Enters that more memory was refused.
    pub(super) fn note_refusal(&mut self) {
        self.refused_at = Some(self.held);
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
        self.holes.take_all(all)
    }

    /// Claims addresses that nothing is mapped at.
    pub(super) fn claim_range(&mut self, at: u64, len: u64) {
        self.holes.claim(at, len);
    }

    /// Releases addresses that nothing is mapped at any more.
    pub(super) fn release_range(&mut self, at: u64, len: u64) {
        self.holes.release(at, len);
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
