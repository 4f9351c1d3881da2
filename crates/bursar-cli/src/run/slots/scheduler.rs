//! Decides where workers run: slots for the workers that fit now, and for one more whenever there is room.
//!
//! One more worker waits in the ledger's queue for what it needs, with what the headroom must leave free beside it: so the
//! queue decides who is next, and the plan's rule holds for late workers too.

use super::notify::Notify;
use super::target::{ReservedMemory, Target};
use super::{Slot, SlotSource};
use bursar::device::DeviceContext;
use bursar::driver::OpenedDriver;
use bursar::fit::{FitError, Headroom, Need, Plan, ReservedPlan, Spec, fit_workers};
use bursar::host::Topology;
use bursar::ledger::{ReserveFuture, ReserveOptions};
use bursar::{Bytes, DeviceId};
use std::ffi::OsString;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

/// The most fits made because a program without a ledger took the memory of the one before.
const ATTEMPTS_MAX: u32 = 64;

/// The targets that the workers of a run may be placed on.
#[derive(Debug)]
pub(crate) struct Scheduler {
    spec: Spec,
    /// The available memory, if it was given and the machine is not asked.
    available: Option<Bytes>,
    targets: Vec<Arc<Target>>,
    /// Notified when memory may have come free.
    freed: Arc<Notify>,
    is_cancelled: AtomicBool,
}

impl Scheduler {
    /// Creates the scheduler of `spec`, on the devices of `opened`. `environment` is set for every worker there.
    pub(crate) fn new(
        spec: Spec,
        available: Option<Bytes>,
        opened: Option<&OpenedDriver>,
        environment: &[(&'static str, OsString)],
    ) -> Result<Self, FitError> {
        let freed = Arc::new(Notify::default());
        let topology = Topology::here().ok();
        let target = |device: Option<DeviceId>| match (device, opened) {
            (Some(device), Some(opened)) => {
                let context = DeviceContext::open(opened.driver.clone(), device)?;
                Target::device(&context, topology.as_ref(), environment, &freed)
            }
            _ => Target::machine(available, &freed),
        };
        let assignments = spec.plan()?.assignments;
        let targets = assignments
            .iter()
            .map(|assignment| target(assignment.candidate.device).map(Arc::new))
            .collect::<Result<_, _>>()?;
        Ok(Self { spec, available, targets, freed, is_cancelled: AtomicBool::new(false) })
    }

    /// Returns whether workers can draw on the memory reserved for them.
    pub(crate) fn is_shared(&self) -> bool {
        self.targets.iter().all(|target| target.is_shared)
    }

    /// Returns the plan and a slot for each of its workers, whose memory can be allocated at this moment. Fails with the
    /// error of `check`, which is called with the number of workers, before any slot is made.
    pub(crate) fn slots<E: From<FitError>>(
        &self,
        check: impl Fn(u64) -> Result<(), E>,
    ) -> Result<(Plan, Vec<Slot>), E> {
        self.slots_with(check, || ())
    }

    /// Returns what [`slots`](Self::slots) does, and calls `after_fit` after each fit.
    fn slots_with<E: From<FitError>>(
        &self,
        check: impl Fn(u64) -> Result<(), E>,
        mut after_fit: impl FnMut(),
    ) -> Result<(Plan, Vec<Slot>), E> {
        let mut attempt = 0;
        loop {
            let reserved = fit_workers(&self.spec)?;
            check(reserved.plan.workers)?;
            after_fit();
            attempt += 1;
            match self.shortfall(&reserved)? {
                None => return Ok(self.split(reserved)?),
                Some(lack) if attempt == ATTEMPTS_MAX => return Err(FitError::from(lack).into()),
                Some(_) => (),
            }
        }
    }

    /// Returns an error with what is missing if the devices of `reserved` no longer have everything that is reserved on them:
    /// a program without a ledger may have taken it since.
    fn shortfall(&self, reserved: &ReservedPlan) -> Result<Option<bursar::Error>, FitError> {
        let devices = reserved.shares.iter().filter_map(|share| share.device);
        for target in devices.filter_map(|device| self.target(Some(device))) {
            // Asking what is available has the ledger measure what is unmanaged.
            target.ledger.available()?;
            let reading = target.ledger.reading()?;
            let requested = reading.held.saturating_add(reading.undrawn);
            let remaining = reading.total.saturating_sub(reading.unmanaged);
            if requested > remaining {
                return Ok(Some(bursar::Error::out_of_budget(requested, remaining, reading.limit)));
            }
        }
        Ok(None)
    }

    /// Splits the reservations of a plan into slots.
    fn split(&self, reserved: ReservedPlan) -> Result<(Plan, Vec<Slot>), FitError> {
        let ReservedPlan { plan, shares, .. } = reserved;
        let mut slots = Vec::new();
        for share in shares {
            let target = self.target(share.device).ok_or(FitError::NoDevice)?;
            slots.extend(target.slots(&plan.need, share.workers, share.reservation, None)?);
        }
        Ok((plan, slots))
    }

    fn target(&self, device: Option<DeviceId>) -> Option<&Arc<Target>> {
        self.targets.iter().find(|target| target.device == device)
    }

    /// Requests what one more worker needs on every target, the one with the fewest workers first.
    fn request(&self) -> Vec<Request> {
        let mut targets: Vec<_> = self.targets.iter().collect();
        targets.sort_by_key(|target| target.usage().0);
        targets.into_iter().filter_map(|target| self.request_on(target)).collect()
    }

    fn request_on(&self, target: &Arc<Target>) -> Option<Request> {
        let Need { fixed, per_worker, headroom, .. } = *self.spec.need();
        let shared = target.shared();
        let fixed = if shared.is_some() { Bytes::ZERO } else { fixed };
        let needed = fixed.get().checked_add(per_worker.get()).map(Bytes)?;
        let options = ReserveOptions::new().label(self.spec.label());
        let options = match self.available {
            Some(available) => may_use(headroom, available, target.usage().1, needed).then_some(options)?,
            None => options.keep_free_millionths(headroom.rest()),
        };
        let reservation = Box::pin(target.ledger.reserve_async_with(needed, options));
        Some(Request { target: target.clone(), shared, reservation })
    }

    /// Returns the error for a budget that was given and is too small for one worker.
    fn refusal(&self) -> bursar::Error {
        let need = self.spec.need();
        let limit = need.headroom.of(self.available.unwrap_or_default());
        let requested = need.fixed.saturating_add(need.per_worker);
        bursar::Error::out_of_budget(requested, limit, limit)
    }

    /// Makes a slot of a reservation.
    fn grant(&self, request: &Request, granted: bursar::Result<bursar::ledger::Reservation>) -> bursar::Result<Slot> {
        let mut slots = request.target.slots(self.spec.need(), 1, Some(granted?), request.shared.clone())?;
        slots.pop().ok_or(bursar::Error::NoDevice)
    }
}

/// Returns whether a run that has `ours` of what was said to be `available` may use `needed` more.
fn may_use(headroom: Headroom, available: Bytes, ours: Bytes, needed: Bytes) -> bool {
    let used = u128::from(ours.get()) + u128::from(needed.get());
    used <= u128::from(headroom.of(available).get())
}

/// A request for memory on one target.
#[derive(Debug)]
struct Request {
    target: Arc<Target>,
    /// Keeps the memory that the workers there share, because less is requested on account of it.
    shared: Option<Arc<ReservedMemory>>,
    reservation: Pin<Box<ReserveFuture>>,
}

impl SlotSource for Scheduler {
    fn wait_for_slot(&self) -> Option<bursar::Result<Slot>> {
        let waker = Waker::from(self.freed.clone());
        let mut context = Context::from_waker(&waker);
        let current_usage = || self.targets.iter().map(|target| target.usage()).collect::<Vec<_>>();
        let (mut usage, mut requests) = (current_usage(), self.request());
        loop {
            let mut refused = self.refusal();
            let mut at = 0;
            while at < requests.len() && !self.is_cancelled.load(Ordering::Acquire) {
                match requests[at].reservation.as_mut().poll(&mut context) {
                    Poll::Pending => at += 1,
                    Poll::Ready(Err(error)) if error.is_capacity() => {
                        refused = error;
                        requests.remove(at);
                    }
                    Poll::Ready(granted) => return Some(self.grant(&requests[at], granted)),
                }
            }
            if self.is_cancelled.load(Ordering::Acquire) {
                return None;
            }
            if requests.is_empty() && usage.iter().all(|(workers, _)| *workers == 0) {
                return Some(Err(refused));
            }
            self.freed.wait();
            let now = current_usage();
            // What one more needs depends on whether what is shared is there, and what was said to be available on the rest.
            if now != usage {
                (usage, requests) = (now, self.request());
            }
        }
    }

    fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
        self.freed.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bursar::driver::Driver;
    use bursar::sim::Sim;

    const GIB: u64 = 1 << 30;

    /// Allows any number of workers.
    fn any(_: u64) -> Result<(), FitError> {
        Ok(())
    }

    /// A device of 80 GiB of this process alone, and a stage that wants eight workers of 10 GiB there.
    fn rig() -> (Arc<Sim>, Scheduler) {
        let driver = Sim::builder().immediate().devices(1, Bytes::gib(80)).build();
        let opened = OpenedDriver { driver: driver.clone(), is_simulated: true, instead_of_cuda: None };
        let context = DeviceContext::open(driver.clone(), DeviceId(0)).expect("a device");
        let spec = Spec::vram("test", [context]).per_worker(Bytes::gib(10)).want(8).headroom(Headroom::ALL);
        (driver, Scheduler::new(spec, None, Some(&opened), &[]).expect("a ledger"))
    }

    #[test]
    fn f5_memory_that_a_foreign_program_took_after_the_fit_is_promised_to_nobody() {
        let (driver, scheduler) = rig();
        let mut grabs = [30 * GIB, 10 * GIB].into_iter();
        let grab = || {
            if let Some(bytes) = grabs.next() {
                driver.allocate(DeviceId(0), bytes).expect("nobody has drawn anything yet");
            }
        };
        let (plan, slots) = scheduler.slots_with(any, grab).expect("four fit beside the foreign program");
        assert_eq!((plan.workers, slots.len()), (4, 4));
        let reading = scheduler.targets[0].ledger.reading().expect("a ledger");
        assert_eq!((reading.undrawn, reading.unmanaged), (Bytes::gib(40), Bytes::gib(40)));
    }

    #[test]
    fn f5_a_device_that_a_foreign_program_fills_after_each_fit_is_refused_and_left_as_it_was() {
        let (driver, scheduler) = rig();
        let grab = || {
            // In the end there is nothing left to take.
            let _ = driver.allocate(DeviceId(0), 10 * GIB);
        };
        let refused = scheduler.slots_with(any, grab).expect_err("nothing is left in the end");
        assert!(refused.is_capacity(), "{refused}");
        assert_eq!(scheduler.targets[0].ledger.reading().expect("a ledger").undrawn, Bytes::ZERO);
    }

    #[test]
    fn l3_a_share_goes_back_with_its_slot_and_what_is_shared_with_the_last() {
        let driver = Sim::builder().immediate().devices(1, Bytes::gib(80)).build();
        let opened = OpenedDriver { driver: driver.clone(), is_simulated: true, instead_of_cuda: None };
        let context = DeviceContext::open(driver, DeviceId(0)).expect("a device");
        let spec = Spec::vram("test", [context]).fixed(Bytes::gib(6)).per_worker(Bytes::gib(10)).want(3);
        let scheduler = Scheduler::new(spec, None, Some(&opened), &[]).expect("a ledger");
        let (_, mut slots) = scheduler.slots(any).expect("three fit");
        let undrawn = || scheduler.targets[0].ledger.reading().expect("a ledger").undrawn.get() / GIB;
        let mut left = vec![undrawn()];
        while slots.pop().is_some() {
            left.push(undrawn());
        }
        assert_eq!(left, [36, 26, 16, 0]);
        assert_eq!(scheduler.targets[0].usage(), (0, Bytes::ZERO));
    }

    #[test]
    fn l4_one_more_worker_gets_the_room_of_one_that_has_ended() {
        let (_, scheduler) = rig();
        let (_, mut slots) = scheduler.slots(any).expect("eight fit");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| scheduler.wait_for_slot());
            drop(slots.pop());
            let slot = waiting.join().expect("no panic").expect("not cancelled").expect("room");
            assert_eq!(slot.limit, Some(Bytes::gib(10)));
            assert_eq!(scheduler.targets[0].usage(), (8, Bytes::gib(80)));
        });
    }

    #[test]
    fn l4_a_wait_for_room_that_is_cancelled_leaves_nothing_in_the_queue() {
        let (_, scheduler) = rig();
        let (_, slots) = scheduler.slots(any).expect("eight fit");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| scheduler.wait_for_slot());
            while scheduler.targets[0].ledger.reading().expect("a ledger").waiting.is_empty() {
                std::thread::yield_now();
            }
            scheduler.cancel();
            assert!(waiting.join().expect("no panic").is_none());
        });
        let reading = scheduler.targets[0].ledger.reading().expect("a ledger");
        assert_eq!((reading.waiting.len(), reading.undrawn), (0, Bytes::gib(80)));
        drop(slots);
    }

    #[test]
    fn l4_a_worker_that_can_never_fit_is_refused_and_not_waited_for() {
        let driver = Sim::builder().immediate().devices(2, Bytes::gib(8)).build();
        let opened = OpenedDriver { driver: driver.clone(), is_simulated: true, instead_of_cuda: None };
        let contexts = [0, 1].map(|device| DeviceContext::open(driver.clone(), DeviceId(device)).expect("a device"));
        let spec = Spec::vram("test", contexts).per_worker(Bytes::gib(6)).want(1);
        let scheduler = Scheduler::new(spec, None, Some(&opened), &[]).expect("ledgers");
        assert!(scheduler.slots(any).expect_err("the headroom leaves 5.6 GiB").is_capacity());
        assert!(scheduler.wait_for_slot().expect("not cancelled").expect_err("never").is_capacity());
    }

    #[test]
    fn f9_one_more_worker_waits_for_what_it_needs_and_no_more() {
        let driver = Sim::builder().immediate().devices(1, Bytes::gib(100)).build();
        let opened = OpenedDriver { driver: driver.clone(), is_simulated: true, instead_of_cuda: None };
        let context = DeviceContext::open(driver, DeviceId(0)).expect("a device");
        let spec = Spec::vram("test", [context]).per_worker(Bytes::gib(10)).want(1);
        let scheduler = Scheduler::new(spec, None, Some(&opened), &[]).expect("a ledger");
        let ledger = &scheduler.targets[0].ledger;
        let others = ledger.reserve(Bytes::gib(65)).expect("room");
        assert!(scheduler.slots(any).expect_err("75 GiB are more than 70").is_capacity());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| scheduler.wait_for_slot());
            let reading = || ledger.reading().expect("a ledger");
            while reading().waiting.is_empty() {
                std::thread::yield_now();
            }
            assert_eq!(reading().waiting[0].bytes, Bytes::gib(10));
            drop(ledger.reserve(Bytes::gib(20)).expect("what it would leave free is nobody's"));
            others.shrink(Bytes::gib(60)).expect("nothing is drawn");
            let slot = waiting.join().expect("no panic").expect("not cancelled").expect("70 GiB");
            assert_eq!(slot.limit, Some(Bytes::gib(10)));
            assert_eq!(
                (reading().undrawn, reading().processes[0].labels.clone()),
                (Bytes::gib(70), vec!["test".into()])
            );
        });
    }

    #[test]
    fn f6_what_is_said_to_be_available_bounds_what_there_is_room_for() {
        let has_room = |ours| may_use(Headroom::default(), Bytes(10), Bytes(ours), Bytes(2));
        assert_eq!([0, 5, 6, u64::MAX].map(has_room), [true, true, false, false]);
    }
}
