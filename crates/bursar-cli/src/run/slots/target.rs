//! A device, or the machine's memory, that workers of this run are placed on, and the memory that they have there.

use super::notify::Notify;
use super::{Slot, SlotShare};
use bursar::device::{DeviceContext, NumaNode};
use bursar::fit::{FitError, Need, Ram, Worker};
use bursar::host::Topology;
use bursar::ledger::{Delegation, Ledger, Priority, Reservation};
use bursar::{Bytes, DeviceId};
use rustix::thread::CpuSet;
use std::ffi::OsString;
use std::future::Future as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// The interval at which whoever waits for memory looks whether anybody still wants it.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A device or the machine's memory, with its ledger.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) device: Option<DeviceId>,
    numa_node: NumaNode,
    cpus: Option<CpuSet>,
    pub(super) ledger: Ledger,
    /// True if a worker can draw on memory reserved here: not if the device is private to this process.
    pub(super) is_shared: bool,
    environment: Vec<(&'static str, OsString)>,
    /// Notified when memory is given back.
    freed: Arc<Notify>,
    usage: Mutex<Usage>,
}

/// The workers of this run on a target, and the memory reserved for them.
#[derive(Debug, Default)]
struct Usage {
    workers: u64,
    bytes: Bytes,
    /// The memory that they share, while there are any.
    shared: Weak<ReservedMemory>,
}

impl Target {
    /// Creates the target of the device of `context`. `environment` is set for every worker there.
    pub(super) fn device(
        context: &Arc<DeviceContext>,
        topology: Option<&Topology>,
        environment: &[(&'static str, OsString)],
        freed: &Arc<Notify>,
    ) -> Result<Self, FitError> {
        let facts = context.facts();
        let near = facts.pci.filter(|_| facts.numa_node.index().is_some()).zip(topology);
        let cpus = near.map(|(pci, topology)| topology.cpus_of_gpu(pci)).filter(|cpus| !cpus.is_empty());
        let mut environment = environment.to_vec();
        environment.push((Worker::DEVICE_VARIABLE, facts.uuid.to_string().into()));
        Ok(Self {
            device: Some(context.device()),
            numa_node: facts.numa_node,
            cpus: cpus.map(|cpus| cpu_set(cpus.iter())),
            ledger: Ledger::for_device(context)?,
            is_shared: facts.shared,
            environment,
            freed: freed.clone(),
            usage: Mutex::default(),
        })
    }

    /// Creates the target of the machine's memory.
    pub(super) fn machine(available: Option<Bytes>, freed: &Arc<Notify>) -> Result<Self, FitError> {
        let ram = Ram::of_this_machine();
        let measure = || Ram::of_this_machine().read().map(|reading| reading.available());
        Ok(Self {
            device: None,
            numa_node: NumaNode::UNKNOWN,
            cpus: None,
            ledger: ram.open_ledger(move || available.map_or_else(measure, Ok))?,
            is_shared: true,
            environment: Vec::new(),
            freed: freed.clone(),
            usage: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many workers of this run are here, and the bytes reserved for them.
    pub(super) fn usage(&self) -> (u64, Bytes) {
        let usage = self.lock();
        (usage.workers, usage.bytes)
    }

    /// Returns the memory that the workers here share, while there are any.
    pub(super) fn shared(&self) -> Option<Arc<ReservedMemory>> {
        self.lock().shared.upgrade()
    }

    /// Splits `reservation` into slots for so many workers. It holds what each needs and what they share, unless `shared`
    /// holds that already. A reservation that is too small, because nothing fits and one worker starts nevertheless, is not
    /// split.
    pub(super) fn slots(
        self: &Arc<Self>,
        need: &Need,
        workers: u64,
        reservation: Option<Reservation>,
        shared: Option<Arc<ReservedMemory>>,
    ) -> bursar::Result<Vec<Slot>> {
        let Some(reservation) = reservation else {
            return (0..workers).map(|_| self.slot(None, None)).collect();
        };
        let fixed = if shared.is_some() { Bytes::ZERO } else { need.fixed };
        let needed = need.per_worker.get().checked_mul(workers).and_then(|bytes| bytes.checked_add(fixed.get()));
        if workers == 1 && needed.is_none_or(|needed| reservation.bytes().get() < needed) {
            return Ok(vec![self.slot(Some(self.adopt(reservation)?), None)?]);
        }
        let own = match need.per_worker {
            Bytes::ZERO => (0..workers).map(|_| Ok(None)).collect::<bursar::Result<Vec<_>>>()?,
            bytes => (0..workers)
                .map(|_| reservation.split(bytes).and_then(|own| self.adopt(own)).map(Some))
                .collect::<bursar::Result<Vec<_>>>()?,
        };
        let shared = match shared {
            None if fixed > Bytes::ZERO => Some(Arc::new(self.adopt(reservation)?)),
            shared => shared,
        };
        self.lock().shared = shared.as_ref().map(Arc::downgrade).unwrap_or_default();
        own.into_iter().map(|own| self.slot(own, shared.clone())).collect()
    }

    /// Makes the slot of one worker, with memory of its own and what it shares.
    fn slot(
        self: &Arc<Self>,
        own: Option<ReservedMemory>,
        shared: Option<Arc<ReservedMemory>>,
    ) -> bursar::Result<Slot> {
        let mut environment = self.environment.clone();
        let token = |memory: &ReservedMemory| memory.token().map(OsString::from);
        let (own_token, shared_token) = (own.as_ref().and_then(token), shared.as_deref().and_then(token));
        // If it is not known what each worker needs, all draw on what they share.
        environment.extend(own_token.or(shared_token.clone()).map(|token| (Reservation::VARIABLE, token)));
        environment.extend(shared_token.map(|token| (Worker::SHARED_VARIABLE, token)));
        let limit = own.as_ref().map(|own| own.bytes);
        self.lock().workers += 1;
        let memory = SlotMemory { own, shared, target: self.clone() };
        Ok(Slot {
            device: self.device,
            numa_node: self.numa_node,
            cpus: self.cpus,
            limit,
            environment,
            memory: Arc::new(memory),
        })
    }

    /// Counts a reservation as used on this target, and delegates it if workers can draw on it.
    fn adopt(self: &Arc<Self>, reservation: Reservation) -> bursar::Result<ReservedMemory> {
        let bytes = reservation.bytes();
        let kind = if self.is_shared {
            ReservationKind::Delegated(reservation.delegate()?)
        } else {
            ReservationKind::Private(reservation)
        };
        self.lock().bytes.0 += bytes.get();
        Ok(ReservedMemory { reservation: Some(kind), bytes, given_up: Mutex::default(), target: self.clone() })
    }
}

/// Converts processor numbers to the kernel's form.
fn cpu_set(cpus: impl Iterator<Item = u32>) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.filter(|cpu| (*cpu as usize) < CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu as usize));
    set
}

/// Memory reserved for one worker, or shared by the workers of a target. It goes back when dropped.
#[derive(Debug)]
pub(super) struct ReservedMemory {
    reservation: Option<ReservationKind>,
    bytes: Bytes,
    /// The part that was given up while workers sleep.
    given_up: Mutex<Bytes>,
    target: Arc<Target>,
}

/// The reservation of [`ReservedMemory`].
#[derive(Debug)]
enum ReservationKind {
    /// A worker draws on it by its token.
    Delegated(Delegation),
    /// No worker can draw on it; it is reserved nevertheless.
    Private(#[expect(dead_code, reason = "it is owned until it is dropped")] Reservation),
}

impl ReservedMemory {
    fn token(&self) -> Option<String> {
        match &self.reservation {
            Some(ReservationKind::Delegated(delegation)) => Some(delegation.token()),
            _ => None,
        }
    }
}

impl SlotShare for ReservedMemory {
    fn give_up(&self) -> bursar::Result<()> {
        if let Some(ReservationKind::Delegated(delegation)) = &self.reservation {
            let mut given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
            *given_up = given_up.saturating_add(delegation.give_back_undrawn()?);
        }
        Ok(())
    }

    fn take_again(&self, is_over: &dyn Fn() -> bool) -> bursar::Result<bool> {
        let mut given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ReservationKind::Delegated(delegation)) = &self.reservation else { return Ok(true) };
        if *given_up == Bytes::ZERO {
            return Ok(true);
        }
        let mut reserving = Box::pin(self.target.ledger.reserve_async(*given_up, Priority::default()));
        let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
        loop {
            match reserving.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(reserved) => delegation.merge(reserved?)?,
                Poll::Pending if is_over() => return Ok(false),
                Poll::Pending => {
                    std::thread::park_timeout(LOOK_EVERY);
                    continue;
                }
            }
            *given_up = Bytes::ZERO;
            return Ok(true);
        }
    }
}

/// A waker of the thread that waits for memory.
struct ThreadWaker(std::thread::Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        drop(self.reservation.take());
        self.target.lock().bytes.0 -= self.bytes.get();
        self.target.freed.notify();
    }
}

/// The memory of a slot.
#[derive(Debug)]
struct SlotMemory {
    own: Option<ReservedMemory>,
    shared: Option<Arc<ReservedMemory>>,
    target: Arc<Target>,
}

impl SlotShare for SlotMemory {
    fn give_up(&self) -> bursar::Result<()> {
        self.own.iter().chain(self.shared.as_deref()).try_for_each(ReservedMemory::give_up)
    }

    fn take_again(&self, is_over: &dyn Fn() -> bool) -> bursar::Result<bool> {
        for memory in self.own.iter().chain(self.shared.as_deref()) {
            if !memory.take_again(is_over)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        drop((self.own.take(), self.shared.take()));
        self.target.lock().workers -= 1;
        self.target.freed.notify();
    }
}
