//! The options that describe a stage, common to `bursar fit` and `bursar run`.

mod amount;
mod trace_peak;

pub(crate) use amount::parse_size;
pub(crate) use trace_peak::TracePeak;

use crate::failure::Failure;
use crate::output::{BAD, say};
use amount::Amount;
use bursar::device::{DeviceContext, NumaNode};
use bursar::driver::OpenedDriver;
use bursar::fit::{Headroom, MemoryKind, Spec};
use bursar::host::Topology;
use bursar::{Bytes, DeviceId};
use std::path::PathBuf;
use std::sync::Arc;

/// The options of a stage.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Stage {
    /// The memory it is about: ram or vram.
    #[arg(long, default_value = "vram", hide_possible_values = true)]
    pub(crate) pool: MemoryKind,
    /// The memory that all workers of a device share: a size, @FILE or @FILE*FACTOR; several are added up.
    #[arg(long, value_name = "SIZE")]
    fixed: Vec<Amount>,
    /// The memory that each worker needs beside it: a size, @FILE or @FILE*FACTOR.
    #[arg(long, value_name = "SIZE")]
    per_worker: Option<Amount>,
    /// Take what each worker needs from a recorded allocation log: its peak through the pool.
    #[arg(long, value_name = "LOG", conflicts_with = "per_worker")]
    from_trace: Option<PathBuf>,
    /// The number of workers there should be: at least one.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) want: u64,
    /// The fraction that may be used, by these workers and by the programs before them.
    #[arg(long, value_name = "FRACTION", default_value_t)]
    pub(crate) headroom: Headroom,
    /// The memory that is available, whatever the machine says.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) available: Option<Bytes>,
    /// The devices that may be used, by number or UUID; all of them by default.
    #[arg(long, value_name = "GPU,…", value_delimiter = ',')]
    devices: Vec<String>,
    /// The name of the stage in messages, in the log and in `bursar ledger show`, which has its first 49 bytes.
    #[arg(long, value_name = "NAME", default_value = "stage")]
    pub(crate) label: String,
    /// Go on with one worker where not even one fits into VRAM.
    #[arg(long)]
    pub(crate) allow_overflow: bool,
}

impl Stage {
    /// Returns whether devices have to be opened: for VRAM, unless it is only planned for and its size is given.
    pub(crate) fn needs_driver(&self, is_reserving: bool) -> bool {
        self.pool == MemoryKind::Vram && (is_reserving || self.available.is_none())
    }

    /// Replays the recording that workers are measured by, if there is one.
    pub(crate) fn trace_peak(&self) -> Result<Option<TracePeak>, Failure> {
        self.from_trace.as_deref().map(TracePeak::replay).transpose()
    }

    /// Returns whether only some devices may be used.
    pub(crate) fn names_devices(&self) -> bool {
        !self.devices.is_empty()
    }

    /// Returns whether the options say what a worker needs, even if that is nothing.
    pub(crate) fn says_per_worker(&self) -> bool {
        self.per_worker.is_some() || self.from_trace.is_some()
    }

    /// Returns the stage as the library describes it, on the devices of `opened`.
    pub(crate) fn spec(&self, opened: Option<&OpenedDriver>, peak: Option<&TracePeak>) -> Result<Spec, Failure> {
        let fixed = self.fixed.iter().fold(Bytes::ZERO, |sum, amount| sum.saturating_add(amount.0));
        let given = self.per_worker.map_or(Bytes::ZERO, |amount| amount.0);
        let per_worker = peak.map_or(given, |peak| Bytes(peak.peak_pool));
        let spec = match (self.pool, opened) {
            (MemoryKind::Vram, Some(opened)) => Spec::vram(&self.label, self.contexts(opened)?).near(own_node()),
            (memory, _) => Spec::new(&self.label, memory),
        };
        let spec = spec.fixed(fixed).per_worker(per_worker).want(self.want).headroom(self.headroom);
        let spec = if self.allow_overflow { spec.allow_overflow(true) } else { spec };
        Ok(match self.available {
            Some(bytes) => spec.available(bytes),
            None => spec,
        })
    }

    /// Opens the devices that may be used. One that fails is reported and left out.
    fn contexts(&self, opened: &OpenedDriver) -> Result<Vec<Arc<DeviceContext>>, Failure> {
        let mut contexts = Vec::new();
        for ordinal in 0..opened.driver.device_count() {
            match DeviceContext::open(opened.driver.clone(), DeviceId(ordinal)) {
                Ok(context) => contexts.push(context),
                Err(error) => say(format_args!("{BAD}bursar: gpu{ordinal} is left out: {error}{BAD:#}")),
            }
        }
        if self.devices.is_empty() {
            return Ok(contexts);
        }
        let named = |name: &String| {
            let is_meant = |context: &&Arc<DeviceContext>| {
                let (device, uuid) = (context.device(), context.facts().uuid);
                name.parse() == Ok(device.0) || *name == device.to_string() || name.parse() == Ok(uuid)
            };
            let unknown = || Failure::NoSuchDevice {
                name: name.clone(),
                usable: contexts.iter().map(|context| context.device()).collect(),
            };
            contexts.iter().find(is_meant).cloned().ok_or_else(unknown)
        };
        let mut chosen: Vec<Arc<DeviceContext>> = self.devices.iter().map(named).collect::<Result<_, _>>()?;
        chosen.sort_by_key(|context| context.device());
        if chosen.windows(2).any(|pair| pair[0].device() == pair[1].device()) {
            return Err(Failure::Usage("--devices names a device twice: name each once"));
        }
        Ok(chosen)
    }
}

/// Returns the node that this program runs on, if all its processors are on one.
fn own_node() -> NumaNode {
    let Ok(here) = Topology::here() else { return NumaNode::UNKNOWN };
    let mut nodes = here.nodes().iter().filter(|node| !node.cpus.is_empty());
    match (nodes.next(), nodes.next()) {
        (Some(only), None) => NumaNode::new(only.index),
        _ => NumaNode::UNKNOWN,
    }
}
