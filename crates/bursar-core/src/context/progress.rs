//! Following a stream: how far it has come with what it was given.
//!
//! Whoever keeps memory that a stream may still use counts what it gives the stream in a number that only grows, a
//! *position*: bytes freed, a logical time, pieces given back. [`StreamProgress`] finds out up to which position the
//! stream has run. A stream that is idle has passed every position there was before the question. One that never is has
//! events recorded on it, each with the position it covers.
#![allow(unsafe_code)]

use super::DeviceContext;
use crate::{DriverError, Progress, RawEvent, RawStream, StreamHold};
use std::cmp::Ordering;
use std::collections::VecDeque;

/// The events that were recorded on one stream and are not known to have been passed, in the order of their positions.
///
/// It is used with no lock held: keep it behind a lock, take it out with [`take`](Self::take), ask, and put it back
/// with [`put_back`](Self::put_back). Events belong to the context: return them with [`forget`](Self::forget) at the
/// end, since dropping this cannot.
///
/// A position is compared as a running total, modulo 2⁶⁴: a later one is less than 2⁶³ further.
///
/// ```
/// # use bursar::Result;
/// # use bursar::prelude::*;
/// # use bursar::stream::StreamProgress;
/// # fn show(context: &DeviceContext, stream: Stream, given: u64) -> Result<()> {
/// let mut progress = StreamProgress::default();
/// let held = context.hold_for_question(stream)?;
/// match progress.ask(context, Some(&held), given)? {
///     Some(passed) => println!("has run everything up to {passed}"),
///     None if progress.is_marked() => println!("has not passed the next event"),
///     None => progress.mark(context, &held, given)?,
/// }
/// progress.forget(context);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct StreamProgress {
    events: VecDeque<RecordedEvent>,
}

/// An event, and the position that the stream has passed with it.
#[derive(Clone, Copy, Debug)]
struct RecordedEvent {
    event: RawEvent,
    position: u64,
}

impl StreamProgress {
    /// Returns whether an event was recorded and is not known to have been passed.
    pub fn is_marked(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes the events out, to be asked about with no lock held.
    #[must_use = "events that are dropped are lost"]
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Takes out all events but the last, which covers what they cover.
    #[must_use = "events that are dropped are lost"]
    pub fn take_all_but_last(&mut self) -> Self {
        match self.events.len() {
            0 | 1 => Self::default(),
            len => Self { events: self.events.drain(..len - 1).collect() },
        }
    }

    /// Puts events back that were taken out, in the order of their positions with those recorded meanwhile.
    pub fn put_back(&mut self, mut taken: Self) {
        if self.is_marked() {
            taken.events.append(&mut self.events);
            let events = taken.events.make_contiguous();
            events.sort_by(|a, b| compare(a.position, b.position));
        }
        *self = taken;
    }

    /// Returns the position that the stream is known to have passed: `now`, which is read before this is called, if the
    /// stream is idle, and otherwise that of the last event it has passed. Returns `None` if it has passed none.
    ///
    /// `stream` is the stream, or one that comes after everything it was given; `None` where there is no such stream,
    /// and only the events can be asked about.
    pub fn ask(
        &mut self,
        context: &DeviceContext,
        stream: Option<&StreamHold<'_>>,
        now: u64,
    ) -> Result<Option<u64>, DriverError> {
        if let Some(stream) = stream
            && is_idle(context, stream)?
        {
            self.pass(context, now);
            return Ok(Some(now));
        }
        let mut passed = None;
        while let Some(&RecordedEvent { event, position }) = self.events.front() {
            // SAFETY: the event was taken from this context and is returned when it is forgotten.
            match unsafe { context.driver().event_query(context.device(), event) } {
                Ok(Progress::Complete) => {
                    self.events.pop_front();
                    return_event(context, event);
                    passed = Some(position);
                }
                Ok(Progress::Pending) => break,
                // What was found before holds all the same.
                Err(error) => return passed.map_or(Err(error), |passed| Ok(Some(passed))),
            }
        }
        Ok(passed)
    }

    /// Forgets the events at or before a position that has been passed.
    fn pass(&mut self, context: &DeviceContext, passed: u64) {
        // They are in the order of their positions.
        while let Some(&RecordedEvent { event, position }) = self.events.front()
            && !is_after(position, passed)
        {
            self.events.pop_front();
            return_event(context, event);
        }
    }

    /// Records an event on the stream, or on one that comes after it: once the event is passed, so is `now`.
    pub fn mark(&mut self, context: &DeviceContext, stream: &StreamHold<'_>, now: u64) -> Result<(), DriverError> {
        // SAFETY: the stream is live while it is held.
        unsafe { self.mark_raw(context, stream.raw(), now) }
    }

    /// As [`mark`](Self::mark), on a stream that cannot be held any more because its adoption ends.
    ///
    /// # Safety
    /// `stream` is a live stream of the context's device.
    pub(crate) unsafe fn mark_raw(
        &mut self,
        context: &DeviceContext,
        stream: RawStream,
        now: u64,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's own promise.
        let event = unsafe { context.record_event(stream) }?;
        let at = self.events.partition_point(|other| !is_after(other.position, now));
        self.events.insert(at, RecordedEvent { event, position: now });
        Ok(())
    }

    /// Has `waiting` come after everything that `stream` was given before `now`, by an event that then is the only one
    /// here. Where that fails the events stay as they were.
    pub fn have_wait(
        &mut self,
        context: &DeviceContext,
        stream: &StreamHold<'_>,
        waiting: &StreamHold<'_>,
        now: u64,
    ) -> Result<(), DriverError> {
        // SAFETY: the stream is live while it is held.
        let event = unsafe { context.record_event(stream.raw()) }?;
        // SAFETY: the stream is live while it is held, and the event was recorded just above.
        let waited = unsafe { context.driver().stream_wait(context.device(), waiting.raw(), event) };
        waited.inspect_err(|_| return_event(context, event))?;
        self.forget(context);
        self.events.push_back(RecordedEvent { event, position: now });
        Ok(())
    }

    /// Waits until every event has been passed.
    pub fn wait(&self, context: &DeviceContext) -> Result<(), DriverError> {
        self.events.back().map_or(Ok(()), |last| {
            // SAFETY: the event was taken from this context and is returned when it is forgotten.
            unsafe { context.driver().event_synchronize(context.device(), last.event) }
        })
    }

    /// Returns every event to the context.
    pub fn forget(&mut self, context: &DeviceContext) {
        while let Some(recorded) = self.events.pop_front() {
            return_event(context, recorded.event);
        }
    }
}

/// Compares two running totals modulo 2⁶⁴, which are less than 2⁶³ apart.
fn compare(a: u64, b: u64) -> Ordering {
    a.wrapping_sub(b).cast_signed().cmp(&0)
}

/// Returns whether running total `a` is further than `b`.
pub(crate) fn is_after(a: u64, b: u64) -> bool {
    compare(a, b).is_gt()
}

fn is_idle(context: &DeviceContext, stream: &StreamHold<'_>) -> Result<bool, DriverError> {
    // SAFETY: the stream is live while it is held.
    unsafe { context.driver().stream_query(context.device(), stream.raw()) }.map(Progress::is_complete)
}

fn return_event(context: &DeviceContext, event: RawEvent) {
    // SAFETY: the event was taken from this context by `record_event`, and is returned once, when it is forgotten here.
    unsafe { context.return_event(event) };
}
