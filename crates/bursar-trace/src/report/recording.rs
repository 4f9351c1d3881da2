//! A run that was watched.

use super::ground::{Backed, Ground};
use super::peak::{Held, Peak};
use super::series::{After, Series};
use super::tally::Tally;
use crate::{EventKind, Moment, Replay, ReplayError};
use bursar_core::{Bytes, CountingDriver, DeviceMemoryResource, Driver};
use std::sync::Arc;

/// What was seen of one run of a trace through a stack: memory over its operations, and the address space when most was
/// live.
///
/// ```
/// use bursar_core::{Build, Bytes, CountingDriver, DeviceContext, DeviceId, Stack, leaf};
/// use bursar_sim::Sim;
/// use bursar_trace::{Ground, Recording, Replay};
///
/// let trace = bursar_trace::bundled();
/// let driver = CountingDriver::new(Sim::immediate());
/// let context = DeviceContext::open(driver.clone(), DeviceId(0))?;
/// let memory = Stack::new().over(leaf::Async).build(&context)?;
/// let replay = Replay::new(&trace, &context)?;
/// let recording = Recording::watch(&replay, &memory, &driver, &Ground::default(), Bytes::ZERO)?;
/// assert_eq!(recording.peak_live(), trace.peak_live());
/// assert!(recording.peak_reserved() >= recording.peak_live());
/// # Ok::<(), bursar_trace::ReplayError>(())
/// ```
#[derive(Debug)]
pub struct Recording {
    pub(super) series: Series,
    pub(super) tally: Tally,
    /// Blocks that the trace never frees.
    pub(super) left: u64,
    pub(super) peak: AtPeak,
    peak_reserved: u64,
}

/// The moment when most was live.
#[derive(Debug, Default)]
pub(super) struct AtPeak {
    pub(super) operation: u64,
    pub(super) live: u64,
    pub(super) reserved: u64,
    /// By address.
    pub(super) blocks: Vec<Held>,
    /// What had memory behind it, as far as the stack told.
    pub(super) backed: Arc<Backed>,
}

impl Recording {
    /// Makes one more pass through `memory`, which was built on `driver`, and watches it. `ground` has been listening to
    /// that device from the start; `used_before` is what the device held before anything was allocated.
    ///
    /// What the device holds is asked after every operation that made a driver call: no other can have changed it.
    pub fn watch(
        replay: &Replay,
        memory: &dyn DeviceMemoryResource,
        driver: &CountingDriver,
        ground: &Ground,
        used_before: Bytes,
    ) -> Result<Self, ReplayError> {
        let device = memory.context().device();
        let held = || driver.memory(device).map(|memory| memory.used().saturating_sub(used_before).get());
        let mut recorder = Recorder::default();
        let mut reserved = held()?;
        let mut failure = None;
        let mut calls = driver.calls();
        replay.watch(memory, &mut |moment| {
            let made = driver.calls() - calls;
            if made > 0 {
                match held() {
                    Ok(held) => reserved = held,
                    Err(error) => drop(failure.get_or_insert(error)),
                }
            }
            recorder.record(moment, reserved, made, ground);
            calls = driver.calls();
        })?;
        failure.map_or_else(|| Ok(recorder.finish()), |error| Err(error.into()))
    }

    /// The most that was live at a time, by what was asked for.
    pub fn peak_live(&self) -> Bytes {
        Bytes(self.peak.live)
    }

    /// The most that was held of the device at a time.
    pub fn peak_reserved(&self) -> Bytes {
        Bytes(self.peak_reserved)
    }
}

#[derive(Debug, Default)]
struct Recorder {
    series: Series,
    tally: Tally,
    blocks: Peak,
    peak: AtPeak,
    peak_reserved: u64,
}

impl Recorder {
    fn record(&mut self, moment: &Moment<'_>, reserved: u64, calls: u64, ground: &Ground) {
        let Moment { operation, event, live, block } = *moment;
        match (event.kind, block) {
            (EventKind::Free, _) => {
                if let Some(held) = self.blocks.went(event.block) {
                    self.tally.freed(held.asked, operation - held.born);
                }
            }
            (_, Some(block)) => {
                let held = Held {
                    address: block.base().0,
                    granted: block.granted().get(),
                    asked: event.bytes,
                    tag: event.tag,
                    stream: event.stream,
                    born: operation,
                };
                self.blocks.came(event.block, held);
                self.tally.allocated(event.bytes, event.tag, event.stream);
            }
            (_, None) => self.tally.refused(event.stream),
        }
        let live = live.get();
        let refused = event.kind == EventKind::Allocate && block.is_none();
        self.series.push(After { live, reserved, refused, calls });
        self.peak_reserved = self.peak_reserved.max(reserved);
        if self.blocks.look(operation, live) {
            self.peak = AtPeak { operation, live, reserved, blocks: Vec::new(), backed: ground.backed() };
        }
    }

    fn finish(self) -> Recording {
        let left = self.blocks.left();
        let (_, blocks) = self.blocks.finish();
        let Self { series, tally, peak, peak_reserved, .. } = self;
        Recording { series, tally, left, peak: AtPeak { blocks, ..peak }, peak_reserved }
    }
}
