//! Where frames lie in the pool's one long range of addresses, and where there are none.

use super::plan::{Growth, Move, Placed, Stuck, units};
use super::runs::{Run, Runs, UNIT};
use bursar_core::{Bytes, Frame};
use std::collections::BTreeMap;
use std::ops::Range;

/// How large frames are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSizes {
    /// The least, which the device dictates, in units.
    pub(super) granule: u64,
    /// The most, in units.
    pub(super) most: u64,
}

/// Up to this much, a pool is made of small frames: few blocks are large beside them, and what is left over at the ends of
/// blocks must not weigh. In units.
const FINE: u64 = (3 << 30) / UNIT;

/// Beyond it, how many frames a pool is made of, so that moving what a large block needs stays cheap.
const FRAMES: u64 = 128;

/// What several streams share is in more pieces, and moved about more: how many times larger its small frames are.
const SHARED: u64 = 2;

/// What several streams share may hold this part more than was ever in use at once: what lies free between the blocks of
/// one stream is not at once another's, and without room to spare frames would be moved for nearly every large block.
const SLACK: u64 = 12;

/// From how many frames on it is cheaper to make one of them, where each is at most a quarter as large: giving a frame
/// back takes half as long as moving it, and the next block that large will find one frame.
const MELT: usize = 4;

impl FrameSizes {
    /// How long frames of a pool that holds so much should be.
    fn aim(self, held: u64, shared: bool) -> u64 {
        let small = if shared { self.granule * SHARED } else { self.granule };
        let coarse = if held < FINE { 0 } else { (held / FRAMES).next_multiple_of(self.granule) };
        coarse.max(small).min(self.most)
    }
}

/// The frames of a pool, in units.
#[derive(Debug)]
pub(super) struct Ground {
    sizes: FrameSizes,
    /// Frames by where they are mapped, or by where they are where the device cannot map.
    placed: BTreeMap<u64, Placed>,
    /// Reserved addresses with nothing behind them.
    holes: BTreeMap<u64, u64>,
    /// Frames that are mapped nowhere.
    spare: Vec<Frame>,
    /// Frames that are to be unmapped where they are.
    stuck: Vec<Stuck>,
    held: u64,
    /// The most that was in use when a pool of several streams grew.
    peak: u64,
    /// Whether what was asked for to spare was refused, since when no more is asked for until something is given back.
    is_tight: bool,
}

/// A length in pieces of `aim`, the last of them shorter.
fn pieces(len: u64, aim: u64) -> Vec<u64> {
    (0..len.div_ceil(aim)).map(|nth| aim.min(len - nth * aim)).collect()
}

impl Ground {
    /// A range of addresses with nothing behind it; none where the device cannot map.
    pub(super) fn new(range: Range<u64>, sizes: FrameSizes) -> Self {
        let holes = if range.is_empty() { BTreeMap::new() } else { [(range.start, range.end - range.start)].into() };
        Self {
            sizes,
            placed: BTreeMap::new(),
            holes,
            spare: Vec::new(),
            stuck: Vec::new(),
            held: 0,
            peak: 0,
            is_tight: false,
        }
    }

    /// What the pool holds of the device, in units.
    pub(super) const fn held(&self) -> u64 {
        self.held
    }

    /// What lies in no run and is not in use, in units.
    pub(super) fn spare(&self) -> u64 {
        let frames = self.spare.iter().chain(self.stuck.iter().flat_map(|stuck| &stuck.frames));
        frames.map(|frame| units(frame.bytes())).sum()
    }

    /// The largest free run that ends where addresses are free, out of those that `ending_at` knows, if the addresses
    /// reach for `len` units. A frame cannot be mapped across others, so it must end there exactly.
    pub(super) fn best_base(&self, len: u64, ending_at: impl Fn(u64) -> Option<Run>) -> Option<Run> {
        let reaches = |run: &Run, hole: u64| hole >= self.missing(len, run.len);
        let bases = self.holes.iter().filter_map(|(&at, &hole)| ending_at(at).filter(|run| reaches(run, hole)));
        bases.max_by_key(|run| run.len)
    }

    /// How much has to be mapped for `len` units of which `have` are there.
    fn missing(&self, len: u64, have: u64) -> u64 {
        len.saturating_sub(have).next_multiple_of(self.sizes.granule)
    }

    /// Takes addresses for `len` units: after `base`, which was found by [`best_base`](Self::best_base), or where there is
    /// most room.
    pub(super) fn claim(&mut self, len: u64, base: Option<Run>) -> Option<Growth> {
        let need = self.missing(len, base.map_or(0, |base| base.len));
        let at = match base {
            Some(base) => base.end(),
            None => *self.holes.iter().filter(|&(_, &hole)| hole >= need).max_by_key(|&(_, &hole)| hole)?.0,
        };
        self.take_addresses(at, need);
        Some(Growth {
            at,
            need,
            base,
            spare: Vec::new(),
            moves: Vec::new(),
            melt: Vec::new(),
            melted: Vec::new(),
            make: Vec::new(),
            remake: Vec::new(),
            slack: Vec::new(),
        })
    }

    /// Finds the frames for a growth: spare ones, then those that lie whole in `free` and outside its base, the largest
    /// that fit first, and of one size those in short runs, which are of least use where they are; then new ones, and some
    /// to spare where several streams share the pool, with so much `in_use`.
    pub(super) fn supply(&mut self, growth: &mut Growth, free: &mut Runs, in_use: Option<u64>) {
        let mut missing = growth.need;
        self.spare.sort_by_key(|frame| frame.bytes());
        while let Some(nth) = self.spare.iter().rposition(|frame| units(frame.bytes()) <= missing) {
            let frame = self.spare.remove(nth);
            missing -= units(frame.bytes());
            growth.spare.push(frame);
        }
        let mut whole = self.whole_frames(free);
        whole.sort_unstable_by_key(|whole| (whole.len, u64::MAX - whole.run));
        while missing > 0
            && let Some(nth) = whole.iter().rposition(|whole| whole.len <= missing)
        {
            whole.truncate(nth + 1);
            let Some(whole) = whole.pop() else { break };
            missing -= whole.len;
            growth.moves.extend(self.lift(whole.at, free));
        }
        if missing > 0
            && let Some(larger) = self.larger(growth, missing, free)
        {
            growth.moves.extend(self.lift(larger, free));
            missing = 0;
        }
        let aim = self.sizes.aim(self.held, in_use.is_some());
        let (small, large) = growth.moves.drain(..).partition(|moved: &Move| moved.placed.len * 4 <= aim);
        (growth.melt, growth.moves) = (small, large);
        if growth.melt.len() < MELT {
            growth.moves.append(&mut growth.melt);
        }
        growth.make = pieces(missing, aim);
        if missing > 0
            && let Some(in_use) = in_use
        {
            growth.slack = pieces(self.slack(growth, missing, in_use), aim);
        }
        growth.remake = pieces(growth.melt.iter().map(|moved| moved.placed.len).sum(), aim);
    }

    /// How much a pool of which so much is in use should grow by besides what is missing, as far as there are addresses for
    /// it behind the growth, which are then taken.
    fn slack(&mut self, growth: &mut Growth, missing: u64, in_use: u64) -> u64 {
        self.peak = self.peak.max(in_use);
        let most = (self.peak + self.peak / SLACK) / self.sizes.granule * self.sizes.granule;
        let (end, more) = (growth.at + growth.need, most.saturating_sub(self.held + missing));
        if more == 0 || self.is_tight || self.holes.get(&end).is_none_or(|&hole| hole < more) {
            return 0;
        }
        self.take_addresses(end, more);
        growth.need += more;
        more
    }

    /// Takes what could not be made to spare off a growth, and asks for none until something is given back.
    pub(super) fn do_without(&mut self, growth: &mut Growth, slack: u64) {
        growth.need -= slack;
        self.is_tight = true;
        self.give_addresses(growth.at + growth.need, slack);
    }

    /// The smallest whole free frame of more than `missing` units, if there are addresses for it behind the growth, which
    /// are then taken.
    fn larger(&mut self, growth: &mut Growth, missing: u64, free: &Runs) -> Option<u64> {
        let whole = self.whole_frames(free).into_iter().filter(|whole| whole.len > missing).min_by_key(|w| w.len)?;
        let (end, more) = (growth.at + growth.need, whole.len - missing);
        if self.holes.get(&end).is_none_or(|&hole| hole < more) {
            return None;
        }
        self.take_addresses(end, more);
        growth.need += more;
        Some(whole.at)
    }

    /// The frames that lie whole in free runs.
    pub(super) fn whole_frames(&self, free: &Runs) -> Vec<Whole> {
        let in_run = |run: Run| {
            let frames = self.placed.range(run.range()).map(|(&at, placed)| (at, placed.len));
            let inside = frames.filter(move |&(at, len)| at + len <= run.end());
            inside.map(move |(at, len)| Whole { at, len, run: run.len })
        };
        free.iter_long(self.sizes.granule.saturating_sub(1).max(1)).flat_map(in_run).collect()
    }

    /// Takes a whole free frame out of its place.
    pub(super) fn lift(&mut self, at: u64, free: &mut Runs) -> Option<Move> {
        let placed = self.placed.remove(&at)?;
        free.cut(at..at + placed.len);
        Some(Move { from: at, placed })
    }

    /// Puts a frame in its place; what it has there becomes free.
    pub(super) fn place(&mut self, at: u64, placed: Placed) {
        self.placed.insert(at, placed);
    }

    /// Keeps a frame that is mapped nowhere.
    pub(super) fn keep(&mut self, frame: Frame) {
        self.spare.push(frame);
    }

    /// Keeps frames that could not be unmapped, with their addresses.
    pub(super) fn stick(&mut self, stuck: Stuck) {
        self.stuck.push(stuck);
    }

    pub(super) fn take_stuck(&mut self) -> Vec<Stuck> {
        std::mem::take(&mut self.stuck)
    }

    /// Enters that such frames have been unmapped after all.
    pub(super) fn unstuck(&mut self, free: Stuck) {
        self.give_addresses(free.at, free.len);
        free.frames.into_iter().for_each(|frame| self.keep(frame));
    }

    pub(super) fn take_spare(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.spare)
    }

    /// Counts a frame that was made, or one that was given back.
    pub(super) fn made(&mut self, bytes: Bytes) {
        self.held += units(bytes);
    }

    pub(super) fn gave_back(&mut self, bytes: Bytes) {
        self.held -= units(bytes);
        self.is_tight = false;
    }

    fn take_addresses(&mut self, at: u64, len: u64) {
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

    /// Lets addresses be used again that nothing is mapped at.
    pub(super) fn give_addresses(&mut self, mut at: u64, mut len: u64) {
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
pub(super) struct Whole {
    pub(super) at: u64,
    pub(super) len: u64,
    run: u64,
}
