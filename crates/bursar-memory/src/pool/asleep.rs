//! The part of a pool's memory that sleeps, as the free lists know it.
//!
//! A frame that sleeps is out of the address space, and its addresses are in no hole: nobody maps anything there. What is
//! free of it is out of the lists. What is in use of it stays its user's, and a free of it is remembered until it wakes.
//! Pages that nothing is in use of do not wake ([`FreeLists::abandon_unused`]): their addresses become a hole.
//!
//! **Nothing that sleeps is granted, at no price for a pool that is awake.** Whoever falls asleep says so and then raises
//! an alarm, so that every thread leaves the short path; on the long one, magazines are not used while anything sleeps. A
//! thread that was on the short path already may still free a block of what sleeps into the lists: pages that sleep count
//! as exclusive there, which makes a request that would get them look again, and take them out
//! ([`FreeLists::sweep_asleep`]).

use super::extent::Extent;
use super::free_lists::{FreeLists, StreamEnd, UnorderedFree};
use super::growth_plan::{PlacedFrame, RunList};
use super::runs::{Run, Runs, UNIT};
use bursar_core::Stream;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Ranges of addresses that do not overlap, in units: the first address, and the one after the last.
pub(super) type Ranges = BTreeMap<u64, u64>;

/// Ranges of addresses in order, in units.
pub(super) type Extents = Vec<Range<u64>>;

/// Returns the range that holds an address.
fn range_of(ranges: &Ranges, at: u64) -> Option<Range<u64>> {
    let (&start, &end) = ranges.range(..=at).next_back()?;
    (at < end).then_some(start..end)
}

/// Returns whether ranges have any of `len` units at `at`.
fn overlaps(ranges: &Ranges, at: u64, len: u64) -> bool {
    ranges.range(..at + len).next_back().is_some_and(|(_, &end)| at < end)
}

/// The memory that sleeps, behind the lock of the free lists.
#[derive(Debug, Default)]
pub(super) struct Asleep {
    /// Set while somebody falls asleep or wakes.
    is_moving: bool,
    /// The ranges that sleep; those that have all of the pool grant nothing.
    sleeps: Vec<RangesAsleep>,
    last: u64,
    /// The number of the ranges that have all of the pool.
    whole: Option<u64>,
    /// Blocks that were freed while they slept.
    frees: Vec<UnorderedFree>,
    /// Runs that had come to the lists on the short path.
    swept: Vec<(RunList, Run)>,
}

/// Ranges that sleep from one moment on.
#[derive(Debug)]
struct RangesAsleep {
    number: u64,
    ranges: Ranges,
    /// The parts of them whose contents were given up, in bytes.
    given_up: Vec<Range<u64>>,
}

/// Memory that cannot be moved just now, because somebody moves it already.
#[derive(Clone, Copy, Debug)]
pub(super) struct IsMoving;

/// A frame that falls asleep.
#[derive(Debug)]
pub(super) struct FallingFrame {
    pub(super) at: u64,
    pub(super) placed: PlacedFrame,
    pub(super) is_exclusive: bool,
    /// The ranges of it that are in use.
    pub(super) live: Vec<Range<u64>>,
    /// The numbers of the ranges asleep that have a part of it.
    pub(super) of: BTreeSet<u64>,
}

/// Frames that fall asleep, and the runs that are free in them.
#[derive(Debug, Default)]
pub(super) struct FallingFrames {
    pub(super) frames: Vec<FallingFrame>,
    pub(super) free: Vec<Run>,
}

/// Memory that was freed asleep in frames that are awake: nobody's until it is [entered](FreeLists::enter_awake_frees).
#[derive(Debug)]
pub(super) struct AwakeFrees {
    frees: Vec<UnorderedFree>,
    swept: Vec<(RunList, Run)>,
}

impl AwakeFrees {
    /// Returns its ranges, in units.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let swept = self.swept.iter().map(|(_, run)| run.range());
        self.frees.iter().map(|free| free.at..free.at + free.len).chain(swept)
    }
}

impl Asleep {
    /// Returns whether all of the pool sleeps, or is about to.
    pub(super) const fn is_whole(&self) -> bool {
        self.whole.is_some()
    }

    pub(super) const fn is_moving(&self) -> bool {
        self.is_moving
    }

    /// Returns whether nothing sleeps.
    pub(super) const fn is_empty(&self) -> bool {
        self.sleeps.is_empty()
    }

    /// Begins to move; one does at a time.
    pub(super) const fn begin_move(&mut self) -> Result<(), IsMoving> {
        if self.is_moving {
            return Err(IsMoving);
        }
        self.is_moving = true;
        Ok(())
    }

    pub(super) const fn end_move(&mut self) {
        self.is_moving = false;
    }

    /// Enters ranges that sleep from now on, all of the pool or some, and what is given up of their contents, in bytes; returns
    /// their number.
    pub(super) fn enter(&mut self, ranges: Ranges, given_up: Vec<Range<u64>>, is_whole: bool) -> u64 {
        self.last += 1;
        self.sleeps.push(RangesAsleep { number: self.last, ranges, given_up });
        if is_whole {
            self.whole = Some(self.last);
        }
        self.last
    }

    /// Returns the parts of ranges that do not sleep.
    pub(super) fn awake_parts(&self, ranges: Ranges) -> Ranges {
        let awake = |ranges: Ranges, asleep: &RangesAsleep| {
            let parts = ranges.into_iter().flat_map(|(start, end)| outside(start..end, &asleep.ranges));
            parts.map(|part| (part.start, part.end)).collect()
        };
        self.sleeps.iter().fold(ranges, awake)
    }

    /// Returns what sleeps, and the parts of it whose contents were given up, in bytes.
    pub(super) fn ranges_and_given_up(&self) -> (Extents, Extents) {
        let (mut all, mut given_up) = (Extents::new(), Extents::new());
        for RangesAsleep { ranges, given_up: of, .. } in &self.sleeps {
            all.extend(ranges.iter().map(|(&start, &end)| start * UNIT..end * UNIT));
            // What was abandoned since is others' memory.
            let still = |part: &Range<u64>| {
                let units = part.start / UNIT..part.end.div_ceil(UNIT);
                let runs = parts_in(Run { at: units.start, len: units.end - units.start, stamp: 0 }, ranges);
                let of_run = |run: Run| part.start.max(run.at * UNIT)..part.end.min(run.end() * UNIT);
                runs.into_iter().map(of_run).filter(|part| part.start < part.end).collect::<Extents>()
            };
            given_up.extend(of.iter().flat_map(still));
        }
        (all, given_up)
    }

    /// Returns whether any of `len` units at `at` sleeps.
    fn holds_any(&self, at: u64, len: u64) -> bool {
        self.sleeps.iter().any(|asleep| overlaps(&asleep.ranges, at, len))
    }
}

impl FreeLists {
    /// Takes frames out that fall asleep: all of them where all of the pool does, or those that nothing but what sleeps and free
    /// memory has a part of. `None` while somebody has memory out of the lists.
    pub(super) fn take_frames_to_sleep(&mut self) -> Option<FallingFrames> {
        if self.in_flight > 0 {
            return None;
        }
        if !self.asleep.is_whole() {
            // A block that was freed since whoever asks looked is nobody's until its tag wakes.
            self.sweep_asleep();
        }
        let free: Ranges = self.common.iter().map(|run| (run.at, run.end())).collect();
        let (is_whole, sleeps) = (self.asleep.is_whole(), &self.asleep.sleeps);
        let planned: Vec<_> = self
            .space
            .placed()
            .filter_map(|(at, len)| {
                let (live, free) = split(at..at + len, &free, |at| match is_whole {
                    // Whatever is not free for everybody counts as in use.
                    true => Some(at..u64::MAX),
                    false => sleeps.iter().find_map(|asleep| range_of(&asleep.ranges, at)),
                })?;
                let has_part = |asleep: &&RangesAsleep| overlaps(&asleep.ranges, at, len);
                let of = sleeps.iter().filter(has_part).map(|asleep| asleep.number).collect();
                (is_whole || !live.is_empty()).then_some((at, live, free, of))
            })
            .collect();
        let mut falling = FallingFrames::default();
        for (at, live, free, of) in planned {
            let Some((placed, is_exclusive)) = self.space.put_to_sleep(at) else { continue };
            for Range { start, end } in free {
                self.common.cut(start..end);
                falling.free.push(Run { at: start, len: end - start, stamp: 0 });
            }
            falling.frames.push(FallingFrame { at, placed, is_exclusive, live, of });
        }
        Some(falling)
    }

    /// Returns the pages that something is in use of, for each of some frames of a sleep: each a first address and a length.
    /// `free` are the runs that are free in them.
    pub(super) fn used_pages(&mut self, frames: impl Iterator<Item = (u64, u64)>, free: &[Run]) -> Vec<Extents> {
        self.sweep_asleep();
        let page = self.space.granule();
        let mut unused: Ranges = free.iter().map(|run| (run.at, run.end())).collect();
        unused.extend(self.asleep.frees.iter().map(|free| (free.at, free.at + free.len)));
        unused.extend(self.asleep.swept.iter().map(|(_, run)| (run.at, run.end())));
        frames.map(|(at, len)| in_pages(&outside(at..at + len, &unused), at, page)).collect()
    }

    /// Abandons the pages that nothing is in use of, out of frames of a sleep that are mapped nowhere: each a first address
    /// and a length. `free` are the runs that are free in them. What is left of each frame is returned, in order, and the
    /// pages that are not; nothing is mapped at their addresses until those are released.
    pub(super) fn abandon_unused(
        &mut self,
        frames: impl Iterator<Item = (u64, u64)> + Clone,
        free: &mut Vec<Run>,
    ) -> (Vec<Extents>, Ranges) {
        let (left, mut abandoned) = (self.used_pages(frames.clone(), free), Ranges::new());
        for ((at, len), used) in frames.zip(&left) {
            let unused = outside(at..at + len, &used.iter().map(|range| (range.start, range.end)).collect());
            if !unused.is_empty() {
                self.space.cut_asleep(at, used);
                abandoned.extend(unused.into_iter().map(|range| (range.start, range.end)));
            }
        }
        if !abandoned.is_empty() {
            self.cut_abandoned(&abandoned, free);
        }
        (left, abandoned)
    }

    /// Forgets frames of a sleep that are mapped nowhere, which nobody wakes any more: each a first address and a length. `free` are
    /// the runs that are free in those of the sleep.
    pub(super) fn forget_asleep(&mut self, frames: &[(u64, u64)], free: &mut Vec<Run>) {
        frames.iter().for_each(|&(at, _)| self.space.cut_asleep(at, &[]));
        self.cut_abandoned(&frames.iter().map(|&(at, len)| (at, at + len)).collect(), free);
    }

    /// Takes pages that were abandoned out of all that is known of what sleeps.
    fn cut_abandoned(&mut self, abandoned: &Ranges, free: &mut Vec<Run>) {
        let rest = |at: u64, len: u64| {
            let rest = outside(at..at + len, abandoned);
            rest.into_iter().map(|Range { start, end }| (start, end - start))
        };
        let of_run = |run: Run| rest(run.at, run.len).map(move |(at, len)| Run { at, len, ..run });
        let Asleep { sleeps, frees, swept, .. } = &mut self.asleep;
        *free = std::mem::take(free).into_iter().flat_map(of_run).collect();
        *swept =
            std::mem::take(swept).into_iter().flat_map(|(list, run)| of_run(run).map(move |run| (list, run))).collect();
        let of_free =
            |free: UnorderedFree| rest(free.at, free.len).map(move |(at, len)| UnorderedFree { at, len, ..free });
        *frees = std::mem::take(frees).into_iter().flat_map(of_free).collect();
        for RangesAsleep { ranges, .. } in sleeps {
            let of_range = |(start, end): (u64, u64)| rest(start, end - start).map(|(at, len)| (at, at + len));
            *ranges = std::mem::take(ranges).into_iter().flat_map(of_range).collect();
        }
    }

    /// Enters frames that are mapped where they were; what was free of them is free again.
    pub(super) fn wake_frames(&mut self, falling: FallingFrames) {
        for FallingFrame { at, placed, is_exclusive, .. } in falling.frames {
            self.space.wake(at, placed, is_exclusive);
        }
        falling.free.into_iter().for_each(|run| self.add_common(run));
    }

    /// Ends the sleep of ranges, whose frames are awake. What was freed of them meanwhile is [unordered](Self::unordered), and is
    /// to be put in order next.
    pub(super) fn end_sleep(&mut self, number: u64) {
        self.asleep.sleeps.retain(|asleep| asleep.number != number);
        self.asleep.whole = self.asleep.whole.filter(|&whole| whole != number);
        let frees = std::mem::take(&mut self.asleep.frees);
        let (still, awake) = frees.into_iter().partition(|free| self.asleep.holds_any(free.at, free.len));
        self.asleep.frees = still;
        self.unordered.extend::<Vec<_>>(awake);
        for (list, run) in std::mem::take(&mut self.asleep.swept) {
            match self.asleep.holds_any(run.at, run.len) {
                true => self.asleep.swept.push((list, run)),
                false => self.put_back_swept(list, run),
            }
        }
    }

    fn put_back_swept(&mut self, list: RunList, Run { at, len, .. }: Run) {
        match list {
            RunList::Lane(slot) => self.free_own(slot, at, len),
            RunList::Common => self.add_common(Run { at, len, stamp: 0 }),
        }
    }

    /// Takes what was freed asleep out of what sleeps, as far as its frames are awake, which they are where they have parts of blocks
    /// that are. `None` where there is none of that.
    pub(super) fn take_awake_frees(&mut self) -> Option<AwakeFrees> {
        self.sweep_asleep();
        let placed: Ranges = self.space.placed().map(|(at, len)| (at, at + len)).collect();
        let awake = |at: u64, len: u64| parts_in(Run { at, len, stamp: 0 }, &placed);
        let of_free = |free: &UnorderedFree| {
            let free = *free;
            awake(free.at, free.len).into_iter().map(move |Run { at, len, .. }| UnorderedFree { at, len, ..free })
        };
        let of_swept = |(list, run): &(RunList, Run)| {
            awake(run.at, run.len).into_iter().map(|run| (*list, run)).collect::<Vec<_>>()
        };
        let frees = self.asleep.frees.iter().flat_map(of_free).collect();
        let taken = AwakeFrees { frees, swept: self.asleep.swept.iter().flat_map(of_swept).collect() };
        let ranges: Ranges = taken.ranges().map(|range| (range.start, range.end)).collect();
        if ranges.is_empty() {
            return None;
        }
        self.cut_abandoned(&ranges, &mut Vec::new());
        self.in_flight += 1;
        Some(taken)
    }

    /// Enters what was taken out of what sleeps: runs are free, and frees are [unordered](Self::unordered), to be put in order next.
    pub(super) fn enter_awake_frees(&mut self, AwakeFrees { frees, swept }: AwakeFrees) {
        self.in_flight -= 1;
        self.unordered.extend(frees);
        swept.into_iter().for_each(|(list, run)| self.put_back_swept(list, run));
    }

    /// Frees a block while something sleeps: one that does is remembered. Returns `false`, and nothing changes, where it is
    /// free already.
    pub(super) fn free_while_asleep(&mut self, home: Stream, stream: Stream, Extent { at, len }: Extent) -> bool {
        if self.asleep.holds_any(at, len) {
            let is_new = self.asleep.frees.iter().all(|free| free.at != at);
            if is_new {
                self.asleep.frees.push(UnorderedFree { at, len, home, stream, unreported: None, is_vacated: false });
            }
            return is_new;
        }
        match home == stream {
            true => self.free(stream.slot(), at, len),
            false => self.free_elsewhere(home, stream, at, len),
        }
    }

    /// Keeps what was in a magazine if it sleeps; returns whether it does.
    pub(super) fn keep_drained(&mut self, slot: usize, Extent { at, len }: Extent) -> bool {
        let sleeps = !self.asleep.is_empty() && self.asleep.holds_any(at, len);
        if sleeps {
            self.asleep.swept.push((RunList::Lane(slot), Run { at, len, stamp: 0 }));
        }
        sleeps
    }

    /// Moves on what sleeps of the lane at a slot, whose stream ends.
    pub(super) fn end_swept(&mut self, slot: usize, end: StreamEnd) {
        for (list, run) in std::mem::take(&mut self.asleep.swept) {
            let list = match (list, end) {
                (RunList::Lane(of), StreamEnd::InheritedBy(heir)) if of == slot => RunList::Lane(heir.slot()),
                (RunList::Lane(of), StreamEnd::Complete) if of == slot => RunList::Common,
                (RunList::Lane(of), StreamEnd::Unordered(stream)) if of == slot => {
                    let Run { at, len, .. } = run;
                    let free = UnorderedFree { at, len, home: stream, stream, unreported: None, is_vacated: false };
                    self.asleep.frees.push(free);
                    continue;
                }
                (list, _) => list,
            };
            self.asleep.swept.push((list, run));
        }
    }

    /// Takes everything that sleeps out of the lists, which a thread may have freed there that had not heard of it.
    pub(super) fn sweep_asleep(&mut self) {
        if !self.asleep.is_empty() {
            self.sweep();
        }
    }

    #[cold]
    fn sweep(&mut self) {
        let (sleeps, mut swept) = (std::mem::take(&mut self.asleep.sleeps), Vec::new());
        let mut sweep = |runs: &mut Runs, list: RunList| {
            for RangesAsleep { ranges, .. } in &sleeps {
                let parts: Vec<_> = runs.iter().flat_map(|run| parts_in(run, ranges)).collect();
                parts.iter().for_each(|part| runs.cut(part.range()));
                swept.extend(parts.into_iter().map(|part| (list, part)));
            }
        };
        sweep(&mut self.common, RunList::Common);
        for (slot, lane) in self.lanes_mut() {
            sweep(&mut lane.runs, RunList::Lane(slot));
        }
        self.asleep.sleeps = sleeps;
        self.asleep.swept.append(&mut swept);
    }
}

/// Returns the parts of a run that lie in ranges.
fn parts_in(run: Run, ranges: &Ranges) -> Vec<Run> {
    let before = range_of(ranges, run.at).map(|range| (range.start, range.end));
    let inside = ranges.range(run.at..run.end()).map(|(&start, &end)| (start, end));
    let mut parts: Vec<_> = before.into_iter().chain(inside).collect();
    parts.dedup();
    let part = |(start, end): (u64, u64)| {
        let at = start.max(run.at);
        Run { at, len: end.min(run.end()) - at, stamp: run.stamp }
    };
    parts.into_iter().map(part).collect()
}

/// Returns the parts of a range that lie in none of others.
fn outside(range: Range<u64>, others: &Ranges) -> Extents {
    split(range, others, |at| Some(at..u64::MAX)).map_or_else(Extents::new, |(outside, _)| outside)
}

/// Returns the pages that ranges have a part of, where pages are counted from `start`; those side by side are one range.
fn in_pages(ranges: &[Range<u64>], start: u64, page: u64) -> Extents {
    let mut pages = Extents::new();
    for range in ranges {
        let (from, to) =
            (start + (range.start - start) / page * page, start + (range.end - start).next_multiple_of(page));
        match pages.last_mut() {
            Some(last) if from <= last.end => last.end = last.end.max(to),
            _ => pages.push(from..to),
        }
    }
    pages
}

/// Splits a frame into what is in use and what is free; `None` where a part of it is neither free nor, by `live`, of what
/// sleeps.
fn split(frame: Range<u64>, free: &Ranges, live: impl Fn(u64) -> Option<Range<u64>>) -> Option<(Extents, Extents)> {
    let (mut at, mut in_use, mut unused) = (frame.start, Vec::<Range<u64>>::new(), Vec::new());
    while at < frame.end {
        let next_free = free.range(at..frame.end).next().map_or(frame.end, |(&start, _)| start);
        if let Some(run) = range_of(free, at) {
            let end = run.end.min(frame.end);
            unused.push(at..end);
            at = end;
            continue;
        }
        let end = live(at)?.end.min(next_free);
        match in_use.last_mut() {
            Some(last) if last.end == at => last.end = end,
            _ => in_use.push(at..end),
        }
        at = end;
    }
    Some((in_use, unused))
}
