//! Frames that go back to the driver: by trimming, and at the end of a pool, with nothing locked across a call.
//!
//! A pool that is dropped before the driver has everything back leaves the rest to the context ([`PoolRemains`]),
//! without a handle of the context: so the context ends, and its end is the last try. The pool's state stays a member
//! of the context until then, to hear of streams that end.

use super::address_space::VacatedRange;
use super::free_lists::FreeLists;
use super::growth::emit;
use super::growth_plan::{FrameMove, StuckFrames, units};
use super::runs::UNIT;
use super::{LatchGuard, PagePoolResource, PoolState, driver_calls};
use bursar_core::{
    Action, Bytes, DeviceContext, DriverError, Error, Frame, FrameKind, FrameRelease, FrameSource, RefusedFrame,
    Remains, Result, StreamProgress,
};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A function that takes a frame back which is mapped nowhere, or refuses it.
type Release<'a> = &'a dyn Fn(Frame) -> Result<(), RefusedFrame>;

/// A thread that maps frames a second time, until this is dropped.
pub(super) struct Following<'a>(&'a PoolState);

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.0.lists().following -= 1;
    }
}

impl PoolState {
    /// Tries again to unmap frames that could not be unmapped.
    pub(super) fn unmap_stuck(&self, context: &DeviceContext) -> Result<(), DriverError> {
        let mut stuck = {
            let mut lists = self.lists();
            let stuck = lists.space.take_stuck();
            if stuck.is_empty() {
                return Ok(());
            }
            lists.in_flight += 1;
            stuck
        };
        let mut outcome = Ok(());
        while let Some(StuckFrames { at, len, .. }) = stuck.last() {
            outcome = driver_calls::unmap(context, *at, *len);
            match (outcome.is_ok(), stuck.pop()) {
                (true, Some(free)) => self.lists().space.recover_stuck(free),
                (_, still) => {
                    stuck.extend(still);
                    break;
                }
            }
        }
        let mut lists = self.lists();
        lists.in_flight -= 1;
        stuck.into_iter().for_each(|still| lists.space.keep_stuck(still));
        outcome
    }

    /// Locks the free lists once `is_free` of them. A child that was forked does not wait for threads that it does not have.
    fn lists_once(&self, is_free: impl Fn(&FreeLists) -> bool) -> LatchGuard<'_, FreeLists> {
        loop {
            let lists = self.lists();
            if is_free(&lists) || self.sleep.is_of_parent() {
                return lists;
            }
            drop(lists);
            std::thread::yield_now();
        }
    }

    /// Begins to map frames where they are needed which stay mapped where they were, once no thread unmaps what frames have left: the
    /// driver loses count of pages that are mapped and unmapped at once. This lasts as long as what is returned.
    pub(super) fn follow(&self) -> Following<'_> {
        self.lists_once(|lists| !lists.is_unmapping).following += 1;
        Following(self)
    }

    /// Unmaps the addresses that frames left which followed their streams, as far as those have passed them, and waits for other
    /// threads that do: a frame which is given back must be mapped nowhere else.
    pub(super) fn unmap_vacated(&self, context: &DeviceContext) -> Result<(), DriverError> {
        let mut vacated = {
            let mut lists =
                self.lists_once(|lists| !lists.is_unmapping && (lists.following == 0 || !lists.has_passed_vacated()));
            lists.in_flight += 1;
            lists.is_unmapping = true;
            lists.take_passed_vacated()
        };
        let mut outcome = Ok(());
        while let Some(&VacatedRange { at, len, .. }) = vacated.last() {
            outcome = driver_calls::unmap(context, at, len);
            if outcome.is_err() {
                break;
            }
            vacated.pop();
            self.lists().space.release_range(at, len);
        }
        let mut lists = self.lists();
        lists.in_flight -= 1;
        lists.is_unmapping = false;
        vacated.into_iter().for_each(|still| lists.space.vacate(still));
        outcome
    }

    /// Gives a frame back that is mapped nowhere; one that is not taken stays.
    pub(super) fn release_frame(&self, frame: Frame, release: Release<'_>) {
        let bytes = frame.bytes();
        match release(frame) {
            Ok(()) => self.lists().space.count_released(bytes),
            Err(RefusedFrame { frame, .. }) => self.lists().space.keep_unmapped(frame),
        }
    }

    /// Gives whole free frames back until no more than `keep` units are free; returns how much went.
    pub(super) fn release_frames(&self, context: &DeviceContext, keep: u64, release: Release<'_>) -> Bytes {
        if let Err(error) = self.unmap_stuck(context) {
            context.fault().record(error);
        }
        let (moves, mut unmapped) = loop {
            let mut lists = self.lists();
            // A frame is given back only once it is mapped nowhere else.
            if !lists.has_passed_vacated() {
                lists.in_flight += 1;
                break lists.take_whole_frames(keep);
            }
            drop(lists);
            if let Err(error) = self.unmap_vacated(context) {
                context.fault().record(error);
                return Bytes::ZERO;
            }
        };
        for FrameMove { from, placed } in moves {
            let is_mapped = matches!(placed.frame.kind(), FrameKind::Pages(_));
            match if is_mapped { driver_calls::unmap(context, from, placed.len) } else { Ok(()) } {
                Ok(()) => {
                    if is_mapped {
                        self.lists().space.release_range(from, placed.len);
                    }
                    unmapped.push(placed.frame);
                }
                Err(error) => {
                    context.fault().record(error);
                    self.lists().enter_frame(from, placed);
                }
            }
        }
        let bytes = Bytes(unmapped.iter().map(|frame| frame.bytes().get()).sum());
        unmapped.into_iter().for_each(|frame| self.release_frame(frame, release));
        self.lists().in_flight -= 1;
        if bytes > Bytes::ZERO {
            emit(context, Action::Trim, 0, bytes.get() / UNIT);
        }
        bytes
    }
}

impl FreeLists {
    /// Takes out frames that are wholly free for every stream, the largest first, until no more than `keep` units are
    /// free: those that have to be unmapped, and those that are mapped nowhere.
    fn take_whole_frames(&mut self, keep: u64) -> (Vec<FrameMove>, Vec<Frame>) {
        self.space.forget_past();
        let mut free = self.free_units();
        let unmapped = if free > keep { self.space.take_unmapped() } else { Vec::new() };
        free -= unmapped.iter().map(|frame| units(frame.bytes())).sum::<u64>();
        let mut whole = self.space.whole_frames(&self.common);
        whole.sort_unstable_by_key(|whole| whole.len);
        let mut moves = Vec::new();
        while let Some(whole) = whole.pop() {
            if free >= keep + whole.len {
                free -= whole.len;
                moves.extend(self.space.remove_frame(whole.at, &mut self.common));
            }
        }
        (moves, unmapped)
    }

    /// Returns whether something is free that could be given back to the driver, now or once its work has run.
    fn has_releasable(&self) -> bool {
        self.is_pending() || self.space.unmapped() > 0 || !self.space.whole_frames(&self.common).is_empty()
    }

    /// Takes every lane's events, at the pool's end.
    fn take_events(&mut self) -> Vec<StreamProgress> {
        self.open_lanes().map(|lane| lane.progress.take()).collect()
    }
}

impl<F: FrameSource> PagePoolResource<F> {
    /// Gives the addresses back, if nothing is mapped there and nobody is about to map something; returns whether there are none
    /// any more.
    pub(super) fn give_addresses_back(&self) -> bool {
        let Range { start, end } = self.addresses;
        if start == end || self.is_retired.load(Ordering::Acquire) {
            return self.state.lists().space.held() == 0;
        }
        if !self.state.lists().space.take_addresses(&self.addresses) {
            return false;
        }
        match driver_calls::release_addresses(&self.context, start, end - start) {
            Ok(()) => {
                self.is_retired.store(true, Ordering::Release);
                true
            }
            Err(error) => {
                self.context.fault().record(error);
                self.state.lists().space.release_range(start, end - start);
                false
            }
        }
    }
}

impl<F: FrameSource> Drop for PagePoolResource<F> {
    fn drop(&mut self) {
        self.end_sleeps();
        let addresses = if *self.is_retired.get_mut() { 0..0 } else { self.addresses.clone() };
        let state = self.state.clone();
        let mut remains = PoolRemains { state, addresses, release: self.source.release() };
        remains.release_all(&self.context, Duration::MAX, &|frame| self.source.release_frame(frame));
        self.context.leave(remains);
    }
}

/// The frames of a pool that is gone, and its addresses.
struct PoolRemains {
    state: Arc<PoolState>,
    /// In units; empty once they were given back.
    addresses: Range<u64>,
    release: Arc<dyn FrameRelease>,
}

impl PoolRemains {
    /// Gives back what nobody uses any more, waiting for that as far as `patience` goes; returns how much went. The
    /// frames of blocks that are still out stay, and the addresses with them.
    fn release_all(&mut self, context: &DeviceContext, patience: Duration, release: Release<'_>) -> Bytes {
        if let Err(Error::Driver(error)) = self.state.wait_for_pending(context, patience) {
            context.fault().record(error);
        }
        let released = self.state.release_frames(context, 0, release);
        let (events, is_empty) = {
            let mut lists = self.state.lists();
            (lists.take_events(), lists.space.held() == 0 && lists.space.vacated().is_empty())
        };
        events.into_iter().for_each(|mut events| events.forget(context));
        let Range { start, end } = self.addresses;
        if is_empty && start < end {
            match driver_calls::release_addresses(context, start, end - start) {
                Ok(()) => self.addresses = 0..0,
                Err(error) => context.fault().record(error),
            }
        }
        released
    }
}

impl Remains for PoolRemains {
    fn give_back(&mut self, context: &DeviceContext, patience: Duration) -> Bytes {
        let release = self.release.clone();
        self.release_all(context, patience, &move |frame: Frame| release.release(context, frame))
    }

    fn bytes(&self) -> Bytes {
        Bytes(self.state.lists().space.held() * UNIT)
    }

    /// Returns whether nothing can ever come back: what blocks hold that are still out cannot.
    fn is_empty(&self) -> bool {
        let lists = self.state.lists();
        !lists.has_releasable() && (lists.space.held() > 0 || self.addresses.is_empty())
    }
}

impl fmt::Debug for PoolRemains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolRemains").field("state", &self.state).finish_non_exhaustive()
    }
}
