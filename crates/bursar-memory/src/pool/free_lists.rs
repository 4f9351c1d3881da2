//! The free lists of a pool: the lane of each stream, what is common to all, and the address space they lie in.
//!
//! Nothing here calls the driver: what has to be asked or done is planned here, carried out with nothing locked, and
//! entered here afterwards. What is taken out meanwhile is in no list, and a request that would be refused waits until
//! it is back (`in_flight`). `questions.rs` has what streams are asked about, `stream_end.rs` what becomes of the memory of
//! one that ends.

mod questions;
mod stream_end;

pub(super) use stream_end::StreamEnd;

use super::address_space::AddressSpace;
use super::asleep::Asleep;
use super::lane::Lane;
use super::limbo::{Limbo, LimboFree};
use super::runs::{Run, RunPosition, Runs};
use bursar_core::{DevicePtr, Stream};

/// The free lists of a pool, which are behind its one lock; addresses and lengths are in units.
#[derive(Debug)]
pub(super) struct FreeLists {
    lanes: Vec<Option<Box<Lane>>>,
    /// Memory that is free for nobody yet, because the driver let nothing come after the streams that used it.
    pub(super) unordered: Vec<UnorderedFree>,
    /// Memory that was freed on another stream than its own, which neither is known to have passed.
    limbo: Limbo,
    /// Memory that every stream may have: never used, or used by work that is known to have run.
    pub(super) common: Runs,
    pub(super) space: AddressSpace,
    /// The memory that sleeps.
    pub(super) asleep: Asleep,
    /// The number of operations being carried out that have memory out of the lists.
    pub(super) in_flight: u32,
    /// Set while a thread unmaps addresses which frames have left: these frames are mapped in two places.
    pub(super) is_unmapping: bool,
    /// The number of threads that map frames a second time, where they are needed.
    pub(super) following: u32,
    pub(super) open_lane_count: usize,
    /// The length from which on a request takes the tightest fit, as of the last change of lanes or frames.
    tightest_from: u64,
    /// The units that were freed since their streams were last asked how far they are.
    unasked: u64,
    /// The least of those with which a request looks whether other streams should be asked.
    look_at: u64,
}

/// The part of what is held, one of so many, that may be freed on other streams before a request has them asked: as long
/// as less is, meeting requests out of the rest can cost no more than that part.
const SHARE_UNASKED: u64 = 64;

/// The number of places that are looked at for one that is no part of an exclusive frame.
const PLACES: usize = 64;

/// A request for `len` units, aligned to `align`, for the stream at `slot`, which is held, or stays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) len: u64,
    pub(super) align: u64,
    pub(super) slot: usize,
}

/// Memory that was freed on a stream which could not be ordered after the block's own, or which ended with nothing
/// ordered after it. It is free once a stream comes after both.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnorderedFree {
    pub(super) at: u64,
    pub(super) len: u64,
    /// The block's own stream.
    pub(super) home: Stream,
    /// The stream it was freed on.
    pub(super) stream: Stream,
    /// The block, where a driver that listens has not been told of the free.
    pub(super) unreported: Option<DevicePtr>,
    /// Set where a frame has left these addresses, which are only to be unmapped.
    pub(super) is_vacated: bool,
}

impl FreeLists {
    pub(super) fn new(space: AddressSpace) -> Self {
        let (lanes, unordered, limbo, common) = (Vec::new(), Vec::new(), Limbo::default(), Runs::default());
        let tightest_from = u64::MAX;
        Self {
            lanes,
            unordered,
            limbo,
            common,
            space,
            asleep: Asleep::default(),
            tightest_from,
            in_flight: 0,
            is_unmapping: false,
            following: 0,
            open_lane_count: 0,
            unasked: 0,
            look_at: 0,
        }
    }

    /// Returns the lane of a stream, opening it if need be.
    #[inline]
    pub(super) fn lane(&mut self, slot: usize) -> &mut Lane {
        if !matches!(self.lanes.get(slot), Some(Some(_))) {
            self.open_lane(slot);
        }
        self.lanes[slot].get_or_insert_default()
    }

    #[cold]
    fn open_lane(&mut self, slot: usize) {
        if self.lanes.len() <= slot {
            self.lanes.resize_with(slot + 1, || None);
        }
        self.lanes[slot] = Some(Box::default());
        self.open_lane_count += 1;
        self.update_tightest_from();
    }

    /// Returns the address space, the common runs, and those of the stream at a slot.
    pub(super) fn parts_for(&mut self, slot: usize) -> (&mut AddressSpace, &mut Runs, Option<&mut Runs>) {
        let own = self.lanes.get_mut(slot).and_then(Option::as_mut).map(|lane| &mut lane.runs);
        (&mut self.space, &mut self.common, own)
    }

    pub(super) fn lane_if_open(&self, slot: usize) -> Option<&Lane> {
        self.lanes.get(slot).and_then(Option::as_deref)
    }

    pub(super) fn open_lanes(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut().flatten().map(|lane| &mut **lane)
    }

    /// Returns the lanes that are open, with their slots.
    pub(super) fn lanes_mut(&mut self) -> impl Iterator<Item = (usize, &mut Lane)> {
        self.lanes.iter_mut().enumerate().filter_map(|(slot, lane)| Some((slot, &mut **lane.as_mut()?)))
    }

    /// Returns what is free and not known to be free for every stream, in units.
    pub(super) fn pending_units(&self) -> u64 {
        let unordered = self.unordered.iter().filter(|unordered| !unordered.is_vacated);
        let unordered: u64 = unordered.map(|unordered| unordered.len).sum();
        self.lanes.iter().flatten().map(|lane| lane.runs.total()).sum::<u64>() + self.limbo.units() + unordered
    }

    /// Returns what is free, in units: mapped, and mapped nowhere.
    pub(super) fn free_units(&self) -> u64 {
        self.common.total() + self.pending_units() + self.space.unmapped()
    }

    /// Returns the units in frames that are wholly free, or will be once everything that is pending has run; waiting does
    /// not help what is unordered.
    pub(super) fn units_in_whole_frames(&self) -> u64 {
        let mut free = Runs::default();
        let pending = self.lanes.iter().flatten().flat_map(|lane| lane.runs.iter());
        let limbo = self.limbo.iter().map(|free| Run { at: free.at, len: free.len, stamp: 0 });
        for run in self.common.iter().chain(pending).chain(limbo) {
            let added = free.insert(Run { stamp: 0, ..run });
            debug_assert!(added, "{run:?} is in one list");
        }
        self.space.units_in_whole_frames(&free)
    }

    /// Returns the length of the longest free run, in units.
    pub(super) fn longest(&self) -> u64 {
        let lanes = self.lanes.iter().flatten().map(|lane| lane.runs.longest());
        lanes.chain(self.limbo.iter().map(|free| free.len)).fold(self.common.longest(), u64::max)
    }

    /// Frees a run on a stream. Returns `false`, and nothing changes, where a part of it is free there already.
    #[inline(always)]
    pub(super) fn free(&mut self, slot: usize, at: u64, len: u64) -> bool {
        if self.common.is_empty() {
            let freed = self.lane(slot).free(at, len);
            self.unasked += if freed { len } else { 0 };
            return freed;
        }
        let whole = self.common.take_beside(at..at + len);
        let freed = self.lane(slot).free(whole.start, whole.end - whole.start);
        self.unasked += if freed { whole.end - whole.start } else { 0 };
        if !freed {
            let [low, high] = [(whole.start, at), (at + len, whole.end)];
            let beside = [low, high].into_iter().filter(|(start, end)| start < end);
            beside.for_each(|(at, end)| self.add_common(Run { at, len: end - at, stamp: 0 }));
        }
        freed
    }

    /// Frees a run of a block of `home` on another stream; both are held, or stay. Returns `false`, and nothing changes,
    /// where it is known to be free already on that stream.
    pub(super) fn free_elsewhere(&mut self, home: Stream, stream: Stream, at: u64, len: u64) -> bool {
        let home_time = self.lane(home.slot()).now;
        let lane = self.lane(stream.slot());
        let free = LimboFree { at, len, home_time, time: lane.now };
        let freed = !lane.runs.contains(at) && self.limbo.enter(home, stream, free);
        let unasked = if freed { len } else { 0 };
        self.lane(stream.slot()).unasked += unasked;
        self.unasked += unasked;
        freed
    }

    /// Frees a run that the pool itself had.
    pub(super) fn free_own(&mut self, slot: usize, at: u64, len: u64) {
        let freed = self.free(slot, at, len);
        debug_assert!(freed, "{len} at {at} were in no list");
    }

    /// Lets every stream have a run.
    pub(super) fn add_common(&mut self, run: Run) {
        let added = self.common.insert(Run { stamp: 0, ..run });
        debug_assert!(added, "{run:?} was in no list");
    }

    /// Adds a run to a lane that was freed there before.
    fn add_own(&mut self, slot: usize, run: Run) {
        let lane = self.lane(slot);
        lane.unasked += run.len;
        let added = lane.add(run);
        debug_assert!(added, "{run:?} was in no list");
        self.unasked += run.len;
    }

    /// Returns whether other streams should be asked how far they are before a request of the stream at `slot` is met:
    /// where they have freed a good part of what is held since they were asked, better places are known then. To ask is
    /// cheap beside moving frames, which is what blocks in poor places lead to.
    #[inline]
    pub(super) fn should_ask_first(&mut self, slot: usize) -> bool {
        self.unasked >= self.look_at && self.open_lane_count > 1 && self.have_others_freed_much(slot)
    }

    #[cold]
    fn have_others_freed_much(&mut self, slot: usize) -> bool {
        let own = self.lane_if_open(slot).map_or(0, |lane| lane.unasked);
        self.look_at = own + self.share_unasked();
        self.unasked >= self.look_at
    }

    fn share_unasked(&self) -> u64 {
        (self.space.held() / SHARE_UNASKED).max(1)
    }

    /// Takes memory that the stream may have without asking or waiting for anyone: from what is common if there are
    /// as many, and else from its own, which nobody else can have yet. A part of an exclusive frame is not taken.
    #[inline(always)]
    pub(super) fn take(&mut self, request: Request) -> Option<u64> {
        let (at, is_own) = self.take_first(request)?;
        if self.space.has_exclusive() && self.space.taken_in_part(at, request.len).is_some() {
            self.put_back_taken(request.slot, request.len, at, is_own);
            return None;
        }
        Some(at)
    }

    /// Returns whether something fits that [`take`](Self::take) left because it is a part of an exclusive frame.
    pub(super) fn fits_in_part(&mut self, Request { len, align, slot }: Request) -> bool {
        let own = self.lanes.get_mut(slot).and_then(Option::as_mut).map(|lane| &mut lane.runs);
        [Some(&mut self.common), own].into_iter().flatten().any(|runs| runs.find_aligned(len, align).is_some())
    }

    /// Takes memory as [`take`](Self::take) does, also a part of an exclusive frame, which blocks share from then on.
    pub(super) fn take_any(&mut self, request: Request) -> Option<u64> {
        self.sweep_asleep();
        let (at, _) = self.take_first(request)?;
        self.space.open_for(at, request.len);
        Some(at)
    }

    /// Takes the first run that fits; returns where, and whether it was the stream's own.
    #[inline(always)]
    fn take_first(&mut self, Request { len, align, slot }: Request) -> Option<(u64, bool)> {
        let own = self.lanes.get_mut(slot).and_then(Option::as_mut).map(|lane| &mut lane.runs);
        let of_own = |at| (at, true);
        match own {
            _ if align > 1 => self.take_aligned(slot, len, align),
            Some(_) if len >= self.tightest_from => self.take_tightest(slot, len),
            Some(own) if self.common.is_empty() => own.take(len).map(of_own),
            Some(own) => match self.common.take(len) {
                Some(at) => Some((at, false)),
                None => own.take(len).map(of_own),
            },
            None => self.common.take(len).map(|at| (at, false)),
        }
    }

    /// Brings the length up to date from which on a request takes the tightest fit: half a page where several streams share
    /// a small pool, since shorter blocks are to fill what lies between others.
    pub(super) fn update_tightest_from(&mut self) {
        let is_tight = self.open_lane_count > 1 && self.space.is_small();
        self.tightest_from = if is_tight { self.space.granule().div_ceil(2) } else { u64::MAX };
    }

    /// Takes the tightest fit among the first few, so that long runs stay whole for those who need them: where several
    /// streams share a pool, there is little to spare, and what no run fits is gathered from frames.
    #[inline(never)]
    fn take_tightest(&mut self, slot: usize, len: u64) -> Option<(u64, bool)> {
        let own = self.lanes.get_mut(slot).and_then(Option::as_mut).map(|lane| &mut lane.runs);
        let lists = [Some((&mut self.common, false)), own.map(|own| (own, true))];
        let fits = lists.into_iter().flatten().filter_map(|(runs, is_own)| {
            let (position, run) = runs.find_tightest(len)?;
            Some((run, position, runs, is_own))
        });
        let (_, position, runs, is_own) = fits.min_by_key(|&(run, ..)| run)?;
        Some((runs.carve(position, len, 1), is_own))
    }

    #[cold]
    fn put_back_taken(&mut self, slot: usize, len: u64, at: u64, is_own: bool) {
        if is_own {
            let stamp = self.lane(slot).now;
            let added = self.lane(slot).add(Run { at, len, stamp });
            debug_assert!(added, "{len} at {at} were taken");
        } else {
            self.add_common(Run { at, len, stamp: 0 });
        }
    }

    /// Takes the first place that fits and is no part of an exclusive frame, among the first few.
    pub(super) fn take_apart(&mut self, Request { len, align, slot }: Request) -> Option<u64> {
        let Self { lanes, common, space, .. } = self;
        let own = lanes.get_mut(slot).and_then(Option::as_mut).map(|lane| &mut lane.runs);
        [Some(common), own].into_iter().flatten().find_map(|runs| {
            let fit = runs.iter_long(len).take(PLACES).filter(|run| run.len_from(align) >= len);
            let at =
                fit.map(|run| run.at.next_multiple_of(align)).find(|&at| space.taken_in_part(at, len).is_none())?;
            runs.cut(at..at + len);
            Some(at)
        })
    }

    // Numbers, and not a `Request`: one that is passed on would be stored first, also by requests that never come here.
    #[cold]
    fn take_aligned(&mut self, slot: usize, len: u64, align: u64) -> Option<(u64, bool)> {
        let own = self.lanes.get_mut(slot).and_then(Option::as_mut).map(|lane| &mut lane.runs);
        let lists = [Some((&mut self.common, false)), own.map(|own| (own, true))];
        lists.into_iter().flatten().find_map(|(runs, is_own)| {
            let position = runs.find_aligned(len, align)?;
            Some((runs.carve(position, len, align), is_own))
        })
    }

    /// Takes memory of another stream that this one comes after already.
    pub(super) fn take_ordered(&mut self, request: Request) -> Option<u64> {
        let Request { len, align, slot } = request;
        self.sweep_asleep();
        let fits = self.fits_elsewhere(request);
        let is_ordered = |&&(from, _, run): &&(usize, RunPosition, Run)| run.stamp < self.ordered_before(slot, from);
        let &(from, position, _) = fits.iter().find(is_ordered)?;
        let at = self.lane(from).runs.carve(position, len, align);
        self.space.open_for(at, len);
        Some(at)
    }

    fn ordered_before(&self, slot: usize, from: usize) -> u64 {
        self.lane_if_open(slot).map_or(0, |lane| lane.ordered_before(from))
    }

    /// Returns the first fit in each other lane.
    fn fits_elsewhere(&mut self, Request { len, align, slot }: Request) -> Vec<(usize, RunPosition, Run)> {
        let others = self.lanes.iter_mut().enumerate().filter(|&(other, _)| other != slot);
        let fit = |(other, lane): (usize, &mut Option<Box<Lane>>)| {
            let runs = &mut lane.as_mut()?.runs;
            let position = runs.find_aligned(len, align)?;
            Some((other, position, runs.get(position)))
        };
        others.filter_map(fit).collect()
    }

    /// Returns the slots of the other lanes with a run that fits, the one that was freed longest ago first.
    pub(super) fn lanes_that_fit(&mut self, request: Request) -> Vec<usize> {
        let fits = self.fits_elsewhere(request);
        let age = |from: usize, run: Run| self.lanes[from].as_ref().map_or(0, |lane| lane.now - run.stamp);
        let mut fits: Vec<_> = fits.into_iter().map(|(from, _, run)| (age(from, run), from)).collect();
        fits.sort_by_key(|&(age, from)| (u64::MAX - age, from));
        fits.into_iter().map(|(_, from)| from).collect()
    }

    /// Returns whether all that was freed was freed on one stream.
    #[inline(always)]
    pub(super) const fn has_one_stream(&self) -> bool {
        self.open_lane_count == 1
    }

    /// Lets the only stream there is have what is common as its own.
    #[inline(always)]
    pub(super) fn claim_common_if_any(&mut self, slot: usize) {
        if !self.common.is_empty() {
            self.claim_common(slot);
        }
    }

    /// Lets a stream have what is common as its own, if no other stream has anything free: what it frees next then
    /// coalesces with that, and any other stream that comes asks.
    #[cold]
    pub(super) fn claim_common(&mut self, slot: usize) {
        let others = self.lanes.iter().enumerate().filter(|&(other, _)| other != slot);
        if others.filter_map(|(_, lane)| lane.as_ref()).all(|lane| lane.runs.is_empty()) {
            let common = std::mem::take(&mut self.common);
            self.lane(slot).gather(common);
        }
    }
}

#[cfg(test)]
mod tests;
