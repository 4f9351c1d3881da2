//! The pool's one long range of addresses: where frames are mapped in it, and where nothing is.
//!
//! **Frames are small while a pool is small.** Up to 3 GiB they are pages, or two pages where several streams share the
//! pool; beyond, a 128th of the pool, up to 64 MiB. Where a large block needs many small frames they are released and
//! replaced by large ones, since driver calls cost per frame, whatever its size: to release a frame takes half as long as
//! to move it, and the next large block needs one frame where there were thirty. A pool that several streams share, when it
//! must grow, grows to a twelfth more than was ever in use; whole free frames are moved first.
//!
//! **A frame is unmapped only out of the common runs**, which hold nothing that work might still touch.

use super::growth_plan::{FrameMove, GrowthPlan, PlacedFrame, StuckFrames, units};
use super::runs::{Run, Runs, UNIT};
use bursar_core::{Bytes, Frame};
use std::collections::BTreeMap;
use std::ops::Range;

/// The sizes in which frames are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSizes {
    /// The smallest frame, which the device dictates, in units.
    pub(super) granule: u64,
    /// The largest frame, in units.
    pub(super) largest: u64,
}

/// The size up to which a pool is made of small frames, in units. Few blocks of a small pool are much larger than a
/// frame, and the unused ends of larger frames would be a notable part of the pool.
const SMALL_POOL: u64 = (3 << 30) / UNIT;

/// The number of frames that a larger pool is made of, so that moving what a large block needs stays cheap.
const FRAMES: u64 = 128;

/// The factor by which small frames are larger where several streams share the pool: it is in more pieces, and moved
/// about more.
const SHARED_FACTOR: u64 = 2;

/// The part by which a pool that several streams share may hold more than was ever in use at once: what lies free
/// between the blocks of one stream is not at once another's, and without slack frames would be moved for nearly every
/// large block.
const SLACK_PART: u64 = 12;

/// The number of frames, each at most a quarter as large as frames should be, from which on it is cheaper to make one
/// of them: giving a frame back takes half as long as moving it, and the next block that large will find one frame.
const CONSOLIDATE_FROM: usize = 4;

impl FrameSizes {
    /// Returns how long frames should be in a pool that holds `held` units.
    fn frame_len(self, held: u64, shared: bool) -> u64 {
        let small = if shared { self.granule * SHARED_FACTOR } else { self.granule };
        let coarse = if held < SMALL_POOL { 0 } else { (held / FRAMES).next_multiple_of(self.granule) };
        coarse.max(small).min(self.largest)
    }
}

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
    held: u64,
    /// The most that was in use when a pool of several streams grew.
    peak: u64,
    /// Set where slack was refused: no more is asked for until something is given back.
    is_slack_refused: bool,
}

/// Cuts a length into pieces of `frame_len`, the last of them shorter.
fn pieces(len: u64, frame_len: u64) -> Vec<u64> {
    (0..len.div_ceil(frame_len)).map(|nth| frame_len.min(len - nth * frame_len)).collect()
}

impl AddressSpace {
    /// Makes the space of a range of addresses with nothing mapped there; an empty one where the device cannot map.
    pub(super) fn new(range: Range<u64>, sizes: FrameSizes) -> Self {
        let holes = if range.is_empty() { BTreeMap::new() } else { [(range.start, range.end - range.start)].into() };
        Self {
            sizes,
            placed: BTreeMap::new(),
            holes,
            unmapped: Vec::new(),
            stuck: Vec::new(),
            held: 0,
            peak: 0,
            is_slack_refused: false,
        }
    }

    /// Returns what the pool holds of the device, in units.
    pub(super) const fn held(&self) -> u64 {
        self.held
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

    /// Returns the smallest length of a frame, in units.
    pub(super) const fn granule(&self) -> u64 {
        self.sizes.granule
    }

    /// Returns the length of the largest frame that is mapped, in units.
    pub(super) fn largest_placed(&self) -> u64 {
        self.placed.values().map(|placed| units(placed.frame.bytes())).max().unwrap_or(0)
    }

    /// Returns the units in frames of which all that can be granted lies in runs, or which are mapped nowhere.
    pub(super) fn units_in_whole_frames(&self, free: &Runs) -> u64 {
        let whole = self.whole_frames(free).into_iter().filter_map(|whole| self.placed.get(&whole.at));
        let unmapped = self.unmapped.iter().map(|frame| units(frame.bytes()));
        whole.map(|placed| units(placed.frame.bytes())).chain(unmapped).sum()
    }

    /// Returns the largest free run that ends where addresses are free, out of those that `ending_at` returns, if the
    /// addresses reach for `len` units. A frame cannot be mapped across others, so it must end there exactly.
    pub(super) fn best_base(&self, len: u64, ending_at: impl Fn(u64) -> Option<Run>) -> Option<Run> {
        let reaches = |run: &Run, hole: u64| hole >= self.missing(len, run.len);
        let bases = self.holes.iter().filter_map(|(&at, &hole)| ending_at(at).filter(|run| reaches(run, hole)));
        bases.max_by_key(|run| run.len)
    }

    /// Returns how much has to be mapped for `len` units of which `have` are there.
    fn missing(&self, len: u64, have: u64) -> u64 {
        len.saturating_sub(have).next_multiple_of(self.sizes.granule)
    }

    /// Takes addresses for `len` units: after `base`, which was found by [`best_base`](Self::best_base), or where there
    /// is most room. Returns the first of them and the units that have to be mapped.
    pub(super) fn claim(&mut self, len: u64, base: Option<Run>) -> Option<(u64, u64)> {
        let need = self.missing(len, base.map_or(0, |base| base.len));
        let at = match base {
            Some(base) => base.end(),
            None => *self.holes.iter().filter(|&(_, &hole)| hole >= need).max_by_key(|&(_, &hole)| hole)?.0,
        };
        self.claim_range(at, need);
        Some((at, need))
    }

    /// Chooses the frames for a growth, in this order: frames that are mapped nowhere; frames that lie whole in `free`
    /// and outside the growth's base, the largest that fit first, and of one size those in the shortest runs, which are
    /// of least use to others; new frames. Where several streams share the pool, with `in_use` units in use, new frames
    /// for slack are added.
    pub(super) fn choose_frames(&mut self, growth: &mut GrowthPlan, free: &mut Runs, in_use: Option<u64>) {
        let mut missing = growth.need;
        self.unmapped.sort_by_key(|frame| frame.bytes());
        while let Some(nth) = self.unmapped.iter().rposition(|frame| units(frame.bytes()) <= missing) {
            let frame = self.unmapped.remove(nth);
            missing -= units(frame.bytes());
            growth.unmapped.push(frame);
        }
        let mut whole = self.whole_frames(free);
        whole.sort_unstable_by_key(|whole| (whole.len, u64::MAX - whole.run));
        while missing > 0
            && let Some(nth) = whole.iter().rposition(|whole| whole.len <= missing)
        {
            whole.truncate(nth + 1);
            let Some(whole) = whole.pop() else { break };
            missing -= whole.len;
            growth.moves.extend(self.remove_frame(whole.at, free));
        }
        if missing > 0
            && let Some(larger) = self.extend_to_larger(growth, missing, free)
        {
            growth.moves.extend(self.remove_frame(larger, free));
            missing = 0;
        }
        let frame_len = self.sizes.frame_len(self.held, in_use.is_some());
        let (small, large) = growth.moves.drain(..).partition(|moved: &FrameMove| moved.placed.len * 4 <= frame_len);
        (growth.consolidate, growth.moves) = (small, large);
        if growth.consolidate.len() < CONSOLIDATE_FROM {
            growth.moves.append(&mut growth.consolidate);
        }
        growth.make = pieces(missing, frame_len);
        if missing > 0
            && let Some(in_use) = in_use
        {
            growth.slack = pieces(self.extend_by_slack(growth, missing, in_use), frame_len);
        }
        growth.remake = pieces(growth.consolidate.iter().map(|moved| moved.placed.len).sum(), frame_len);
    }

    /// Extends a growth by what a pool with `in_use` units in use should grow by besides what is missing, if there are
    /// addresses for it behind the growth, which are then taken; returns the units.
    fn extend_by_slack(&mut self, growth: &mut GrowthPlan, missing: u64, in_use: u64) -> u64 {
        self.peak = self.peak.max(in_use);
        let most = (self.peak + self.peak / SLACK_PART) / self.sizes.granule * self.sizes.granule;
        let (end, more) = (growth.at + growth.need, most.saturating_sub(self.held + missing));
        if more == 0 || self.is_slack_refused || self.holes.get(&end).is_none_or(|&hole| hole < more) {
            return 0;
        }
        self.claim_range(end, more);
        growth.need += more;
        more
    }

    /// Takes slack that could not be made off a growth, and asks for none until something is given back.
    pub(super) fn give_up_slack(&mut self, growth: &mut GrowthPlan, slack: u64) {
        growth.need -= slack;
        self.is_slack_refused = true;
        self.release_range(growth.at + growth.need, slack);
    }

    /// Extends a growth so that the smallest whole free frame of more than `missing` units fits, if there are addresses
    /// for it behind the growth, which are then taken; returns where the frame is.
    fn extend_to_larger(&mut self, growth: &mut GrowthPlan, missing: u64, free: &Runs) -> Option<u64> {
        let whole = self.whole_frames(free).into_iter().filter(|whole| whole.len > missing).min_by_key(|w| w.len)?;
        let (end, more) = (growth.at + growth.need, whole.len - missing);
        if self.holes.get(&end).is_none_or(|&hole| hole < more) {
            return None;
        }
        self.claim_range(end, more);
        growth.need += more;
        Some(whole.at)
    }

    /// Returns the frames that lie whole in free runs.
    pub(super) fn whole_frames(&self, free: &Runs) -> Vec<WholeFrame> {
        let in_run = |run: Run| {
            let frames = self.placed.range(run.range()).map(|(&at, placed)| (at, placed.len));
            let inside = frames.filter(move |&(at, len)| at + len <= run.end());
            inside.map(move |(at, len)| WholeFrame { at, len, run: run.len })
        };
        free.iter_long(self.sizes.granule.saturating_sub(1).max(1)).flat_map(in_run).collect()
    }

    /// Takes a whole free frame out, and its memory out of `free`, so that it can be unmapped.
    pub(super) fn remove_frame(&mut self, at: u64, free: &mut Runs) -> Option<FrameMove> {
        let placed = self.placed.remove(&at)?;
        free.cut(at..at + placed.len);
        Some(FrameMove { from: at, placed })
    }

    /// Enters a frame at the address it is mapped at.
    pub(super) fn place(&mut self, at: u64, placed: PlacedFrame) {
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
    }

    /// Counts a frame that was given back.
    pub(super) fn count_released(&mut self, bytes: Bytes) {
        self.held -= units(bytes);
        self.is_slack_refused = false;
    }

    /// Claims addresses: takes them out of the hole they are in.
    fn claim_range(&mut self, at: u64, len: u64) {
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

/// A frame that lies whole in a free run of `run` units.
#[derive(Clone, Copy, Debug)]
pub(super) struct WholeFrame {
    pub(super) at: u64,
    pub(super) len: u64,
    run: u64,
}
