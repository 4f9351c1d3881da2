//! The workers of a stage: what each process is given, and how it is told.

use crate::{FitError, Need};
use bursar_core::{Bytes, DeviceContext, DeviceId, NumaNode};
use bursar_host::{IndexSet, Topology};
use bursar_ledger::{Delegation, Reservation};
use std::ffi::OsString;
use std::process::Command;
use std::sync::Arc;

/// A worker of a stage: its device, its share of the memory that was reserved, and the processors near it. The share goes back
/// when this is dropped, or, of a process that draws on it, when that has ended too.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::fit::{Spec, fit_workers};
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId};
/// use std::process::Command;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let spec = Spec::vram("train", [context]).fixed(Bytes::gib(8)).per_worker(Bytes::gib(16)).want(9);
/// let workers = fit_workers(&spec)?.into_workers()?;
/// assert_eq!(workers.len(), 3);
/// let mut children = Vec::new();
/// for worker in &workers {
///     let mut command = Command::new("true");
///     children.push(worker.apply(&mut command).spawn()?);
///     assert_eq!((worker.device(), worker.limit()), (Some(DeviceId(0)), Some(Bytes::gib(16))));
/// }
/// for mut child in children {
///     assert!(child.wait()?.success());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it gives its share back"]
pub struct Worker {
    number: u64,
    count: u64,
    label: String,
    place: Arc<WorkerPlace>,
    own: Option<WorkerMemory>,
    shared: Option<Arc<WorkerMemory>>,
}

/// The device of a worker, or the machine's memory.
#[derive(Debug)]
struct WorkerPlace {
    context: Option<Arc<DeviceContext>>,
    cpus: Option<IndexSet>,
}

/// Memory reserved for one worker, or for those of one device together.
#[derive(Debug)]
enum WorkerMemory {
    /// A process draws on it by its token.
    Delegated(Delegation),
    /// No other process can draw on it; it is reserved nevertheless.
    Private(Reservation),
}

impl WorkerMemory {
    /// Delegates a reservation if other processes can open its ledger.
    fn of(reservation: Reservation) -> Result<Self, FitError> {
        match reservation.ledger().file() {
            Some(_) => Ok(Self::Delegated(reservation.delegate()?)),
            None => Ok(Self::Private(reservation)),
        }
    }

    fn bytes(&self) -> Bytes {
        match self {
            Self::Delegated(delegation) => delegation.bytes(),
            Self::Private(reservation) => reservation.bytes(),
        }
    }

    fn token(&self) -> Option<String> {
        match self {
            Self::Delegated(delegation) => Some(delegation.token()),
            Self::Private(_) => None,
        }
    }
}

impl Worker {
    /// The environment variable with the number of a worker, from 0.
    pub const NUMBER_VARIABLE: &str = "BURSAR_WORKER";
    /// The environment variable with the number of workers there are.
    pub const COUNT_VARIABLE: &str = "BURSAR_WORKERS";
    /// The environment variable with the name of the stage.
    pub const LABEL_VARIABLE: &str = "BURSAR_LABEL";
    /// The environment variable with the token of the memory that the workers of one device share.
    pub const SHARED_VARIABLE: &str = "BURSAR_RESERVATION_SHARED";
    /// The environment variable with the UUID of the worker's device, which is then the only one CUDA sees.
    pub const DEVICE_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

    /// Returns the number of the worker, from 0.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns how many workers the stage has.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the name of the stage.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the context of the worker's device; none for the machine's memory.
    pub fn context(&self) -> Option<&Arc<DeviceContext>> {
        self.place.context.as_ref()
    }

    /// Returns the worker's device; none for the machine's memory.
    pub fn device(&self) -> Option<DeviceId> {
        self.context().map(|context| context.device())
    }

    /// Returns the node that its device is near, if that is known.
    pub fn numa_node(&self) -> NumaNode {
        self.context().map_or(NumaNode::UNKNOWN, |context| context.facts().numa_node)
    }

    /// Returns the processors near its device, if they are known: those that `bursar run` runs a worker on.
    pub fn cpus(&self) -> Option<&IndexSet> {
        self.place.cpus.as_ref()
    }

    /// Returns the bytes that are reserved for it alone; none if that was not said.
    pub fn limit(&self) -> Option<Bytes> {
        self.own.as_ref().map(WorkerMemory::bytes)
    }

    /// Returns the variables by which its process learns what it was given.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![
            (Self::NUMBER_VARIABLE, self.number.to_string().into()),
            (Self::COUNT_VARIABLE, self.count.to_string().into()),
            (Self::LABEL_VARIABLE, self.label.clone().into()),
        ];
        let uuid = self.context().map(|context| context.facts().uuid.to_string());
        variables.extend(uuid.map(|uuid| (Self::DEVICE_VARIABLE, uuid.into())));
        let token = |memory: &WorkerMemory| memory.token().map(OsString::from);
        let shared = self.shared.as_deref().and_then(token);
        // If it is not known what each worker needs, all draw on what they share.
        let own = self.own.as_ref().and_then(token).or(shared.clone());
        variables.extend(own.map(|token| (Reservation::VARIABLE, token)));
        variables.extend(shared.map(|token| (Self::SHARED_VARIABLE, token)));
        variables
    }

    /// Sets for `command` what `bursar run` sets for a worker: its number and their count, the name of the stage, its device, and
    /// the tokens of its share and of what the workers of a device share. A share of this process itself is not handed on.
    pub fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env_remove(Reservation::VARIABLE).env_remove(Self::SHARED_VARIABLE).envs(self.variables())
    }
}

/// The memory reserved on one device, or in the machine's memory, for so many workers.
pub(super) struct Reserved {
    pub(super) context: Option<Arc<DeviceContext>>,
    pub(super) workers: u64,
    pub(super) reservation: Option<Reservation>,
}

/// Splits what was reserved into workers, numbered in order.
pub(super) fn split(label: &str, need: &Need, reserved: Vec<Reserved>) -> Result<Vec<Worker>, FitError> {
    let topology = Topology::here().ok();
    let count = reserved.iter().map(|reserved| reserved.workers).sum();
    let mut workers: Vec<Worker> = Vec::new();
    for Reserved { context, workers: here, reservation } in reserved {
        let cpus = context.as_ref().and_then(|context| cpus_near(context, topology.as_ref()));
        let place = Arc::new(WorkerPlace { context, cpus });
        let (own, shared) = split_memory(need, here, reservation)?;
        for (number, own) in (workers.len() as u64..).zip(own) {
            let (label, place, shared) = (label.to_owned(), place.clone(), shared.clone());
            workers.push(Worker { number, count, label, place, own, shared });
        }
    }
    Ok(workers)
}

/// Returns the processors near a device, if its place in the machine is known.
fn cpus_near(context: &DeviceContext, topology: Option<&Topology>) -> Option<IndexSet> {
    let facts = context.facts();
    facts.numa_node.index()?;
    Some(topology?.cpus_of_gpu(facts.pci?)).filter(|cpus| !cpus.is_empty())
}

/// The memory of each worker of a device, and what they share.
type SplitMemory = (Vec<Option<WorkerMemory>>, Option<Arc<WorkerMemory>>);

fn split_memory(need: &Need, workers: u64, reservation: Option<Reservation>) -> Result<SplitMemory, FitError> {
    let nothing = || (0..workers).map(|_| None).collect();
    let Some(reservation) = reservation else { return Ok((nothing(), None)) };
    let needed = need.per_worker.get().checked_mul(workers).and_then(|bytes| bytes.checked_add(need.fixed.get()));
    // Nothing fits and one worker starts nevertheless: it has what there is.
    if workers == 1 && needed.is_none_or(|needed| reservation.bytes().get() < needed) {
        return Ok((vec![Some(WorkerMemory::of(reservation)?)], None));
    }
    let own = match need.per_worker {
        Bytes::ZERO => nothing(),
        bytes => (0..workers)
            .map(|_| WorkerMemory::of(reservation.split(bytes)?).map(Some))
            .collect::<Result<_, FitError>>()?,
    };
    let shared = (need.fixed > Bytes::ZERO).then(|| WorkerMemory::of(reservation)).transpose()?;
    Ok((own, shared.map(Arc::new)))
}
