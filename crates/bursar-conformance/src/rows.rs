//! The rows of the table of trials: drivers and stacks.

use bursar_core::{Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Driver, RawStream, Result};
use std::fmt;
use std::sync::Arc;

/// Begins (`true`) or ends (`false`) capturing a stream into a graph.
pub type SetCapturing = Box<dyn Fn(DeviceId, RawStream, bool)>;

/// A rule for memory that a trial leaves allocated: only a trial that loses its device may leave any.
///
/// ```
/// assert_ne!(bursar_conformance::LeakPolicy::Allowed, bursar_conformance::LeakPolicy::Forbidden);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeakPolicy {
    /// Memory may be left: a lost device cannot return it.
    Allowed,
    /// All memory must have been returned.
    Forbidden,
}

/// A driver that was opened for one trial.
///
/// ```
/// use bursar::sim::Sim;
/// use bursar_conformance::OpenDriver;
///
/// let opened = OpenDriver::new(Sim::immediate());
/// assert_eq!(opened.driver.device_count(), 2);
/// ```
pub struct OpenDriver {
    /// The driver.
    pub driver: Arc<dyn Driver>,
    /// Returns the driver's own findings once the trial is over.
    pub verdict: Box<dyn Fn(LeakPolicy) -> Result<(), String>>,
    /// Begins and ends the capture of a stream into a graph, if the driver can.
    pub set_capturing: Option<SetCapturing>,
}

impl OpenDriver {
    /// Creates a driver that has no findings and cannot capture.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, verdict: Box::new(|_| Ok(())), set_capturing: None }
    }
}

impl fmt::Debug for OpenDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("driver", &self.driver).finish_non_exhaustive()
    }
}

/// A driver that stacks are judged on.
///
/// ```
/// use bursar::sim::Sim;
/// use bursar_conformance::{DriverRow, OpenDriver};
///
/// let row = DriverRow { name: "sim", runs: 8, captures: false, pages: true, open: |seed| Ok(OpenDriver::new(Sim::seeded(seed))) };
/// assert!((row.open)(7).is_ok());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DriverRow {
    /// The name of the driver in the names of trials.
    pub name: &'static str,
    /// The number of runs of each trial, each with another seed.
    pub runs: u64,
    /// True if [`OpenDriver::set_capturing`] is present.
    pub captures: bool,
    /// True if its devices map pages.
    pub pages: bool,
    /// Opens the driver with a seed, or returns why it is absent.
    pub open: fn(u64) -> Result<OpenDriver, String>,
}

/// The properties of a stack by which clauses differ.
///
/// ```
/// use bursar_conformance::StackKind;
///
/// assert_eq!(StackKind::default().limit, None);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct StackKind {
    /// True if frees complete in stream order rather than at once.
    pub stream_ordered: bool,
    /// The tightest limit in the stack.
    pub limit: Option<Bytes>,
    /// The freed memory that its guard quarantines, if it has a guard, which writes and reads back every block.
    pub guard: Option<Bytes>,
    /// True if there is a pool, so that not every allocation and free reaches the driver.
    pub pooled: bool,
}

type BuildFn = dyn Fn(&Arc<DeviceContext>) -> Result<Arc<dyn DeviceMemoryResource>> + Send + Sync;

/// A stack that is judged.
///
/// ```
/// use bursar::{Stack, leaf};
/// use bursar_conformance::{StackKind, StackRow};
///
/// let row = StackRow::new("direct", StackKind::default(), || Stack::new().over(leaf::Direct));
/// assert_eq!(row.name, "direct");
/// ```
#[derive(Clone)]
pub struct StackRow {
    /// The name of the stack in the names of trials.
    pub name: &'static str,
    /// Its properties.
    pub kind: StackKind,
    build: Arc<BuildFn>,
}

impl StackRow {
    /// Creates a row for the stack that `recipe` makes.
    pub fn new<S: Build + 'static>(name: &'static str, kind: StackKind, recipe: fn() -> S) -> Self {
        let build = move |context: &Arc<DeviceContext>| {
            let memory: Arc<dyn DeviceMemoryResource> = Arc::new(recipe().build(context)?);
            Ok(memory)
        };
        Self { name, kind, build: Arc::new(build) }
    }

    /// Builds the stack for a device.
    pub fn build(&self, context: &Arc<DeviceContext>) -> Result<Arc<dyn DeviceMemoryResource>> {
        (self.build)(context)
    }
}

impl fmt::Debug for StackRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackRow").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Returns whether this machine is meant to have a device (`BURSAR_REQUIRE_CUDA=1`), so that trials which lack one fail
/// instead of being ignored.
///
/// ```
/// let is_ignored = |is_absent: bool| is_absent && !bursar_conformance::requires_cuda();
/// assert!(!is_ignored(false), "what is there is tried");
/// ```
pub fn requires_cuda() -> bool {
    std::env::var_os("BURSAR_REQUIRE_CUDA").is_some_and(|value| value == "1")
}
