//! Waiting for every declared use and every stream of a device, for those who take memory away from under them.
#![allow(unsafe_code)]

use super::DeviceContext;
use crate::{Error, RawEvent, Result, STREAM_SLOTS, StreamMisuse, StreamNumber, is_interrupted};
use std::time::{Duration, Instant};

/// The time that a wait sleeps between two questions.
const POLL: Duration = Duration::from_micros(50);

/// The number of questions before it sleeps.
const EAGER_POLLS: u32 = 64;

impl DeviceContext {
    /// Waits, at most for `patience`, until every use that was declared before has been submitted and all streams of
    /// this context have run what they were given until then. Uses of ranges that were [put to sleep](Self::begin_sleep) before are
    /// refused from then on, so what was waited for stays over. A stream that is being captured into a graph is
    /// refused, since it cannot be waited for.
    pub fn wait_for_all_streams(&self, patience: Duration) -> Result<()> {
        let began = Instant::now();
        self.order_ended(patience);
        self.poll(0, began, patience, || Ok(self.has_no_awake_uses()))?;
        for slot in 0..STREAM_SLOTS {
            let begun = self.clocks.begun(slot);
            self.poll(slot, began, patience, || Ok(self.clocks.is_over(slot, begun)))?;
        }
        let mut marks = Marks { context: self, events: Vec::new() };
        (0..STREAM_SLOTS).try_for_each(|slot| marks.add(slot))?;
        for &(slot, event) in &marks.events {
            self.poll(slot, began, patience, || {
                // SAFETY: the event is this context's, and recorded.
                let progress = unsafe { self.driver.event_query(self.device, event) };
                progress.map(|progress| progress.is_complete()).map_err(|error| self.failed(error))
            })?;
        }
        Ok(())
    }

    /// Asks again and again until the answer is yes, or `patience` has passed since `began`.
    fn poll(&self, slot: usize, began: Instant, patience: Duration, ask: impl Fn() -> Result<bool>) -> Result<()> {
        for _ in 0..EAGER_POLLS {
            if ask()? {
                return Ok(());
            }
            std::thread::yield_now();
        }
        while !ask()? {
            let waited = began.elapsed();
            if waited >= patience || is_interrupted() {
                let (device, waited_ms) = (self.device, u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
                return Err(Error::StillInUse { device, stream: self.slot_number(slot), waited_ms });
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn slot_number(&self, slot: usize) -> StreamNumber {
        self.streams.number_at(slot)
    }
}

/// The points that busy streams had come to: what is submitted to them later is not waited for.
struct Marks<'a> {
    context: &'a DeviceContext,
    events: Vec<(usize, RawEvent)>,
}

impl Marks<'_> {
    /// Marks the point of the stream in a slot, if there is one and it is busy.
    fn add(&mut self, slot: usize) -> Result<()> {
        let context = self.context;
        let Some(held) = context.streams.hold_slot_counted(slot) else { return Ok(()) };
        let (driver, device, failed) = (&context.driver, context.device, |error| context.failed(error));
        if context.streams.is_exposed_slot(slot) && context.is_captured(slot, &held).map_err(failed)? {
            let stream = context.slot_number(slot);
            return Err(Error::StreamMisuse { device, stream, why: StreamMisuse::Capturing });
        }
        // SAFETY: the stream is live while it is held.
        let progress = unsafe { driver.stream_query(device, held.raw()) }.map_err(failed)?;
        if !progress.is_complete() {
            // SAFETY: as above.
            self.events.push((slot, unsafe { context.record_event(held.raw()) }.map_err(failed)?));
        }
        Ok(())
    }
}

impl Drop for Marks<'_> {
    fn drop(&mut self) {
        for (_, event) in self.events.drain(..) {
            // SAFETY: taken by `record_event`, and asked about no more.
            unsafe { self.context.return_event(event) };
        }
    }
}
