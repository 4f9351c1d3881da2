//! The description of a stage: its workers, and the memory that they may use.

use crate::{Headroom, HeadroomError, MemoryKind, Need, ProbeError, Ram};
use bursar_core::{Bytes, DeviceContext, DeviceId, NumaNode};
use std::fmt;
use std::sync::Arc;

pub(super) type Probe = dyn Fn(Option<DeviceId>) -> Result<Bytes, ProbeError> + Send + Sync;

/// A stage: the workers that it wants and the memory that they may use. [`plan`](Self::plan) computes how many workers fit,
/// and [`fit_workers`](crate::fit_workers) reserves their memory as well.
///
/// ```
/// use bursar::Bytes;
/// use bursar::fit::Spec;
///
/// let spec = Spec::ram("embed").fixed(Bytes::gib(10)).per_worker(Bytes::gib(4)).want(16).available(Bytes::gib(64));
/// assert_eq!(spec.plan()?.workers, 8);
/// # Ok::<(), bursar::fit::FitError>(())
/// ```
#[derive(Clone)]
pub struct Spec {
    pub(super) label: String,
    pub(super) memory: MemoryKind,
    pub(super) need: Need,
    /// The error of a headroom that was given and is none.
    pub(super) headroom_error: Option<HeadroomError>,
    pub(super) devices: Vec<Arc<DeviceContext>>,
    pub(super) near: NumaNode,
    pub(super) ram: Ram,
    pub(super) probe: Option<Arc<Probe>>,
    pub(super) overflow_is_allowed: bool,
    pub(super) is_across_processes: bool,
}

impl Spec {
    /// Creates a stage in `memory`, without devices, called `label` in the log and in readings of ledgers.
    pub fn new(label: impl Into<String>, memory: MemoryKind) -> Self {
        Self {
            label: label.into(),
            memory,
            need: Need::default(),
            headroom_error: None,
            devices: Vec::new(),
            near: NumaNode::UNKNOWN,
            ram: Ram::of_this_machine(),
            probe: None,
            overflow_is_allowed: memory == MemoryKind::Ram,
            is_across_processes: memory == MemoryKind::Vram,
        }
    }

    /// Creates a stage in the machine's memory.
    pub fn ram(label: impl Into<String>) -> Self {
        Self::new(label, MemoryKind::Ram)
    }

    /// Creates a stage in the memory of these devices: contexts, or GPUs by reference.
    ///
    /// ```
    /// use bursar::device::DeviceContext;
    /// use bursar::fit::Spec;
    /// use bursar::sim::Sim;
    /// use bursar::{Bytes, DeviceId};
    ///
    /// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    /// let plan = Spec::vram("train", [context]).per_worker(Bytes::gib(20)).want(9).plan()?;
    /// assert_eq!(plan.workers, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn vram(label: impl Into<String>, devices: impl IntoIterator<Item = impl Into<Arc<DeviceContext>>>) -> Self {
        Self { devices: devices.into_iter().map(Into::into).collect(), ..Self::new(label, MemoryKind::Vram) }
    }

    /// Sets the bytes that the workers share, on each device that has any.
    #[must_use]
    pub fn fixed(mut self, bytes: Bytes) -> Self {
        self.need.fixed = bytes;
        self
    }

    /// Sets the bytes that each worker needs in addition.
    #[must_use]
    pub fn per_worker(mut self, bytes: Bytes) -> Self {
        self.need.per_worker = bytes;
        self
    }

    /// Sets how many workers there should be.
    #[must_use]
    pub fn want(mut self, workers: u64) -> Self {
        self.need.want = workers;
        self
    }

    /// Sets the fraction of the memory that may be used, such as `0.5`, by this stage and by those who came before: what is left
    /// free stays free, whoever comes next. Planning fails if it is not above 0 and at most 1.
    ///
    /// ```
    /// use bursar::Bytes;
    /// use bursar::fit::Spec;
    ///
    /// let half = |fraction| Spec::ram("embed").available(Bytes(100)).per_worker(Bytes(1)).want(99).headroom(fraction);
    /// assert_eq!(half(0.5).plan()?.workers, 50);
    /// assert!(half(1.5).plan().unwrap_err().to_string().contains("above 0 and at most 1"));
    /// # Ok::<(), bursar::fit::FitError>(())
    /// ```
    #[must_use]
    pub fn headroom(mut self, headroom: impl TryInto<Headroom, Error: Into<HeadroomError>>) -> Self {
        match headroom.try_into() {
            Ok(headroom) => (self.need.headroom, self.headroom_error) = (headroom, None),
            Err(error) => self.headroom_error = Some(error.into()),
        }
        self
    }

    /// Sets RAM aside among all processes of this user: in the machine's ledger, which is made if there is none. Without it a
    /// stage in RAM uses that ledger only where there is one, and among the stages of this process what they set aside is
    /// counted in any case. VRAM is always set aside among all processes.
    #[must_use]
    pub fn across_processes(mut self) -> Self {
        self.is_across_processes = true;
        self
    }

    /// Prefers devices of this node among those that are otherwise equal.
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

    /// Asks `probe` what is available instead of the machine: once for each device, or with none if there is no device.
    #[must_use]
    pub fn probe(
        mut self,
        probe: impl Fn(Option<DeviceId>) -> Result<Bytes, ProbeError> + Send + Sync + 'static,
    ) -> Self {
        self.probe = Some(Arc::new(probe));
        self
    }

    /// Takes `bytes` as what is available, whatever the machine reports.
    #[must_use]
    pub fn available(self, bytes: Bytes) -> Self {
        self.probe(move |_| Ok(bytes))
    }

    /// Continues with one worker if not even that fits: the default in RAM, which swaps, and not in VRAM.
    #[must_use]
    pub fn allow_overflow(mut self, is_allowed: bool) -> Self {
        self.overflow_is_allowed = is_allowed;
        self
    }

    /// Returns the workers wanted and the memory that they need.
    pub const fn need(&self) -> &Need {
        &self.need
    }

    /// Returns the name of the stage in the log and in readings of ledgers.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the kind of memory that the workers use.
    pub const fn memory(&self) -> MemoryKind {
        self.memory
    }

    /// Returns the distance of a device at `node`.
    pub(super) fn distance(&self, node: NumaNode) -> u32 {
        match (self.near.index(), node.index()) {
            (None, _) => 0,
            (Some(near), Some(node)) => u32::from(near != node),
            (Some(_), None) => 2,
        }
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, memory, need, devices, near, probe, overflow_is_allowed, .. } = self;
        f.debug_struct("Spec")
            .field("label", label)
            .field("memory", memory)
            .field("need", need)
            .field("devices", &devices.iter().map(|device| device.device()).collect::<Vec<_>>())
            .field("near", near)
            .field("has_probe", &probe.is_some())
            .field("overflow_is_allowed", overflow_is_allowed)
            .finish_non_exhaustive()
    }
}
