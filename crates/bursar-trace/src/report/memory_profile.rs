//! The memory of a run over its operations.

use super::backed_addresses::{AddressRanges, BackedAddresses};
use super::peak::{PeakTracker, PlacedBlock};
use super::series::{Sample, Series};
use super::totals::AllocationTotals;
use crate::{EventKind, Replay, ReplayError, ReplayStep};
use bursar_core::{Bytes, CountingDriver, DeviceMemoryResource, Driver};
use std::sync::Arc;

/// The memory of one replay of a trace through a stack: live and reserved bytes over its operations, and the address space
/// at the peak.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::driver::CountingDriver;
/// use bursar::memory::Build;
/// use bursar::sim::Sim;
/// use bursar::trace::{BackedAddresses, MemoryProfile, Replay};
/// use bursar::{Bytes, DeviceId, Stack, leaf};
///
/// let trace = bursar::trace::bundled();
/// let driver = CountingDriver::new(Sim::immediate());
/// let context = DeviceContext::open(driver.clone(), DeviceId(0))?;
/// let memory = Stack::new().over(leaf::Async).build(&context)?;
/// let replay = Replay::new(&trace, &context)?;
/// let profile = MemoryProfile::watch(&replay, &memory, &driver, &BackedAddresses::default(), Bytes::ZERO)?;
/// assert_eq!(profile.peak_live(), trace.peak_live());
/// assert!(profile.peak_reserved() >= profile.peak_live());
/// # Ok::<(), bursar::trace::ReplayError>(())
/// ```
#[derive(Debug)]
pub struct MemoryProfile {
    pub(super) series: Series,
    pub(super) totals: AllocationTotals,
    /// The number of blocks that the trace never frees.
    pub(super) never_freed: u64,
    pub(super) peak: PeakSnapshot,
    peak_reserved: u64,
}

/// The state when most bytes were live.
#[derive(Debug, Default)]
pub(super) struct PeakSnapshot {
    pub(super) operation: u64,
    pub(super) live: u64,
    pub(super) reserved: u64,
    /// By address.
    pub(super) blocks: Vec<PlacedBlock>,
    /// The addresses that had memory behind them, as far as records of the stack tell.
    pub(super) backed: Arc<AddressRanges>,
}

impl MemoryProfile {
    /// Runs one more pass through `memory`, which was built on `driver`, and watches it. `backed_addresses` has observed the
    /// device from the start; `used_before` is the device memory that was in use before anything was allocated.
    ///
    /// The device memory in use is queried after every operation that made a driver call: no other can have changed it.
    pub fn watch(
        replay: &Replay,
        memory: &dyn DeviceMemoryResource,
        driver: &CountingDriver,
        backed_addresses: &BackedAddresses,
        used_before: Bytes,
    ) -> Result<Self, ReplayError> {
        let device = memory.context().device();
        let used = || driver.memory(device).map(|memory| memory.used().saturating_sub(used_before).get());
        let mut recorder = Recorder::default();
        let mut reserved = used()?;
        let mut failure = None;
        let mut calls = driver.calls();
        replay.watch(memory, &mut |step| {
            let made = driver.calls() - calls;
            if made > 0 {
                match used() {
                    Ok(used) => reserved = used,
                    Err(error) => drop(failure.get_or_insert(error)),
                }
            }
            recorder.record(step, reserved, made, backed_addresses);
            calls = driver.calls();
        })?;
        failure.map_or_else(|| Ok(recorder.finish()), |error| Err(error.into()))
    }

    /// Returns the most requested bytes that were live at a time.
    pub fn peak_live(&self) -> Bytes {
        Bytes(self.peak.live)
    }

    /// Returns the most device memory that was in use at a time.
    pub fn peak_reserved(&self) -> Bytes {
        Bytes(self.peak_reserved)
    }
}

#[derive(Debug, Default)]
struct Recorder {
    series: Series,
    totals: AllocationTotals,
    blocks: PeakTracker,
    peak: PeakSnapshot,
    peak_reserved: u64,
}

impl Recorder {
    fn record(&mut self, step: &ReplayStep<'_>, reserved: u64, calls: u64, backed_addresses: &BackedAddresses) {
        let ReplayStep { operation, event, live, block } = *step;
        match (event.kind, block) {
            (EventKind::Free, _) => {
                if let Some(block) = self.blocks.free(event.block) {
                    self.totals.add_free(block.requested, operation - block.allocated_at);
                }
            }
            (_, Some(block)) => {
                let block = PlacedBlock {
                    address: block.base().0,
                    granted: block.granted().get(),
                    requested: event.bytes,
                    tag: event.tag,
                    stream: event.stream,
                    allocated_at: operation,
                };
                self.blocks.allocate(event.block, block);
                self.totals.add_allocation(event.bytes, event.tag, event.stream);
            }
            (_, None) => self.totals.add_refusal(event.stream),
        }
        let live = live.get();
        let refused = event.kind == EventKind::Allocate && block.is_none();
        self.series.push(Sample { live, reserved, refused, calls });
        self.peak_reserved = self.peak_reserved.max(reserved);
        if self.blocks.set_live(operation, live) {
            self.peak =
                PeakSnapshot { operation, live, reserved, blocks: Vec::new(), backed: backed_addresses.ranges() };
        }
    }

    fn finish(self) -> MemoryProfile {
        let never_freed = self.blocks.live_blocks();
        let (_, blocks) = self.blocks.finish();
        let Self { series, totals, peak, peak_reserved, .. } = self;
        MemoryProfile { series, totals, never_freed, peak: PeakSnapshot { blocks, ..peak }, peak_reserved }
    }
}
