//! Who sits where: seats for the workers that fit now, and for one more whenever there is room.

use super::bell::Bell;
use super::place::{Place, Share};
use super::seat::{Room, Seat};
use bursar::driver::OpenedDriver;
use bursar::fit::{Admitted, FitError, Headroom, Need, Plan, Spec, fit_workers};
use bursar::host::Topology;
use bursar::ledger::{Priority, ReserveFuture};
use bursar::{Bytes, DeviceContext, DeviceId};
use std::ffi::OsString;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

/// How often seats are looked for anew because a program that knows no ledger took what they were made of.
const ATTEMPTS: u32 = 64;

/// Everywhere that the workers of a run may go.
#[derive(Debug)]
pub(crate) struct Seating {
    spec: Spec,
    /// What is available, where that was said and is not asked of the machine.
    available: Option<Bytes>,
    places: Vec<Arc<Place>>,
    bell: Arc<Bell>,
    is_cancelled: AtomicBool,
}

impl Seating {
    /// Everywhere that `spec` may go, on the devices of `opened`; `told` is what every worker there is told.
    pub(crate) fn new(
        spec: Spec,
        available: Option<Bytes>,
        opened: Option<&OpenedDriver>,
        told: &[(&'static str, OsString)],
    ) -> Result<Self, FitError> {
        let bell = Arc::new(Bell::default());
        let topology = Topology::here().ok();
        let place = |device: Option<DeviceId>| match (device, opened) {
            (Some(device), Some(opened)) => {
                let context = DeviceContext::open(opened.driver.clone(), device)?;
                Place::device(&context, topology.as_ref(), told, &bell)
            }
            _ => Place::machine(available, &bell),
        };
        let planned = spec.plan()?.places;
        let places =
            planned.iter().map(|planned| place(planned.seat.device).map(Arc::new)).collect::<Result<_, _>>()?;
        Ok(Self { spec, available, places, bell, is_cancelled: AtomicBool::new(false) })
    }

    /// Whether workers can draw on what is set aside for them.
    pub(crate) fn is_shared(&self) -> bool {
        self.places.iter().all(|place| place.is_shared)
    }

    /// The plan, and a seat for each worker of it, whose memory is there at this moment. Nothing is made for more workers
    /// than `allowed` lets pass.
    pub(crate) fn seats<E: From<FitError>>(
        &self,
        allowed: impl Fn(u64) -> Result<(), E>,
    ) -> Result<(Plan, Vec<Seat>), E> {
        self.seats_with(allowed, || ())
    }

    /// The same, with something that happens after the workers were fitted.
    fn seats_with<E: From<FitError>>(
        &self,
        allowed: impl Fn(u64) -> Result<(), E>,
        mut meanwhile: impl FnMut(),
    ) -> Result<(Plan, Vec<Seat>), E> {
        let mut attempt = 0;
        loop {
            let admitted = fit_workers(&self.spec)?;
            allowed(admitted.plan.workers)?;
            meanwhile();
            attempt += 1;
            match self.broken_promise(&admitted)? {
                None => return Ok(self.seated(admitted)?),
                Some(lack) if attempt == ATTEMPTS => return Err(FitError::from(lack).into()),
                Some(_) => (),
            }
        }
    }

    /// What is missing where not everything can be had any more that is set aside on the devices of `admitted`: a program
    /// that knows no ledger may have taken it since.
    fn broken_promise(&self, admitted: &Admitted) -> Result<Option<bursar::Error>, FitError> {
        let devices = admitted.shares.iter().filter_map(|share| share.device);
        for place in devices.filter_map(|device| self.place(Some(device))) {
            // Asking what is available measures.
            place.ledger.available()?;
            let reading = place.ledger.reading()?;
            let requested = reading.held.saturating_add(reading.undrawn);
            let remaining = reading.total.saturating_sub(reading.unmanaged);
            if requested > remaining {
                return Ok(Some(bursar::Error::OutOfBudget { requested, remaining, limit: reading.limit }));
            }
        }
        Ok(None)
    }

    fn seated(&self, admitted: Admitted) -> Result<(Plan, Vec<Seat>), FitError> {
        let Admitted { plan, shares, .. } = admitted;
        let mut seats = Vec::new();
        for share in shares {
            let place = self.place(share.device).ok_or(FitError::NoDevice)?;
            seats.extend(place.seats(&plan.need, share.workers, share.reservation, None)?);
        }
        Ok((plan, seats))
    }

    fn place(&self, device: Option<DeviceId>) -> Option<&Arc<Place>> {
        self.places.iter().find(|place| place.device == device)
    }

    /// Asks everywhere for what one more worker needs, the emptiest place first.
    fn ask(&self) -> Vec<Asking> {
        let mut places: Vec<_> = self.places.iter().collect();
        places.sort_by_key(|place| place.taken().0);
        places.into_iter().filter_map(|place| self.ask_at(place)).collect()
    }

    fn ask_at(&self, place: &Arc<Place>) -> Option<Asking> {
        let Need { fixed, per_worker, headroom, .. } = *self.spec.need();
        let shared = place.shared();
        let fixed = if shared.is_some() { Bytes::ZERO } else { fixed };
        let needed = fixed.get().checked_add(per_worker.get()).map(Bytes)?;
        let free = room_for_one_more(headroom, self.available, place.taken().1, needed)?;
        let turn = Box::pin(place.ledger.reserve_async(free, Priority::NORMAL));
        Some(Asking { place: place.clone(), shared, needed, turn })
    }

    /// What is said where even the budget that was given is too small for one.
    fn refusal(&self) -> bursar::Error {
        let need = self.spec.need();
        let limit = need.headroom.of(self.available.unwrap_or_default());
        let requested = need.fixed.saturating_add(need.per_worker);
        bursar::Error::OutOfBudget { requested, remaining: limit, limit }
    }

    /// What was granted, less what was only asked for so that it stays free.
    fn grant(&self, asking: &Asking, granted: bursar::Result<bursar::ledger::Reservation>) -> bursar::Result<Seat> {
        let reservation = granted?;
        reservation.shrink(asking.needed)?;
        let mut seats = asking.place.seats(self.spec.need(), 1, Some(reservation), asking.shared.clone())?;
        seats.pop().ok_or(bursar::Error::NoDevice)
    }
}

/// What has to be free for one more worker that needs `needed`, where the run has `ours` already: as much more than that
/// as the headroom keeps unused of everything that it could have. None where there can never be so much.
fn room_for_one_more(headroom: Headroom, available: Option<Bytes>, ours: Bytes, needed: Bytes) -> Option<Bytes> {
    let used = u128::from(ours.get()) + u128::from(needed.get());
    match available {
        Some(available) => (used <= u128::from(headroom.of(available).get())).then_some(needed),
        None => {
            let least = (used * 1_000_000).div_ceil(u128::from(headroom.get()));
            u64::try_from(least - u128::from(ours.get())).ok().map(Bytes)
        }
    }
}

/// A request at one place.
#[derive(Debug)]
struct Asking {
    place: Arc<Place>,
    /// What the workers there share stays while we ask for less because of it.
    shared: Option<Arc<Share>>,
    needed: Bytes,
    turn: Pin<Box<ReserveFuture>>,
}

impl Room for Seating {
    fn one_more(&self) -> Option<bursar::Result<Seat>> {
        let waker = Waker::from(self.bell.clone());
        let mut context = Context::from_waker(&waker);
        let everything = || self.places.iter().map(|place| place.taken()).collect::<Vec<_>>();
        let (mut taken, mut asking) = (everything(), self.ask());
        loop {
            let mut refused = self.refusal();
            let mut at = 0;
            while at < asking.len() && !self.is_cancelled.load(Ordering::Acquire) {
                match asking[at].turn.as_mut().poll(&mut context) {
                    Poll::Pending => at += 1,
                    Poll::Ready(Err(error)) if error.is_capacity() => {
                        refused = error;
                        asking.remove(at);
                    }
                    Poll::Ready(granted) => return Some(self.grant(&asking[at], granted)),
                }
            }
            if self.is_cancelled.load(Ordering::Acquire) {
                return None;
            }
            if asking.is_empty() && taken.iter().all(|(workers, _)| *workers == 0) {
                return Some(Err(refused));
            }
            self.bell.wait();
            let now = everything();
            // The less we have, the less has to stay free.
            if now != taken {
                (taken, asking) = (now, self.ask());
            }
        }
    }

    fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
        self.bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bursar::Driver;
    use bursar::sim::Sim;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    /// Any number of workers.
    fn any(_: u64) -> Result<(), FitError> {
        Ok(())
    }

    /// A device of 80 GiB of this process alone, and a stage that wants eight workers of 10 GiB there.
    fn rig() -> (Arc<Sim>, Seating) {
        let driver = Sim::builder().immediate().devices(1, Bytes::gib(80)).build();
        let opened = OpenedDriver { driver: driver.clone(), instead_of_cuda: None };
        let context = DeviceContext::open(driver.clone(), DeviceId(0)).expect("a device");
        let spec = Spec::vram("test", [context]).per_worker(Bytes::gib(10)).want(8).headroom(Headroom::ALL);
        (driver, Seating::new(spec, None, Some(&opened), &[]).expect("a ledger"))
    }

    #[test]
    fn f5_memory_that_a_foreign_program_took_after_the_fit_is_promised_to_nobody() {
        let (driver, seating) = rig();
        let mut grabs = [30 * GIB, 10 * GIB].into_iter();
        let grab = || {
            if let Some(bytes) = grabs.next() {
                driver.allocate(DeviceId(0), bytes).expect("nobody has drawn anything yet");
            }
        };
        let (plan, seats) = seating.seats_with(any, grab).expect("four fit beside the foreign program");
        assert_eq!((plan.workers, seats.len()), (4, 4));
        let reading = seating.places[0].ledger.reading().expect("a ledger");
        assert_eq!((reading.undrawn, reading.unmanaged), (Bytes::gib(40), Bytes::gib(40)));
    }

    #[test]
    fn f5_a_device_that_a_foreign_program_fills_after_each_fit_is_refused_and_left_as_it_was() {
        let (driver, seating) = rig();
        let grab = || {
            // In the end there is nothing left to take.
            let _ = driver.allocate(DeviceId(0), 10 * GIB);
        };
        let refused = seating.seats_with(any, grab).expect_err("nothing is left in the end");
        assert!(refused.is_capacity(), "{refused}");
        assert_eq!(seating.places[0].ledger.reading().expect("a ledger").undrawn, Bytes::ZERO);
    }

    #[test]
    fn l3_a_share_goes_back_with_its_seat_and_what_is_shared_with_the_last() {
        let driver = Sim::builder().immediate().devices(1, Bytes::gib(80)).build();
        let opened = OpenedDriver { driver: driver.clone(), instead_of_cuda: None };
        let context = DeviceContext::open(driver, DeviceId(0)).expect("a device");
        let spec = Spec::vram("test", [context]).fixed(Bytes::gib(6)).per_worker(Bytes::gib(10)).want(3);
        let seating = Seating::new(spec, None, Some(&opened), &[]).expect("a ledger");
        let (_, mut seats) = seating.seats(any).expect("three fit");
        let undrawn = || seating.places[0].ledger.reading().expect("a ledger").undrawn.get() / GIB;
        let mut left = vec![undrawn()];
        while seats.pop().is_some() {
            left.push(undrawn());
        }
        assert_eq!(left, [36, 26, 16, 0]);
        assert_eq!(seating.places[0].taken(), (0, Bytes::ZERO));
    }

    #[test]
    fn l4_one_more_worker_gets_the_room_of_one_that_has_ended() {
        let (_, seating) = rig();
        let (_, mut seats) = seating.seats(any).expect("eight fit");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| seating.one_more());
            drop(seats.pop());
            let seat = waiting.join().expect("no panic").expect("not cancelled").expect("room");
            assert_eq!(seat.limit, Some(Bytes::gib(10)));
            assert_eq!(seating.places[0].taken(), (8, Bytes::gib(80)));
        });
    }

    #[test]
    fn l4_a_wait_for_room_that_is_cancelled_leaves_nothing_in_the_queue() {
        let (_, seating) = rig();
        let (_, seats) = seating.seats(any).expect("eight fit");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| seating.one_more());
            while seating.places[0].ledger.reading().expect("a ledger").waiting.is_empty() {
                std::thread::yield_now();
            }
            seating.cancel();
            assert!(waiting.join().expect("no panic").is_none());
        });
        let reading = seating.places[0].ledger.reading().expect("a ledger");
        assert_eq!((reading.waiting.len(), reading.undrawn), (0, Bytes::gib(80)));
        drop(seats);
    }

    #[test]
    fn l4_a_worker_that_can_never_fit_is_refused_and_not_waited_for() {
        let driver = Sim::builder().immediate().devices(2, Bytes::gib(8)).build();
        let opened = OpenedDriver { driver: driver.clone(), instead_of_cuda: None };
        let contexts = [0, 1].map(|device| DeviceContext::open(driver.clone(), DeviceId(device)).expect("a device"));
        let spec = Spec::vram("test", contexts).per_worker(Bytes::gib(6)).want(1);
        let seating = Seating::new(spec, None, Some(&opened), &[]).expect("ledgers");
        assert!(seating.seats(any).expect_err("the headroom leaves 5.6 GiB").is_capacity());
        assert!(seating.one_more().expect("not cancelled").expect_err("never").is_capacity());
    }

    proptest! {
        /// What is asked for is exactly what has to be free for the plan to seat one more.
        #[test]
        fn f1_one_more_needs_what_the_headroom_says(
            millionths in 1u32..=1_000_000,
            ours in 0u64..1 << 40,
            needed in 1u64..1 << 40,
            beside in 0u64..3,
        ) {
            let headroom = Headroom::millionths(millionths).expect("a fraction");
            let room = room_for_one_more(headroom, None, Bytes(ours), Bytes(needed)).expect("far from the end").get();
            let fits = |free: u64| headroom.of(Bytes(ours + free)).get() >= ours + needed;
            prop_assert!(fits(room + beside));
            prop_assert!(room == 0 || !fits(room - 1));
        }
    }

    #[test]
    fn f6_what_is_said_to_be_available_bounds_what_there_is_room_for() {
        let room = |ours| room_for_one_more(Headroom::default(), Some(Bytes(10)), Bytes(ours), Bytes(2));
        assert_eq!((room(0), room(5), room(6)), (Some(Bytes(2)), Some(Bytes(2)), None));
        let whole = room_for_one_more(Headroom::millionths(1).expect("a fraction"), None, Bytes(0), Bytes(u64::MAX));
        assert_eq!(whole, None, "there can never be so much");
    }
}
