//! A device, or the machine's memory, and what the workers of this run have there.

use super::bell::Bell;
use super::seat::Seat;
use bursar::fit::{FitError, Need, Ram};
use bursar::host::Topology;
use bursar::ledger::{Delegation, Ledger, Reservation, Subject};
use bursar::{Bytes, DeviceContext, DeviceId, MemoryInfo, NumaNode};
use rustix::thread::CpuSet;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The variable with the token of what the workers of one device share.
pub(crate) const SHARED_VARIABLE: &str = "BURSAR_RESERVATION_SHARED";

/// Where workers go.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) device: Option<DeviceId>,
    numa_node: NumaNode,
    cpus: Option<CpuSet>,
    pub(crate) ledger: Ledger,
    /// Whether a worker can draw on what is set aside here: not where the device is this process's own.
    pub(crate) is_shared: bool,
    environment: Vec<(&'static str, OsString)>,
    bell: Arc<Bell>,
    taken: Mutex<Taken>,
}

/// What the workers of this run have somewhere.
#[derive(Debug, Default)]
struct Taken {
    workers: u64,
    bytes: Bytes,
    shared: Weak<Share>,
}

impl Place {
    /// The device of `context`.
    pub(crate) fn device(
        context: &Arc<DeviceContext>,
        topology: Option<&Topology>,
        told: &[(&'static str, OsString)],
        bell: &Arc<Bell>,
    ) -> Result<Self, FitError> {
        let facts = context.facts();
        let near = facts.pci.filter(|_| facts.numa_node.index().is_some()).zip(topology);
        let cpus = near.map(|(pci, topology)| topology.cpus_of_gpu(pci)).filter(|cpus| !cpus.is_empty());
        let mut environment = told.to_vec();
        environment.push(("CUDA_VISIBLE_DEVICES", facts.uuid.to_string().into()));
        Ok(Self {
            device: Some(context.device()),
            numa_node: facts.numa_node,
            cpus: cpus.map(|cpus| cpu_set(cpus.iter())),
            ledger: Ledger::for_device(context)?,
            is_shared: facts.shared,
            environment,
            bell: bell.clone(),
            taken: Mutex::default(),
        })
    }

    /// The machine's memory.
    pub(crate) fn machine(available: Option<Bytes>, bell: &Arc<Bell>) -> Result<Self, FitError> {
        let total = Ram::of_this_machine().read()?.total;
        let measure = move || {
            let free = available.map_or_else(|| Ram::of_this_machine().read().map(|reading| reading.available()), Ok);
            Ok(MemoryInfo { free: free.map_err(FitError::from)?.min(total), total })
        };
        Ok(Self {
            device: None,
            numa_node: NumaNode::UNKNOWN,
            cpus: None,
            ledger: Ledger::open(&Subject::host(total))?.measured_by(measure),
            is_shared: true,
            environment: Vec::new(),
            bell: bell.clone(),
            taken: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many workers of this run are here, and what is set aside for them.
    pub(crate) fn taken(&self) -> (u64, Bytes) {
        let taken = self.lock();
        (taken.workers, taken.bytes)
    }

    /// What the workers here share, while there are any.
    pub(crate) fn shared(&self) -> Option<Arc<Share>> {
        self.lock().shared.upgrade()
    }

    /// Seats for so many workers out of `reservation`, which has what each needs and what they share, unless `shared` has
    /// that already. One that is smaller, because nothing fits and the workers are to start all the same, is left whole.
    pub(crate) fn seats(
        self: &Arc<Self>,
        need: &Need,
        workers: u64,
        reservation: Option<Reservation>,
        shared: Option<Arc<Share>>,
    ) -> bursar::Result<Vec<Seat>> {
        let Some(reservation) = reservation else {
            return (0..workers).map(|_| self.seat(None, None)).collect();
        };
        let fixed = if shared.is_some() { Bytes::ZERO } else { need.fixed };
        let needed = need.per_worker.get().checked_mul(workers).and_then(|bytes| bytes.checked_add(fixed.get()));
        if workers == 1 && needed.is_none_or(|needed| reservation.bytes().get() < needed) {
            return Ok(vec![self.seat(Some(self.share(reservation)?), None)?]);
        }
        let own = match need.per_worker {
            Bytes::ZERO => (0..workers).map(|_| Ok(None)).collect::<bursar::Result<Vec<_>>>()?,
            bytes => (0..workers)
                .map(|_| reservation.split(bytes).and_then(|own| self.share(own)).map(Some))
                .collect::<bursar::Result<Vec<_>>>()?,
        };
        let shared = match shared {
            None if fixed > Bytes::ZERO => Some(Arc::new(self.share(reservation)?)),
            shared => shared,
        };
        self.lock().shared = shared.as_ref().map(Arc::downgrade).unwrap_or_default();
        own.into_iter().map(|own| self.seat(own, shared.clone())).collect()
    }

    fn seat(self: &Arc<Self>, own: Option<Share>, shared: Option<Arc<Share>>) -> bursar::Result<Seat> {
        let mut environment = self.environment.clone();
        let token = |share: &Share| share.token().map(OsString::from);
        let (drawn, common) = (own.as_ref().and_then(token), shared.as_deref().and_then(token));
        // Where it is not known what each needs, all draw on what they share.
        environment.extend(drawn.or(common.clone()).map(|token| (Reservation::VARIABLE, token)));
        environment.extend(common.map(|token| (SHARED_VARIABLE, token)));
        let limit = own.as_ref().map(|own| own.bytes);
        self.lock().workers += 1;
        let held = Held { own, shared, place: self.clone() };
        Ok(Seat {
            device: self.device,
            numa_node: self.numa_node,
            cpus: self.cpus,
            limit,
            environment,
            _share: Box::new(held),
        })
    }

    fn share(self: &Arc<Self>, reservation: Reservation) -> bursar::Result<Share> {
        let bytes = reservation.bytes();
        let kept = if self.is_shared { Kept::Lent(reservation.delegate()?) } else { Kept::Own(reservation) };
        self.lock().bytes.0 += bytes.get();
        Ok(Share { kept: Some(kept), bytes, place: self.clone() })
    }
}

/// The processors, as the kernel wants them.
fn cpu_set(cpus: impl Iterator<Item = u32>) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.filter(|cpu| (*cpu as usize) < CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu as usize));
    set
}

/// Memory that is set aside, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    kept: Option<Kept>,
    bytes: Bytes,
    place: Arc<Place>,
}

/// How it is kept.
#[derive(Debug)]
enum Kept {
    Lent(Delegation),
    /// Nobody can draw on it, and it is set aside all the same.
    Own(#[expect(dead_code, reason = "it is kept until it is dropped")] Reservation),
}

impl Share {
    fn token(&self) -> Option<String> {
        match &self.kept {
            Some(Kept::Lent(delegation)) => Some(delegation.token()),
            _ => None,
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        drop(self.kept.take());
        self.place.lock().bytes.0 -= self.bytes.get();
        self.place.bell.ring();
    }
}

/// What a seat keeps.
#[derive(Debug)]
struct Held {
    own: Option<Share>,
    shared: Option<Arc<Share>>,
    place: Arc<Place>,
}

impl Drop for Held {
    fn drop(&mut self) {
        drop((self.own.take(), self.shared.take()));
        self.place.lock().workers -= 1;
        self.place.bell.ring();
    }
}
