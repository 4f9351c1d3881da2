//! The frees of a stream-ordered leaf that may not have run yet.
//!
//! Each stream has a lane with two running totals of bytes: retired (its free was submitted) and completed (it has
//! run). Whoever wants to know reads the retired total, asks the stream how far it has come, and moves the completed
//! total up to what it has passed: everything counted in the total was submitted before the question. At most one event
//! is recorded for every [`FREES_PER_MARK`] frees. No lock is held while the driver is called.
#![allow(unsafe_code)]

use crate::context::{StreamProgress, is_after};
use crate::stream::StreamHold;
use crate::{Bytes, DeviceContext, DriverError, RawStream, STREAM_SLOTS, Status, Stream};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The number of frees on a stream before its progress is looked at: at most one event for so many, half of what is
/// promised, since drivers serialise threads.
pub(super) const FREES_PER_MARK: u32 = 64;

/// A running total that every thread writes, on cache lines of its own: what is only read beside it stays in every core's
/// cache.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct PaddedTotal(pub(super) AtomicU64);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane {
    retired: AtomicU64,
    completed: AtomicU64,
    unmarked: AtomicU32,
    progress: Mutex<StreamProgress>,
    /// Locked while the completed total moves.
    completing: Mutex<()>,
}

/// The bytes that were pending on a stream when its adoption ended.
#[derive(Debug)]
struct Orphan {
    bytes: u64,
    stream: Stream,
    /// With the event that was recorded on the stream; if none could be, one is recorded on the heir of the stream once
    /// there is an order between them.
    progress: StreamProgress,
}

/// The frees of one leaf that may not have run yet.
#[derive(Debug)]
pub(super) struct Pending {
    lanes: Box<[Lane]>,
    lanes_used: AtomicUsize,
    orphans: Mutex<Vec<Orphan>>,
    /// The number of orphans, those being asked about included.
    orphan_count: AtomicUsize,
    released: PaddedTotal,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pending {
    pub(super) fn new() -> Self {
        Self {
            lanes: (0..STREAM_SLOTS).map(|_| Lane::default()).collect(),
            lanes_used: AtomicUsize::new(0),
            orphans: Mutex::default(),
            orphan_count: AtomicUsize::new(0),
            released: PaddedTotal::default(),
        }
    }

    /// Returns everything that ever completed, in bytes.
    pub(super) fn released(&self) -> u64 {
        self.released.0.load(Ordering::Acquire)
    }

    /// Returns what was freed and is not known to have completed.
    pub(super) fn bytes(&self) -> Bytes {
        let on_streams = self.lanes[..self.lanes_used.load(Ordering::Relaxed)].iter().map(|lane| {
            let completed = lane.completed.load(Ordering::Acquire);
            lane.retired.load(Ordering::Acquire).wrapping_sub(completed)
        });
        let orphaned: u64 = locked(&self.orphans).iter().map(|orphan| orphan.bytes).sum();
        Bytes(on_streams.sum::<u64>() + orphaned)
    }

    /// Counts a free that was submitted to `stream`, and now and then looks how far the stream has come.
    pub(super) fn retire(&self, context: &DeviceContext, stream: Stream, held: &StreamHold<'_>, bytes: u64) {
        let lane = &self.lanes[stream.slot()];
        lane.retired.fetch_add(bytes, Ordering::AcqRel);
        if self.lanes_used.load(Ordering::Relaxed) <= stream.slot() {
            self.lanes_used.fetch_max(stream.slot() + 1, Ordering::Relaxed);
        }
        if lane.unmarked.fetch_add(1, Ordering::Relaxed) + 1 == FREES_PER_MARK
            && let Err(error) = self.look_or_mark(context, lane, held)
        {
            context.fault().record(error);
        }
    }

    fn look_or_mark(&self, context: &DeviceContext, lane: &Lane, held: &StreamHold<'_>) -> Result<(), DriverError> {
        lane.unmarked.store(0, Ordering::Relaxed);
        self.reap_lane(context, lane, held)?;
        let upto = lane.retired.load(Ordering::Acquire);
        if lane.completed.load(Ordering::Acquire) == upto {
            return Ok(());
        }
        let mut progress = locked(&lane.progress).take();
        let marked = progress.mark(context, held, upto);
        locked(&lane.progress).put_back(progress);
        marked
    }

    /// Moves the lane's completed total up to `upto` and counts the difference as released. Released comes first:
    /// whoever finds a lane with nothing pending may rely on everything in it being counted.
    fn complete(&self, lane: &Lane, upto: u64) {
        let _turn = locked(&lane.completing);
        let completed = lane.completed.load(Ordering::Acquire);
        if is_after(upto, completed) {
            self.released.0.fetch_add(upto.wrapping_sub(completed), Ordering::Release);
            lane.completed.store(upto, Ordering::Release);
        }
    }

    /// Looks how far every stream has come and returns how many bytes were found complete meanwhile, by any thread. A
    /// stream that cannot be asked does not keep the others from being asked, and one that is being captured is left
    /// alone.
    pub(super) fn reap(&self, context: &DeviceContext) -> Result<Bytes, DriverError> {
        let before = self.released();
        let mut outcome = Ok(());
        for slot in self.busy() {
            let held = context.hold_slot_for_question(slot);
            let reap = |held: StreamHold<'_>| self.reap_lane(context, &self.lanes[slot], &held);
            outcome = outcome.and(held.and_then(|held| held.map_or(Ok(()), reap)));
        }
        outcome.and(self.reap_orphans(context))?;
        Ok(Bytes(self.released().wrapping_sub(before)))
    }

    /// Asks the stream how far it has come, and completes everything that was retired before.
    fn reap_lane(&self, context: &DeviceContext, lane: &Lane, held: &StreamHold<'_>) -> Result<(), DriverError> {
        let upto = lane.retired.load(Ordering::Acquire);
        let mut progress = locked(&lane.progress).take();
        let passed = progress.ask(context, Some(held), upto);
        locked(&lane.progress).put_back(progress);
        passed?.into_iter().for_each(|passed| self.complete(lane, passed));
        Ok(())
    }

    fn reap_orphans(&self, context: &DeviceContext) -> Result<(), DriverError> {
        let orphans = std::mem::take(&mut *locked(&self.orphans));
        let (mut left, mut outcome) = (Vec::new(), Ok(()));
        for mut orphan in orphans {
            match orphan.is_done(context) {
                Ok(true) => {
                    self.released.0.fetch_add(orphan.bytes, Ordering::Release);
                    self.orphan_count.fetch_sub(1, Ordering::Release);
                    orphan.progress.forget(context);
                }
                other => {
                    left.push(orphan);
                    outcome = outcome.and(other.map(drop));
                }
            }
        }
        locked(&self.orphans).append(&mut left);
        outcome
    }

    /// Returns the slots of streams with frees that are not known to have run.
    pub(super) fn busy(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.lanes_used.load(Ordering::Relaxed)).filter(|&slot| {
            let lane = &self.lanes[slot];
            lane.completed.load(Ordering::Acquire) != lane.retired.load(Ordering::Acquire)
        })
    }

    /// Returns whether anything is pending on a stream that has ended.
    pub(super) fn has_orphans(&self) -> bool {
        self.orphan_count.load(Ordering::Acquire) > 0
    }

    /// Waits for everything that was freed before, on live streams but those being captured, and on those that have
    /// ended.
    pub(super) fn wait(&self, context: &DeviceContext) -> Result<(), DriverError> {
        for slot in self.busy() {
            if let Some(held) = context.hold_slot_for_question(slot)? {
                // SAFETY: the stream is live while it is held.
                unsafe { context.driver().stream_synchronize(context.device(), held.raw()) }?;
            }
        }
        // Taken out while they are waited for, so that no other thread returns their events meanwhile.
        let mut orphans = std::mem::take(&mut *locked(&self.orphans));
        let waited = orphans.iter_mut().try_for_each(|orphan| orphan.wait(context));
        locked(&self.orphans).extend(orphans);
        waited
    }

    /// Puts what is pending on a stream that ends behind an event of its own, so that the stream may be destroyed.
    pub(super) fn stream_ends(&self, context: &DeviceContext, stream: Stream, raw: RawStream) {
        let lane = &self.lanes[stream.slot()];
        let upto = lane.retired.load(Ordering::Acquire);
        let before = lane.completed.swap(upto, Ordering::AcqRel);
        lane.unmarked.store(0, Ordering::Relaxed);
        locked(&lane.progress).take().forget(context);
        let bytes = upto.wrapping_sub(before);
        if bytes == 0 {
            return;
        }
        let mut progress = StreamProgress::default();
        // An event that is recorded on a stream being captured would become part of the graph.
        let is_captured = context.order_error(stream).is_some_and(|error| error.status == Status::Capturing);
        // SAFETY: the stream is live until everyone has heard that it ends.
        if !is_captured && let Err(error) = unsafe { progress.mark_raw(context, raw, bytes) } {
            context.fault().record(error);
        }
        self.orphan_count.fetch_add(1, Ordering::Release);
        locked(&self.orphans).push(Orphan { bytes, stream, progress });
    }

    /// Returns every event to the context, when the leaf is dropped.
    pub(super) fn return_events(&self, context: &DeviceContext) {
        for lane in &self.lanes {
            locked(&lane.progress).forget(context);
        }
        locked(&self.orphans).drain(..).for_each(|mut orphan| orphan.progress.forget(context));
    }
}

impl Orphan {
    /// Records an event on the heir of the stream, where there is none yet and the heir comes after the stream.
    fn mark(&mut self, context: &DeviceContext) -> Result<(), DriverError> {
        if self.progress.is_marked() {
            return Ok(());
        }
        match context.heir_of(self.stream).and_then(|heir| context.hold(heir)) {
            Ok(held) => self.progress.mark(context, &held, self.bytes),
            // Nothing is ordered after the stream yet.
            Err(_) => Ok(()),
        }
    }

    fn is_done(&mut self, context: &DeviceContext) -> Result<bool, DriverError> {
        self.mark(context)?;
        Ok(self.progress.ask(context, None, self.bytes)?.is_some())
    }

    fn wait(&mut self, context: &DeviceContext) -> Result<(), DriverError> {
        if !self.progress.is_marked() {
            context.order_ended(Duration::MAX);
            context.order_error(self.stream).map_or(Ok(()), Err)?;
        }
        self.mark(context)?;
        self.progress.wait(context)
    }
}
