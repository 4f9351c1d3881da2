//! The table: drivers × stacks × clauses.

use crate::Rig;
use bursar_core::{Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Driver, RawStream, Result};
use bursar_sim::Faults;
use libtest_mimic::{Failed, Trial};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Begins (`true`) or ends (`false`) capturing a stream into a graph.
pub type SetCapturing = Box<dyn Fn(DeviceId, RawStream, bool)>;

/// Whether a trial may leave memory behind: only one that loses its device may.
///
/// ```
/// assert_ne!(bursar_conformance::Leaks::Allowed, bursar_conformance::Leaks::Forbidden);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaks {
    /// What a lost device held cannot come back.
    Allowed,
    /// Everything has to.
    Forbidden,
}

/// A driver that was opened for one trial.
///
/// ```
/// use bursar_conformance::Opened;
/// use bursar_sim::Sim;
///
/// let opened = Opened::new(Sim::immediate());
/// assert_eq!(opened.driver.device_count(), 2);
/// ```
pub struct Opened {
    /// The driver.
    pub driver: Arc<dyn Driver>,
    /// What the driver itself has to say once the trial is over.
    pub verdict: Box<dyn Fn(Leaks) -> Result<(), String>>,
    /// How to capture a stream into a graph, where the driver can.
    pub set_capturing: Option<SetCapturing>,
}

impl Opened {
    /// A driver that finds nothing to complain about and cannot capture.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, verdict: Box::new(|_| Ok(())), set_capturing: None }
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("driver", &self.driver).finish_non_exhaustive()
    }
}

/// A driver that stacks are judged on.
///
/// ```
/// use bursar_conformance::{DriverRow, Opened};
/// use bursar_sim::Sim;
///
/// let row = DriverRow { name: "sim", runs: 8, captures: false, pages: true, open: |seed| Ok(Opened::new(Sim::seeded(seed))) };
/// assert!((row.open)(7).is_ok());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DriverRow {
    /// What trials call it.
    pub name: &'static str,
    /// How often each trial runs, each time with another seed.
    pub runs: u64,
    /// Whether [`Opened::set_capturing`] is there.
    pub captures: bool,
    /// Whether its devices map pages.
    pub pages: bool,
    /// Opens it with a seed, or says why it is absent.
    pub open: fn(u64) -> Result<Opened, String>,
}

/// What a stack is, as far as clauses differ by it.
///
/// ```
/// use bursar_conformance::Kind;
///
/// assert_eq!(Kind::default().limit, None);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Kind {
    /// Whether frees complete in stream order rather than at once.
    pub stream_ordered: bool,
    /// The tightest limit in it.
    pub limit: Option<Bytes>,
    /// How much freed memory its guard keeps, where it has one. It writes and reads back every block.
    pub guard: Option<Bytes>,
    /// Whether a pool stands between, so that not every allocation and free reaches the driver.
    pub pooled: bool,
}

type BuildFn = dyn Fn(&Arc<DeviceContext>) -> Result<Arc<dyn DeviceMemoryResource>> + Send + Sync;

/// A stack that is judged.
///
/// ```
/// use bursar_conformance::{Kind, StackRow};
/// use bursar_core::{Stack, leaf};
///
/// let row = StackRow::new("direct", Kind::default(), || Stack::new().over(leaf::Direct));
/// assert_eq!(row.name, "direct");
/// ```
#[derive(Clone)]
pub struct StackRow {
    /// What trials call it.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    build: Arc<BuildFn>,
}

impl StackRow {
    /// The stack that `recipe` makes.
    pub fn new<S: Build + 'static>(name: &'static str, kind: Kind, recipe: fn() -> S) -> Self {
        let build = move |context: &Arc<DeviceContext>| {
            let memory: Arc<dyn DeviceMemoryResource> = Arc::new(recipe().build(context)?);
            Ok(memory)
        };
        Self { name, kind, build: Arc::new(build) }
    }

    /// Builds it for a device.
    pub fn build(&self, context: &Arc<DeviceContext>) -> Result<Arc<dyn DeviceMemoryResource>> {
        (self.build)(context)
    }
}

impl fmt::Debug for StackRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackRow").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// What a clause needs of the stack it judges.
///
/// ```
/// use bursar_conformance::Needs;
///
/// assert_ne!(Needs::Anything, Needs::Limit);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Holds of every stack.
    Anything,
    /// Holds where frees complete in stream order.
    StreamOrder,
    /// Holds where, besides, a block costs so few calls that a stalled stream takes hundreds of blocks: a driver makes
    /// whoever submits more wait.
    Lean,
    /// Holds where frees complete at once.
    Synchronous,
    /// Holds where there is a limit.
    Limit,
    /// Holds where every allocation reaches the driver.
    NoPool,
    /// Holds where a free reaches the driver at once.
    PromptFree,
    /// Holds where there is a pool.
    Pool,
    /// Holds where there is a pool, on a device that maps pages.
    PoolOfPages,
    /// Holds where there is a guard.
    Guard,
    /// Holds where there is a guard that keeps freed memory.
    Quarantine,
    /// Holds of every stack where the driver can capture streams.
    Capture,
    /// Is about the device and not about a stack: judged once a driver.
    Device,
}

impl Needs {
    fn met_by(self, driver: &DriverRow, kind: Kind, first: bool) -> bool {
        match self {
            Self::Anything => true,
            Self::StreamOrder => kind.stream_ordered,
            Self::Lean => kind.stream_ordered && kind.guard.is_none(),
            Self::Synchronous => !kind.stream_ordered,
            Self::Limit => kind.limit.is_some(),
            Self::NoPool => !kind.pooled,
            Self::PromptFree => !kind.pooled && kind.guard.is_none_or(|kept| kept == Bytes::ZERO),
            Self::Pool => kind.pooled,
            Self::PoolOfPages => kind.pooled && driver.pages,
            Self::Guard => kind.guard.is_some(),
            Self::Quarantine => kind.guard.is_some_and(|kept| kept > Bytes::ZERO),
            Self::Capture => driver.captures,
            // What is asked of a device in itself is asked of those that can do everything.
            Self::Device => first && driver.pages,
        }
    }
}

/// One promise, as a trial: it panics where the promise is broken.
///
/// ```
/// use bursar_conformance::{Clause, Needs};
///
/// let clause = Clause { name: "r0_nothing_is_promised", needs: Needs::Anything, run: |_| () };
/// assert_eq!(clause.needs, Needs::Anything);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Clause {
    /// Begins with the clause's number.
    pub name: &'static str,
    /// What it needs of the stack.
    pub needs: Needs,
    /// Judges one rig.
    pub run: fn(&Rig),
}

/// Whether this machine is meant to have a device, so that trials which lack one fail instead of being ignored:
/// `BURSAR_REQUIRE_CUDA=1` says so.
///
/// ```
/// let is_ignored = |is_absent: bool| is_absent && !bursar_conformance::requires_cuda();
/// assert!(!is_ignored(false), "what is there is tried");
/// ```
pub fn requires_cuda() -> bool {
    std::env::var_os("BURSAR_REQUIRE_CUDA").is_some_and(|value| value == "1")
}

/// Every clause, for every driver and every stack that can hold it.
pub fn table(drivers: &[DriverRow], stacks: &[StackRow], clauses: &[Clause]) -> Vec<Trial> {
    let required = requires_cuda();
    let mut trials = Vec::new();
    for driver in drivers {
        let absent = (driver.open)(0).err();
        // Whether a device maps pages makes no difference but to a pool.
        let judged = stacks.iter().enumerate().filter(|(_, stack)| driver.pages || stack.kind.pooled);
        for (nth, stack) in judged {
            for clause in clauses.iter().filter(|clause| clause.needs.met_by(driver, stack.kind, nth == 0)) {
                let subject = if clause.needs == Needs::Device { "device" } else { stack.name };
                let name = format!("{}::{subject}::{}", driver.name, clause.name);
                let ignored = absent.is_some() && !required;
                trials.push(trial(name, *driver, stack.clone(), *clause).with_ignored_flag(ignored));
            }
        }
    }
    trials
}

fn trial(name: String, driver: DriverRow, stack: StackRow, clause: Clause) -> Trial {
    Trial::test(name, move || (0..driver.runs).try_for_each(|seed| judge(driver, &stack, clause, seed)))
}

fn judge(driver: DriverRow, stack: &StackRow, clause: Clause, seed: u64) -> Result<(), Failed> {
    let Opened { driver, verdict, set_capturing } = (driver.open)(seed)?;
    let rig = Rig::new(driver, stack.clone(), seed, set_capturing)?;
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (clause.run)(&rig))) {
        eprint_verdict(seed, &verdict);
        resume_unwind(panic);
    }
    let leaks = if rig.faults.last_error(rig.context.device()).is_some() { Leaks::Allowed } else { Leaks::Forbidden };
    let driver = Arc::downgrade(&rig.faults);
    drop(rig);
    await_end(&driver);
    Ok(verdict(leaks)?)
}

/// Lets threads go that are just ending: what they kept of a pool they give back first, and have the pool in hand meanwhile.
/// The driver is the last thing that a device's context lets go.
fn await_end(driver: &Weak<Faults>) {
    let start = Instant::now();
    while driver.strong_count() > 0 && start.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
}

#[allow(clippy::print_stderr, reason = "what a failing trial has to say beside its panic")]
fn eprint_verdict(seed: u64, verdict: &dyn Fn(Leaks) -> Result<(), String>) {
    let said = verdict(Leaks::Allowed);
    eprintln!("seed {seed}; the driver says: {}", said.map_or_else(|report| report, |()| "nothing".to_owned()));
}
