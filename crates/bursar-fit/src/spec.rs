//! What a stage wants, and where it may go.

use crate::{Headroom, Need, Pool, ProbeError, Ram};
use bursar_core::{Bytes, DeviceContext, DeviceId, NumaNode};
use std::fmt;
use std::sync::Arc;

pub(crate) type Probe = dyn Fn(Option<DeviceId>) -> Result<Bytes, ProbeError> + Send + Sync;

/// What a stage wants and where it may go: [`plan`](Self::plan) says how many workers fit, and
/// [`fit_workers`](crate::fit_workers) sets their memory aside as well.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_fit::Spec;
///
/// let spec = Spec::ram("embed").fixed(Bytes::gib(10)).per_worker(Bytes::gib(4)).want(16).available(Bytes::gib(64));
/// assert_eq!(spec.plan()?.workers, 8);
/// # Ok::<(), bursar_fit::FitError>(())
/// ```
#[derive(Clone)]
pub struct Spec {
    pub(crate) label: String,
    pub(crate) pool: Pool,
    pub(crate) need: Need,
    pub(crate) devices: Vec<Arc<DeviceContext>>,
    pub(crate) near: NumaNode,
    pub(crate) ram: Ram,
    pub(crate) probe: Option<Arc<Probe>>,
    pub(crate) overflow_is_allowed: bool,
}

impl Spec {
    /// A stage in `pool`, called `label` where it is logged.
    pub fn new(label: impl Into<String>, pool: Pool) -> Self {
        Self {
            label: label.into(),
            pool,
            need: Need::default(),
            devices: Vec::new(),
            near: NumaNode::UNKNOWN,
            ram: Ram::of_this_machine(),
            probe: None,
            overflow_is_allowed: pool == Pool::Ram,
        }
    }

    /// A stage in the machine's memory.
    pub fn ram(label: impl Into<String>) -> Self {
        Self::new(label, Pool::Ram)
    }

    /// A stage in the memory of these devices.
    ///
    /// ```
    /// use bursar_core::{Bytes, DeviceContext, DeviceId};
    /// use bursar_fit::Spec;
    /// use bursar_sim::Sim;
    ///
    /// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    /// let plan = Spec::vram("train", [context]).per_worker(Bytes::gib(20)).want(9).plan()?;
    /// assert_eq!(plan.workers, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn vram(label: impl Into<String>, devices: impl IntoIterator<Item = Arc<DeviceContext>>) -> Self {
        Self { devices: devices.into_iter().collect(), ..Self::new(label, Pool::Vram) }
    }

    /// What the workers share: on each device that has any.
    #[must_use]
    pub fn fixed(mut self, bytes: Bytes) -> Self {
        self.need.fixed = bytes;
        self
    }

    /// What each worker needs beside it.
    #[must_use]
    pub fn per_worker(mut self, bytes: Bytes) -> Self {
        self.need.per_worker = bytes;
        self
    }

    /// How many workers there should be.
    #[must_use]
    pub fn want(mut self, workers: u64) -> Self {
        self.need.want = workers;
        self
    }

    /// The fraction of what is available that may be used.
    #[must_use]
    pub fn headroom(mut self, headroom: Headroom) -> Self {
        self.need.headroom = headroom;
        self
    }

    /// Of devices that are as good otherwise, those of this node are taken first.
    #[must_use]
    pub fn near(mut self, node: NumaNode) -> Self {
        self.near = node;
        self
    }

    /// Reads the machine's memory from another folder than the root of this machine.
    #[must_use]
    pub fn machine(mut self, ram: Ram) -> Self {
        self.ram = ram;
        self
    }

    /// Asks `probe` what is available, instead of the machine: of each device, or of none where there is no device.
    #[must_use]
    pub fn probe(
        mut self,
        probe: impl Fn(Option<DeviceId>) -> Result<Bytes, ProbeError> + Send + Sync + 'static,
    ) -> Self {
        self.probe = Some(Arc::new(probe));
        self
    }

    /// So much is available, whatever the machine says.
    #[must_use]
    pub fn available(self, bytes: Bytes) -> Self {
        self.probe(move |_| Ok(bytes))
    }

    /// Goes on with one worker where not even that fits: the default in RAM, which swaps, and not in VRAM.
    #[must_use]
    pub fn allow_overflow(mut self, is_allowed: bool) -> Self {
        self.overflow_is_allowed = is_allowed;
        self
    }

    /// What was asked for.
    pub const fn need(&self) -> &Need {
        &self.need
    }

    /// The memory that it is about.
    pub const fn pool(&self) -> Pool {
        self.pool
    }

    /// How far away something at `node` is.
    pub(crate) fn distance(&self, node: NumaNode) -> u32 {
        match (self.near.index(), node.index()) {
            (None, _) => 0,
            (Some(near), Some(node)) => u32::from(near != node),
            (Some(_), None) => 2,
        }
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, pool, need, devices, near, probe, overflow_is_allowed, .. } = self;
        f.debug_struct("Spec")
            .field("label", label)
            .field("pool", pool)
            .field("need", need)
            .field("devices", &devices.iter().map(|device| device.device()).collect::<Vec<_>>())
            .field("near", near)
            .field("has_probe", &probe.is_some())
            .field("overflow_is_allowed", overflow_is_allowed)
            .finish_non_exhaustive()
    }
}
