//! Waiting for every declared use and every stream of a device, for those who take memory away from under them.
#![allow(unsafe_code)]

use super::DeviceContext;
use crate::{Error, Result, STREAM_SLOTS, StreamMisuse, StreamNumber};
use std::time::{Duration, Instant};

/// The time that a wait sleeps between two questions.
const POLL: Duration = Duration::from_micros(50);

/// The number of questions before it sleeps.
const EAGER_POLLS: u32 = 64;

impl DeviceContext {
    /// Waits, at most for `patience`, until every use that was declared before has been submitted and all streams of
    /// this context have run what they were given. Uses of ranges that were [put to sleep](Self::begin_sleep) before are
    /// refused from then on, so what was waited for stays over. A stream that is being captured into a graph is
    /// refused, since it cannot be waited for.
    pub fn wait_for_all_streams(&self, patience: Duration) -> Result<()> {
        let began = Instant::now();
        self.order_ended(patience);
        for slot in 0..STREAM_SLOTS {
            let begun = self.clocks.begun(slot);
            self.poll(slot, began, patience, || Ok(self.clocks.is_over(slot, begun)))?;
        }
        for slot in 0..STREAM_SLOTS {
            let Some(held) = self.hold_slot(slot) else { continue };
            let failed = |error| self.failed(error);
            // SAFETY: the stream is live while it is held.
            let is_capturing = || unsafe { self.driver.stream_is_capturing(self.device, held.raw()) };
            if self.streams.is_exposed_slot(slot) && is_capturing().map_err(failed)? {
                let (device, stream) = (self.device, self.slot_number(slot));
                return Err(Error::StreamMisuse { device, stream, why: StreamMisuse::Capturing });
            }
            self.poll(slot, began, patience, || {
                // SAFETY: the stream is live while it is held.
                let progress = unsafe { self.driver.stream_query(self.device, held.raw()) };
                progress.map(|progress| progress.is_complete()).map_err(failed)
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
            if waited >= patience {
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
