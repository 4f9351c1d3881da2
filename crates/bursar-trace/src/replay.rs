//! Runs a trace through a stack and measures what the stack cost.
//!
//! Parsing, the table of blocks and the streams are made before the clock starts; it stands still while the next window
//! of a long trace is read. One pass warms the stack up, the second is timed. A trace of one thread is replayed by one
//! thread with nothing between the events; a trace of several by as many threads, each in its own order, and a block
//! that changes hands is waited for by the thread that frees it.

mod pass;
mod plan;
mod table;
mod watch;

pub use watch::{Moment, Observe};

use crate::{ReplayError, Trace, TraceFile};
use bursar_core::{Bytes, CountingDriver, DeviceContext, DeviceMemoryResource, Result, Stream};
use pass::{Pass, Tally};
use plan::{Plan, Planner};
use std::sync::Arc;
use std::time::Duration;
use watch::Watch;

/// What a replay cost and what it held.
///
/// ```
/// use bursar_core::{Build, CountingDriver, DeviceContext, DeviceId, Stack, leaf};
/// use bursar_sim::Sim;
/// use bursar_trace::Replay;
///
/// let trace = bursar_trace::bundled();
/// let driver = CountingDriver::new(Sim::immediate());
/// let context = DeviceContext::open(driver.clone(), DeviceId(0))?;
/// let memory = Stack::new().over(leaf::Async).build(&context)?;
/// let cost = Replay::new(&trace, &context)?.run(&memory, &driver)?;
/// assert_eq!(cost.peak_live, trace.peak_live());
/// assert_eq!(cost.hits, 0, "every operation of this stack reaches the driver");
/// # Ok::<(), bursar_trace::ReplayError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Cost {
    /// Allocations and frees replayed in the timed pass.
    pub operations: u64,
    /// Nanoseconds an operation, over all of them and by the clock on the wall.
    pub ns_per_op: f64,
    /// Operations during which the stack made no driver call.
    pub hits: u64,
    /// Nanoseconds such an operation took; `None` if there was none.
    pub ns_per_hit: Option<f64>,
    /// The most that was live at a time, by what was asked for.
    pub peak_live: Bytes,
    /// The most that was held of the device at a time.
    pub peak_reserved: Bytes,
    /// Allocations that were not granted.
    pub refused: u64,
    /// Driver calls in the timed pass.
    pub driver_calls: u64,
}

impl Cost {
    /// What was held for each byte that was live.
    pub fn ratio(&self) -> f64 {
        self.peak_reserved.get() as f64 / (self.peak_live.get() as f64).max(1.0)
    }
}

/// What a timed pass counted.
#[derive(Debug)]
struct Timed {
    tally: Tally,
    elapsed: Duration,
    driver_calls: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Peaks {
    live: Bytes,
    reserved: Bytes,
}

/// How many operations lie between two questions about what the device holds.
const LOOK_EVERY: u64 = 256;

/// A trace made ready for one device.
///
/// ```
/// use bursar_core::{DeviceContext, DeviceId};
/// use bursar_sim::Sim;
/// use bursar_trace::Replay;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let replay = Replay::new(&bursar_trace::bundled(), &context)?;
/// assert!(replay.operations() > 0);
/// # Ok::<(), bursar_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Replay {
    source: Source,
    operations: u64,
    streams: Vec<Stream>,
    context: Arc<DeviceContext>,
}

/// Where the operations come from.
#[derive(Debug)]
enum Source {
    /// One window, planned once.
    Plan(Plan),
    /// Windows that are read and planned in each pass.
    File(Box<TraceFile>),
}

impl Replay {
    /// Gives each stream of the trace one of the device's.
    pub fn new(trace: &Trace, context: &Arc<DeviceContext>) -> Result<Self> {
        let plan = Planner::new(trace.threads.len()).plan(&trace.events);
        let operations = plan.operations.len() as u64;
        Self::with(Source::Plan(plan), operations, trace.streams.len(), context)
    }

    /// The same for a trace that may not be held whole: the clock stands still while a window is read and planned, and
    /// the threads of the trace meet at its end.
    pub fn of(file: &TraceFile, context: &Arc<DeviceContext>) -> Result<Self> {
        match file.whole() {
            Some(trace) => Self::new(trace, context),
            None => Self::with(
                Source::File(Box::new(file.clone())),
                file.summary().operations,
                file.streams().len(),
                context,
            ),
        }
    }

    fn with(source: Source, operations: u64, streams: usize, context: &Arc<DeviceContext>) -> Result<Self> {
        let streams = (0..streams).map(|_| context.create_stream(0)).collect::<Result<_>>()?;
        Ok(Self { source, operations, streams, context: context.clone() })
    }

    /// How many operations a pass has.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Warms `memory` up with one pass and times a second. `driver` is the one that `memory` was built on.
    pub fn run(&self, memory: &dyn DeviceMemoryResource, driver: &CountingDriver) -> Result<Cost, ReplayError> {
        let used_before = self.used()?;
        self.timed(memory, driver)?;
        let timed = self.timed(memory, driver)?;
        let peaks = self.peaks(memory, used_before)?;
        Ok(self.cost(&timed, peaks))
    }

    /// One pass that is watched instead of timed: `observe` is told after each operation, in order. A trace of several
    /// threads is then replayed by one, in the order of the trace.
    pub fn watch(&self, memory: &dyn DeviceMemoryResource, observe: &mut Observe<'_>) -> Result<(), ReplayError> {
        let mut watch = Watch::default();
        self.pass(memory, |pass, plan| watch.run(pass, plan, observe)).map(drop)
    }

    fn timed(&self, memory: &dyn DeviceMemoryResource, driver: &CountingDriver) -> Result<Timed, ReplayError> {
        let mut driver_calls = 0;
        let pass = self.pass(memory, |pass, plan| {
            let calls = driver.calls();
            pass.run(plan)?;
            driver_calls += driver.calls() - calls;
            Ok(())
        })?;
        Ok(Timed { tally: pass.tally, elapsed: pass.elapsed, driver_calls })
    }

    /// One pass: `run` is given each window in turn, and what is live at the end is freed, also where it ends early.
    fn pass<'a>(
        &'a self,
        memory: &'a dyn DeviceMemoryResource,
        mut run: impl FnMut(&mut Pass<'a>, &Plan) -> Result<()>,
    ) -> Result<Pass<'a>, ReplayError> {
        let mut pass = Pass::new(&self.streams, memory);
        let outcome = match &self.source {
            Source::Plan(plan) => run(&mut pass, plan).map_err(ReplayError::from),
            Source::File(file) => {
                let mut planner = Planner::new(file.summary().threads);
                file.each_window(|events| run(&mut pass, &planner.plan(events)).map_err(ReplayError::from))
            }
        };
        let finished = pass.finish();
        outcome?;
        finished?;
        Ok(pass)
    }

    /// What is in use of the device, by anyone.
    fn used(&self) -> Result<Bytes> {
        Ok(self.context.driver().memory(self.context.device())?.used())
    }

    /// The most that was live and the most that the device held, above `used_before`: a watched pass that asks the driver
    /// whenever more is live than ever before, and now and then.
    fn peaks(&self, memory: &dyn DeviceMemoryResource, used_before: Bytes) -> Result<Peaks, ReplayError> {
        let mut peaks = Peaks::default();
        let mut failure = None;
        self.watch(memory, &mut |moment| {
            if moment.live > peaks.live || moment.operation.is_multiple_of(LOOK_EVERY) {
                peaks.live = peaks.live.max(moment.live);
                match self.used() {
                    Ok(used) => peaks.reserved = peaks.reserved.max(used.saturating_sub(used_before)),
                    Err(error) => drop(failure.get_or_insert(error)),
                }
            }
        })?;
        failure.map_or(Ok(peaks), |error| Err(error.into()))
    }

    fn cost(&self, timed: &Timed, peaks: Peaks) -> Cost {
        let Timed { tally, elapsed, driver_calls } = timed;
        let operations = self.operations;
        let hits = operations - tally.misses;
        Cost {
            operations,
            ns_per_op: elapsed.as_nanos() as f64 / operations.max(1) as f64,
            hits,
            ns_per_hit: (hits > 0).then(|| tally.hit_ns() / hits as f64),
            peak_live: peaks.live,
            peak_reserved: peaks.reserved,
            refused: tally.refused,
            driver_calls: *driver_calls,
        }
    }
}
