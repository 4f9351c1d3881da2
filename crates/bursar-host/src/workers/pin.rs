//! The steps of a request, on the thread of a worker.
//!
//! Each step returns a value that the next one takes over, and that releases itself when it is dropped. So a request can end
//! at any step, by an error, a panic, or because it was given up, and nothing leaks.

use super::worker::WorkerEnvironment;
use crate::cache::PieceCache;
use crate::memory::{Charge, Slab, StrandedSlabs};
use crate::{
    Errno, HostError, Machine, PinStep, PinnedKind, PinnedOptions, Placement, Region, StepOutcome, System, Topology,
};
use bursar_core::{Bytes, DeviceContext, DriverError, NumaNode, Status};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The size from which helper threads are worth starting.
const PARALLEL_MIN: usize = 16 << 20;
/// The most that a thread touches before it checks whether to go on, a multiple of huge pages.
const CHUNK_MAX: usize = 32 << 20;
const CHUNK_MIN: usize = 2 << 20;
/// The most threads that touch memory; more do not write it faster.
const THREADS_MAX: usize = 64;

/// The specification of a slab: its size, a multiple of pages, its device, and the options.
#[derive(Debug)]
pub(crate) struct SlabSpec {
    pub(crate) context: Arc<DeviceContext>,
    pub(crate) bytes: usize,
    pub(crate) options: PinnedOptions,
    /// The cache whose free memory may be released where none is left.
    pub(crate) evictable: Option<Arc<PieceCache>>,
}

/// Called between steps; an error ends the request.
pub(crate) type Checkpoint<'a> = dyn Fn(PinStep) -> Result<(), HostError> + Sync + 'a;

/// The binding of a worker to the node that it serves.
#[derive(Clone, Debug)]
pub(crate) struct NodeBinding {
    node: NumaNode,
    memory_node: NumaNode,
    worker_pinned: StepOutcome,
    cpus: usize,
}

impl NodeBinding {
    /// Pins the calling thread to the CPUs of a node, or of the nearest one, and lets the kernel confirm it. Returns the
    /// outcome.
    pub(crate) fn take(system: &dyn System, topology: &Topology, node: NumaNode) -> Self {
        let wanted = node.index().and_then(|index| topology.cpus_near(index)).map(|near| &near.cpus);
        let worker_pinned = match (node.index(), wanted) {
            (None, _) => StepOutcome::NotAsked,
            (Some(_), None) => StepOutcome::Absent,
            (Some(_), Some(cpus)) => {
                let confirmed = system.run_on(cpus).and_then(|()| system.runs_on());
                confirmed.and_then(|on| if on.is_within(cpus) { Ok(()) } else { Err(Errno(libc::ESRCH)) }).into()
            }
        };
        if !worker_pinned.is_done() && !topology.cpus().is_empty() {
            // It would otherwise inherit the CPUs of the thread that made the first request. If it may not run elsewhere, it
            // stays there.
            let _ = system.run_on(topology.cpus());
        }
        let memory_node = node.index().and_then(|index| topology.memory_near(index));
        let memory_node = memory_node.map_or(NumaNode::UNKNOWN, |near| NumaNode::new(near.index));
        let cpus = system.runs_on().map_or(1, |cpus| cpus.len()).clamp(1, THREADS_MAX);
        if worker_pinned.has_failed() {
            tracing::warn!(%node, %worker_pinned, "the worker of this NUMA node is not pinned to it");
        }
        Self { node, memory_node, worker_pinned, cpus }
    }
}

/// Creates a slab. If there is too little memory, the free memory of a pool is released first, what pools have given up is waited
/// for, and it is tried once more.
pub(crate) fn pin(
    spec: &SlabSpec,
    binding: &NodeBinding,
    environment: &WorkerEnvironment,
    checkpoint: &Checkpoint<'_>,
) -> Result<Slab, HostError> {
    let WorkerEnvironment { system, stranded, releaser, .. } = environment;
    let pin = || pin_once(spec, binding, &**system, stranded, checkpoint);
    let released_before = releaser.released();
    let refused = match pin() {
        Err(refused) if refused.is_capacity() => refused,
        result => return result,
    };
    let evicted = spec.evictable.as_ref().map_or(Bytes::ZERO, |cache| {
        let (evictable, bytes) = cache.take_whole_slabs(Bytes::ZERO);
        // Released before the second try.
        drop(evictable);
        bytes
    });
    releaser.flush_while(|| checkpoint(PinStep::Charge))?;
    if evicted > Bytes::ZERO || releaser.released() != released_before { pin() } else { Err(refused) }
}

fn pin_once(
    spec: &SlabSpec,
    binding: &NodeBinding,
    system: &dyn System,
    stranded: &Arc<StrandedSlabs>,
    checkpoint: &Checkpoint<'_>,
) -> Result<Slab, HostError> {
    let SlabSpec { context, bytes, options, .. } = spec;
    checkpoint(PinStep::Charge)?;
    context.fault().check()?;
    stranded.try_retry();
    let requested = Bytes(*bytes as u64);
    check_limits(system, requested)?;
    let charge = Charge::take(options.account.as_ref(), requested)?;
    let mut placement = Placement {
        node: binding.node,
        memory_node: binding.memory_node,
        worker_pinned: binding.worker_pinned,
        ..Placement::unknown()
    };
    let slab = if options.kind == PinnedKind::Registered {
        let region = place(spec, binding, system, &mut placement, checkpoint)?;
        checkpoint(PinStep::Register)?;
        Slab::register(context, region, charge, stranded)
    } else {
        checkpoint(PinStep::Register)?;
        Slab::allocate(context, *bytes, options.kind, charge, stranded)
    };
    let slab = slab.map_err(|error| not_pinned(spec, system, error))?;
    checkpoint(PinStep::Verify)?;
    placement.verify(system, slab.address(), slab.len(), Machine::page());
    checkpoint(PinStep::Deliver)?;
    Ok(slab.placed(placement))
}

/// Returns a region with memory behind all of it, from the node if possible.
fn place(
    spec: &SlabSpec,
    binding: &NodeBinding,
    system: &dyn System,
    placement: &mut Placement,
    checkpoint: &Checkpoint<'_>,
) -> Result<Region, HostError> {
    let requested = Bytes(spec.bytes as u64);
    let refused = |step| move |why| HostError::System { step, requested, why };
    checkpoint(PinStep::Reserve)?;
    let region = system.reserve(spec.bytes).map_err(refused(PinStep::Reserve))?;
    checkpoint(PinStep::Bind)?;
    placement.bound = match (binding.node.index(), binding.memory_node.index()) {
        (None, _) => StepOutcome::NotAsked,
        (Some(_), None) => StepOutcome::Absent,
        (Some(_), Some(node)) => system.bind(&region, node).into(),
    };
    checkpoint(PinStep::Advise)?;
    if !spec.options.small_pages {
        placement.huge_pages = system.advise_huge(&region).into();
    }
    checkpoint(PinStep::Touch)?;
    placement.threads = touch(&region, system, binding.cpus, checkpoint, &refused(PinStep::Touch))?;
    Ok(region)
}

/// Puts memory behind a region, with helper threads, which inherit the worker's CPUs. Returns the number of threads used.
fn touch(
    region: &Region,
    system: &dyn System,
    cpus: usize,
    checkpoint: &Checkpoint<'_>,
    refused: &(dyn Fn(Errno) -> HostError + Sync),
) -> Result<usize, HostError> {
    let bytes = region.len();
    let chunk = (bytes / (4 * cpus)).clamp(CHUNK_MIN, CHUNK_MAX).next_multiple_of(CHUNK_MIN);
    let chunks = bytes.div_ceil(chunk);
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let failed = || failure.lock().unwrap_or_else(PoisonError::into_inner);
    let touch_on = || {
        while failed().is_none() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= chunks {
                return;
            }
            let part = at * chunk..bytes.min((at + 1) * chunk);
            if let Err(error) = checkpoint(PinStep::Touch).and_then(|()| system.populate(region, part).map_err(refused))
            {
                failed().get_or_insert(error);
            }
        }
    };
    let threads = if bytes < PARALLEL_MIN { 1 } else { cpus.min(chunks) };
    let started = std::thread::scope(|scope| {
        // If a helper cannot be started, the others do its work.
        let start = |n: &usize| {
            std::thread::Builder::new().name(format!("numa-touch-{n}")).spawn_scoped(scope, touch_on).is_ok()
        };
        let helpers = (1..threads).filter(start).count();
        touch_on();
        helpers + 1
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(started),
    }
}

/// Checks that the machine and its control groups have `requested` bytes left, before anything is touched.
pub(crate) fn check_limits(system: &dyn System, requested: Bytes) -> Result<(), HostError> {
    let Some(limit) = system.limits().into_iter().find(|limit| limit.available < requested) else { return Ok(()) };
    let (available, all) = (limit.available, limit.limit);
    Err(match limit.group {
        Some(group) => HostError::ControlGroup { requested, available, limit: all, group },
        None => HostError::NoMemory { requested, available, total: all },
    })
}

/// Returns why the driver did not pin the memory. CUDA on Linux pins without checking the limit on locked memory; where a
/// driver refuses and the limit does not cover the request, the limit is the reason.
fn not_pinned(spec: &SlabSpec, system: &dyn System, why: DriverError) -> HostError {
    let requested = Bytes(spec.bytes as u64);
    let locked = system.locked_memory();
    let is_about_memory = matches!(why.status, Status::OutOfMemory | Status::Other { sticky: false, .. });
    if is_about_memory && !locked.covers(requested) {
        return HostError::LockedMemory { requested, locked: locked.locked, limit: locked.limit, why };
    }
    HostError::Device(spec.context.failed(why))
}
