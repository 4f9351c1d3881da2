//! Frees of a stream-ordered leaf that may not have run yet, and how the leaf learns that they have.
//!
//! Each stream has a lane with two running totals of bytes: retired (its free was submitted) and completed (it has run).
//! Whoever wants to know takes the retired total, asks the driver whether the stream has run dry, and if so moves the
//! completed total up to it: everything counted in the total was submitted before the question. For streams that never
//! run dry there are marks: a total together with an event recorded after it, at most one for every
//! [`FREES_PER_MARK`] frees. No lock is held while the driver is called.
#![allow(unsafe_code)]

use crate::{Bytes, DeviceContext, DriverError, Progress, RawEvent, RawStream, STREAM_SLOTS, Stream};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The number of frees on a stream before its progress is looked at: at most one event for so many, half of what is
/// promised, since drivers serialise threads.
pub(super) const FREES_PER_MARK: u32 = 64;

/// A counter that every thread writes, on cache lines of its own: what is only read beside it stays in every core's cache.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Contended(pub(super) AtomicU64);

#[derive(Clone, Copy, Debug)]
struct Mark {
    upto: u64,
    event: RawEvent,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane {
    retired: AtomicU64,
    completed: AtomicU64,
    unmarked: AtomicU32,
    marks: Mutex<VecDeque<Mark>>,
    /// Held while the completed total moves.
    completing: Mutex<()>,
}

/// The bytes that were pending on a stream when it ended, and the sign that they have completed.
#[derive(Clone, Copy, Debug)]
struct Orphan {
    bytes: u64,
    sign: Sign,
}

#[derive(Clone, Copy, Debug)]
enum Sign {
    /// An event that was recorded on the stream.
    Event(RawEvent),
    /// No event could be recorded: one will be recorded on the heir of the stream, once there is an order between them.
    Heir(Stream),
}

/// The frees of one leaf that may not have run yet.
#[derive(Debug)]
pub(super) struct Pending {
    lanes: Box<[Lane]>,
    lanes_used: AtomicUsize,
    orphans: Mutex<Vec<Orphan>>,
    /// The number of orphans, those being asked about included.
    orphan_count: AtomicUsize,
    released: Contended,
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
            released: Contended::default(),
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
    pub(super) fn retire(&self, context: &DeviceContext, stream: Stream, raw: RawStream, bytes: u64) {
        let lane = &self.lanes[stream.slot()];
        lane.retired.fetch_add(bytes, Ordering::AcqRel);
        if self.lanes_used.load(Ordering::Relaxed) <= stream.slot() {
            self.lanes_used.fetch_max(stream.slot() + 1, Ordering::Relaxed);
        }
        if lane.unmarked.fetch_add(1, Ordering::Relaxed) + 1 == FREES_PER_MARK
            && let Err(error) = self.look_or_mark(context, lane, raw)
        {
            context.fault().record(error);
        }
    }

    fn look_or_mark(&self, context: &DeviceContext, lane: &Lane, raw: RawStream) -> Result<(), DriverError> {
        lane.unmarked.store(0, Ordering::Relaxed);
        self.reap_lane(context, lane, raw)?;
        let upto = lane.retired.load(Ordering::Acquire);
        if lane.completed.load(Ordering::Acquire) != upto {
            let event = recorded_event(context, raw)?;
            locked(&lane.marks).push_back(Mark { upto, event });
        }
        Ok(())
    }

    /// Asks whether the stream has run dry and, if so, completes everything that was retired before the question.
    fn complete_if_dry(&self, context: &DeviceContext, lane: &Lane, raw: RawStream) -> Result<bool, DriverError> {
        let upto = lane.retired.load(Ordering::Acquire);
        // SAFETY: lanes are asked about with a live stream of this device.
        let dry = unsafe { context.driver().stream_query(context.device(), raw) }?.is_complete();
        if dry {
            self.complete(lane, upto);
            let (passed, ahead): (Vec<_>, Vec<_>) =
                locked(&lane.marks).drain(..).partition(|mark| !is_after(mark.upto, upto));
            passed.iter().for_each(|mark| give_event(context, mark.event));
            locked(&lane.marks).extend(ahead);
        }
        Ok(dry)
    }

    /// Moves the lane's completed total up to `upto` and counts the difference as released. Released comes first: whoever
    /// finds a lane with nothing pending may rely on everything in it being counted.
    fn complete(&self, lane: &Lane, upto: u64) {
        let _turn = locked(&lane.completing);
        let completed = lane.completed.load(Ordering::Acquire);
        if is_after(upto, completed) {
            self.released.0.fetch_add(upto.wrapping_sub(completed), Ordering::Release);
            lane.completed.store(upto, Ordering::Release);
        }
    }

    /// Looks how far every stream has come and returns how many bytes were found complete meanwhile, by any thread. A
    /// stream that cannot be asked does not keep the others from being asked.
    pub(super) fn reap(&self, context: &DeviceContext) -> Result<Bytes, DriverError> {
        let before = self.released();
        let mut outcome = Ok(());
        for slot in self.busy() {
            if let Some(held) = context.hold_slot(slot) {
                outcome = outcome.and(self.reap_lane(context, &self.lanes[slot], held.raw()));
            }
        }
        outcome.and(self.reap_orphans(context))?;
        Ok(Bytes(self.released().wrapping_sub(before)))
    }

    fn reap_lane(&self, context: &DeviceContext, lane: &Lane, raw: RawStream) -> Result<(), DriverError> {
        if self.complete_if_dry(context, lane, raw)? {
            return Ok(());
        }
        loop {
            let Some(mark) = locked(&lane.marks).pop_front() else {
                return Ok(());
            };
            // SAFETY: marks hold live events of this device.
            match unsafe { context.driver().event_query(context.device(), mark.event) } {
                Ok(progress) if progress.is_complete() => {
                    self.complete(lane, mark.upto);
                    give_event(context, mark.event);
                }
                other => {
                    locked(&lane.marks).push_front(mark);
                    return other.map(drop);
                }
            }
        }
    }

    fn reap_orphans(&self, context: &DeviceContext) -> Result<(), DriverError> {
        let orphans = std::mem::take(&mut *locked(&self.orphans));
        let (mut left, mut outcome) = (Vec::new(), Ok(()));
        for mut orphan in orphans {
            match orphan.is_done(context) {
                Ok(true) => {
                    self.released.0.fetch_add(orphan.bytes, Ordering::Release);
                    self.orphan_count.fetch_sub(1, Ordering::Release);
                    orphan.give_event_back(context);
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

    /// Waits for everything that was freed before, on live streams and on those that have ended.
    pub(super) fn wait(&self, context: &DeviceContext) -> Result<(), DriverError> {
        for slot in self.busy() {
            if let Some(held) = context.hold_slot(slot) {
                // SAFETY: the stream is live while it is held.
                unsafe { context.driver().stream_synchronize(context.device(), held.raw()) }?;
            }
        }
        // Taken out while they are waited for, so that nobody gives their events back meanwhile.
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
        let marks = std::mem::take(&mut *locked(&lane.marks));
        marks.iter().for_each(|mark| give_event(context, mark.event));
        let bytes = upto.wrapping_sub(before);
        if bytes == 0 {
            return;
        }
        let sign = recorded_event(context, raw).map_or_else(
            |error| {
                context.fault().record(error);
                Sign::Heir(stream)
            },
            Sign::Event,
        );
        self.orphan_count.fetch_add(1, Ordering::Release);
        locked(&self.orphans).push(Orphan { bytes, sign });
    }

    /// Gives every event back, when the leaf is dropped.
    pub(super) fn give_events_back(&self, context: &DeviceContext) {
        for lane in &self.lanes {
            locked(&lane.marks).drain(..).for_each(|mark| give_event(context, mark.event));
        }
        locked(&self.orphans).drain(..).for_each(|orphan| orphan.give_event_back(context));
    }
}

impl Orphan {
    /// Returns the event that shows completion, recorded now where there was none; `None` while nothing is ordered after the
    /// stream.
    fn event(&mut self, context: &DeviceContext) -> Result<Option<RawEvent>, DriverError> {
        let stream = match self.sign {
            Sign::Event(event) => return Ok(Some(event)),
            Sign::Heir(stream) => stream,
        };
        let Ok(held) = context.heir_of(stream).and_then(|heir| context.hold(heir)) else { return Ok(None) };
        let event = recorded_event(context, held.raw())?;
        self.sign = Sign::Event(event);
        Ok(Some(event))
    }

    fn is_done(&mut self, context: &DeviceContext) -> Result<bool, DriverError> {
        let Some(event) = self.event(context)? else { return Ok(false) };
        // SAFETY: orphans hold live events of this device.
        unsafe { context.driver().event_query(context.device(), event) }.map(Progress::is_complete)
    }

    fn wait(&mut self, context: &DeviceContext) -> Result<(), DriverError> {
        if let Sign::Heir(stream) = self.sign {
            context.order_ended(Duration::MAX);
            context.unordered(stream).map_or(Ok(()), Err)?;
        }
        let Some(event) = self.event(context)? else { return Ok(()) };
        // SAFETY: orphans hold live events of this device.
        unsafe { context.driver().event_synchronize(context.device(), event) }
    }

    fn give_event_back(self, context: &DeviceContext) {
        if let Sign::Event(event) = self.sign {
            give_event(context, event);
        }
    }
}

fn give_event(context: &DeviceContext, event: RawEvent) {
    // SAFETY: marks and orphans take their events from the context, and each is given back once, when it is forgotten.
    unsafe { context.give_event(event) };
}

/// Returns whether running total `a` is further than `b`; both only grow, modulo 2⁶⁴.
fn is_after(a: u64, b: u64) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

fn recorded_event(context: &DeviceContext, raw: RawStream) -> Result<RawEvent, DriverError> {
    let event = context.take_event()?;
    // SAFETY: the event is spare and the stream live, both of this device.
    match unsafe { context.driver().event_record(context.device(), event, raw) } {
        Ok(()) => Ok(event),
        Err(error) => {
            give_event(context, event);
            Err(error)
        }
    }
}
