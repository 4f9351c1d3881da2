//! Runs a trace through a stack and measures what the stack cost.
//!
//! `plan.rs` prepares a window of events before the clock starts: which thread does what, and in which slot of the
//! `block_table.rs` each block is kept meanwhile. `pass.rs` runs the windows of one pass, `watch.rs` runs a pass with an
//! observer instead of a clock.
//!
//! - Only operations are timed: parsing, the table of blocks and the streams are prepared before, and the clock is stopped
//!   while the next window of a long trace is read and planned. Threads meet at the end of each window, and only live
//!   blocks pass from one window to the next.
//! - The first pass warms the stack up, the second is timed, and a third, which is watched, finds the peaks.
//! - A trace of one thread is replayed by one thread, with nothing between the events. A trace of several threads is
//!   replayed by as many, each in its own order; a thread that frees a block which another one allocates waits for it.

mod block_table;
mod error;
mod pass;
mod plan;
mod watch;

pub use error::ReplayError;
pub use watch::{ReplayObserver, ReplayStep};

use crate::{Trace, TraceFile};
use bursar_core::{Bytes, CountingDriver, DeviceContext, DeviceMemoryResource, Result, Stream};
use pass::{Pass, PassCounts};
use plan::{Plan, Planner};
use std::sync::Arc;
use std::time::Duration;
use watch::WatchedPass;

/// The cost of a replay: time, driver calls and memory.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::driver::CountingDriver;
/// use bursar::memory::Build;
/// use bursar::sim::Sim;
/// use bursar::trace::Replay;
/// use bursar::{DeviceId, Stack, leaf};
///
/// let trace = bursar::trace::bundled();
/// let driver = CountingDriver::new(Sim::immediate());
/// let context = DeviceContext::open(driver.clone(), DeviceId(0))?;
/// let memory = Stack::new().over(leaf::Async).build(&context)?;
/// let cost = Replay::new(&trace, &context)?.run(&memory, &driver)?;
/// assert_eq!(cost.peak_live, trace.peak_live());
/// assert_eq!(cost.hits, 0, "every operation of this stack reaches the driver");
/// # Ok::<(), bursar::trace::ReplayError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Cost {
    /// The number of allocations and frees in the timed pass.
    pub operations: u64,
    /// Nanoseconds of wall-clock time per operation, over all of them.
    pub ns_per_op: f64,
    /// The number of operations during which the stack made no driver call.
    pub hits: u64,
    /// Nanoseconds per operation without a driver call; `None` if there was none.
    pub ns_per_hit: Option<f64>,
    /// The most requested bytes that were live at a time.
    pub peak_live: Bytes,
    /// The most device memory that was in use at a time.
    pub peak_reserved: Bytes,
    /// The number of allocations that were refused.
    pub refused: u64,
    /// The number of driver calls in the timed pass.
    pub driver_calls: u64,
}

impl Cost {
    /// Returns the device memory in use at its peak, per byte that was live at the peak of those.
    pub fn ratio(&self) -> f64 {
        self.peak_reserved.get() as f64 / (self.peak_live.get() as f64).max(1.0)
    }
}

/// The measurements of a timed pass.
#[derive(Debug)]
struct TimedPass {
    counts: PassCounts,
    elapsed: Duration,
    driver_calls: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Peaks {
    live: Bytes,
    reserved: Bytes,
}

/// The number of operations after which the device memory in use is queried, whether or not more is live than before.
const QUERY_EVERY: u64 = 256;

/// A trace prepared to be replayed on one device.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::device::DeviceContext;
/// use bursar::sim::Sim;
/// use bursar::trace::Replay;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let replay = Replay::new(&bursar::trace::bundled(), &context)?;
/// assert!(replay.operations() > 0);
/// # Ok::<(), bursar::Error>(())
/// ```
#[derive(Debug)]
pub struct Replay {
    source: OperationSource,
    operations: u64,
    streams: Vec<Stream>,
    context: Arc<DeviceContext>,
}

/// The source of the operations.
#[derive(Debug)]
enum OperationSource {
    /// One window, planned once.
    Plan(Plan),
    /// Windows that are read and planned in each pass.
    File(Box<TraceFile>),
}

impl Replay {
    /// Prepares a trace, and creates a stream of the device for each of its streams.
    pub fn new(trace: &Trace, context: &Arc<DeviceContext>) -> Result<Self> {
        let plan = Planner::new(trace.threads.len()).plan(&trace.events);
        let operations = plan.operations.len() as u64;
        Self::with(OperationSource::Plan(plan), operations, trace.streams.len(), context)
    }

    /// Prepares a trace that may be kept in its file. The clock is stopped while a window is read and planned, and the
    /// threads of the trace meet at the end of each window.
    pub fn of(file: &TraceFile, context: &Arc<DeviceContext>) -> Result<Self> {
        match file.whole() {
            Some(trace) => Self::new(trace, context),
            None => Self::with(
                OperationSource::File(Box::new(file.clone())),
                file.summary().operations,
                file.streams().len(),
                context,
            ),
        }
    }

    fn with(source: OperationSource, operations: u64, streams: usize, context: &Arc<DeviceContext>) -> Result<Self> {
        let streams = (0..streams).map(|_| context.create_stream(0)).collect::<Result<_>>()?;
        Ok(Self { source, operations, streams, context: context.clone() })
    }

    /// Returns the number of operations in a pass.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Warms `memory` up with one pass, times a second, and watches a third for the peaks. `driver` is the one that `memory`
    /// was built on.
    pub fn run(&self, memory: &dyn DeviceMemoryResource, driver: &CountingDriver) -> Result<Cost, ReplayError> {
        let used_before = self.device_memory_used()?;
        self.timed_pass(memory, driver)?;
        let timed = self.timed_pass(memory, driver)?;
        let peaks = self.peaks(memory, used_before)?;
        Ok(self.cost(&timed, peaks))
    }

    /// Runs one pass that is watched instead of timed: `observe` is called after each operation, in order. A trace of
    /// several threads is then replayed by one, in the order of the trace.
    pub fn watch(
        &self,
        memory: &dyn DeviceMemoryResource,
        observe: &mut ReplayObserver<'_>,
    ) -> Result<(), ReplayError> {
        let mut watch = WatchedPass::default();
        self.pass(memory, |pass, plan| watch.run(pass, plan, observe)).map(drop)
    }

    fn timed_pass(&self, memory: &dyn DeviceMemoryResource, driver: &CountingDriver) -> Result<TimedPass, ReplayError> {
        let mut driver_calls = 0;
        let pass = self.pass(memory, |pass, plan| {
            let calls = driver.calls();
            pass.run(plan)?;
            driver_calls += driver.calls() - calls;
            Ok(())
        })?;
        Ok(TimedPass { counts: pass.counts, elapsed: pass.elapsed, driver_calls })
    }

    /// Runs one pass: calls `run` with each window in turn, then frees what is still live, even if the pass ended early.
    fn pass<'a>(
        &'a self,
        memory: &'a dyn DeviceMemoryResource,
        mut run: impl FnMut(&mut Pass<'a>, &Plan) -> Result<()>,
    ) -> Result<Pass<'a>, ReplayError> {
        let mut pass = Pass::new(&self.streams, memory);
        let outcome = match &self.source {
            OperationSource::Plan(plan) => run(&mut pass, plan).map_err(ReplayError::from),
            OperationSource::File(file) => {
                let mut planner = Planner::new(file.summary().threads);
                file.each_window(|events| run(&mut pass, &planner.plan(events)).map_err(ReplayError::from))
            }
        };
        let finished = pass.finish();
        outcome?;
        finished?;
        Ok(pass)
    }

    /// Returns the device memory in use, by anyone.
    fn device_memory_used(&self) -> Result<Bytes> {
        Ok(self.context.driver().memory(self.context.device())?.used())
    }

    /// Returns the most bytes that were live and the most device memory in use beyond `used_before`. Runs a watched pass that
    /// queries the driver whenever more is live than ever before, and every [`QUERY_EVERY`] operations.
    fn peaks(&self, memory: &dyn DeviceMemoryResource, used_before: Bytes) -> Result<Peaks, ReplayError> {
        let mut peaks = Peaks::default();
        let mut failure = None;
        self.watch(memory, &mut |step| {
            if step.live > peaks.live || step.operation.is_multiple_of(QUERY_EVERY) {
                peaks.live = peaks.live.max(step.live);
                match self.device_memory_used() {
                    Ok(used) => peaks.reserved = peaks.reserved.max(used.saturating_sub(used_before)),
                    Err(error) => drop(failure.get_or_insert(error)),
                }
            }
        })?;
        failure.map_or(Ok(peaks), |error| Err(error.into()))
    }

    fn cost(&self, timed: &TimedPass, peaks: Peaks) -> Cost {
        let TimedPass { counts, elapsed, driver_calls } = timed;
        let operations = self.operations;
        let hits = operations - counts.misses;
        Cost {
            operations,
            ns_per_op: elapsed.as_nanos() as f64 / operations.max(1) as f64,
            hits,
            ns_per_hit: (hits > 0).then(|| counts.hit_ns() / hits as f64),
            peak_live: peaks.live,
            peak_reserved: peaks.reserved,
            refused: counts.refused,
            driver_calls: *driver_calls,
        }
    }
}
