//! Clause D4: choosing a device and setting memory aside there are one step.

use bursar_core::{Admission, Bytes, DeviceContext, DeviceId, Error, Result, Stack, Status, leaf};
use bursar_device::DevicePool;
use bursar_sim::Sim;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// A fixed amount of each device for everybody; a reservation comes back when it is dropped.
#[derive(Debug)]
struct SharedLimits {
    limits: Vec<u64>,
    taken: Arc<Vec<AtomicU64>>,
    /// A device that fails, from one step or the other on.
    sick: Option<u32>,
    is_sick_when_asked: AtomicBool,
}

#[derive(Debug)]
struct TestReservation {
    taken: Arc<Vec<AtomicU64>>,
    device: usize,
    bytes: u64,
}

impl Drop for TestReservation {
    fn drop(&mut self) {
        self.taken[self.device].fetch_sub(self.bytes, SeqCst);
    }
}

impl SharedLimits {
    fn new(limits: &[u64]) -> Self {
        let taken = Arc::new(limits.iter().map(|_| AtomicU64::new(0)).collect());
        Self { limits: limits.to_vec(), taken, sick: None, is_sick_when_asked: AtomicBool::new(true) }
    }

    fn gpus(&self) -> DevicePool {
        let sim = Sim::builder().immediate().devices(self.limits.len(), Bytes::gib(1)).build();
        DevicePool::open(sim, &Stack::new().over(leaf::Async)).expect("usable devices")
    }

    fn check(&self, device: DeviceId) -> Result<()> {
        match self.sick == Some(device.0) {
            true => Err(bursar_core::DriverError::new("memory", device, Status::DeviceLost).into()),
            false => Ok(()),
        }
    }
}

impl Admission for SharedLimits {
    type Reservation = TestReservation;

    fn available(&self, context: &Arc<DeviceContext>) -> Result<Bytes> {
        if self.is_sick_when_asked.load(SeqCst) {
            self.check(context.device())?;
        }
        let device = context.device().0 as usize;
        Ok(Bytes(self.limits[device] - self.taken[device].load(SeqCst)))
    }

    fn reserve(&self, context: &Arc<DeviceContext>, requested: Bytes) -> Result<TestReservation> {
        self.check(context.device())?;
        let (device, bytes) = (context.device().0 as usize, requested.get());
        let limit = self.limits[device];
        let sum = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= limit);
        match self.taken[device].fetch_update(SeqCst, SeqCst, sum) {
            Ok(_) => Ok(TestReservation { taken: self.taken.clone(), device, bytes }),
            Err(taken) => Err(Error::out_of_budget(requested, Bytes(limit - taken), Bytes(limit))),
        }
    }
}

/// Returns the devices that reservations of these sizes go to, one after the other, all kept.
fn devices_of(admission: &SharedLimits, sizes: &[u64]) -> Vec<Option<u32>> {
    let (gpus, mut kept) = (admission.gpus(), Vec::new());
    let place = |bytes: &u64| {
        let (gpu, reservation) = gpus.reserve_on_best(admission, Bytes(*bytes)).ok()?;
        kept.push(reservation);
        Some(gpu.id().0)
    };
    sizes.iter().map(place).collect()
}

#[test]
fn d4_a_reservation_goes_where_most_is_left_and_ties_to_the_first() {
    let admission = SharedLimits::new(&[4, 6, 6]);
    assert_eq!(devices_of(&admission, &[3, 1, 1, 4, 4, 1]), [Some(1), Some(2), Some(2), Some(0), Some(2), Some(1)]);
    assert_eq!(devices_of(&admission, &[6, 6, 4, 1]), [Some(1), Some(2), Some(0), None], "the first places came back");
}

#[test]
fn d4_most_available_counts_what_others_have_set_aside() {
    let admission = SharedLimits::new(&[4, 6, 6]);
    let gpus = admission.gpus();
    assert_eq!(gpus.most_available(&admission).expect("they can be asked").id(), DeviceId(1));
    let (_, reservation) = gpus.reserve_on_best(&admission, Bytes(1)).expect("room");
    assert_eq!(gpus.most_available(&admission).expect("they can be asked").id(), DeviceId(2));
    assert_eq!(gpus.most_free().id(), DeviceId(0), "the devices themselves are all free");
    drop(reservation);
    assert_eq!(gpus.most_available(&admission).expect("they can be asked").id(), DeviceId(1));
}

#[test]
fn d4_a_refusal_has_the_numbers_of_the_best_device() {
    let admission = SharedLimits::new(&[3, 5, 4]);
    let refused = admission.gpus().reserve_on_best(&admission, Bytes(6)).map(|(gpu, _)| gpu.id());
    assert_eq!(refused, Err(Error::out_of_budget(Bytes(6), Bytes(5), Bytes(5))));
}

#[test]
fn d4_a_sick_device_is_passed_over_whenever_it_shows() {
    for is_sick_when_asked in [true, false] {
        let admission = SharedLimits { sick: Some(1), ..SharedLimits::new(&[4, 6, 5]) };
        admission.is_sick_when_asked.store(is_sick_when_asked, SeqCst);
        assert_eq!(devices_of(&admission, &[5, 4, 1]), [Some(2), Some(0), None]);
        let refused = admission.gpus().reserve_on_best(&admission, Bytes(6)).map(drop).expect_err("nobody has so much");
        assert!(refused.is_capacity(), "{refused}");
    }
    let alone = SharedLimits { sick: Some(0), ..SharedLimits::new(&[4]) };
    let error = alone.gpus().reserve_on_best(&alone, Bytes(1)).map(drop).expect_err("it is lost");
    assert!(matches!(error, Error::Driver(error) if error.status == Status::DeviceLost));
}

/// Reports room on every device that was not asked since.
#[derive(Debug)]
struct Racing {
    admission: SharedLimits,
    others_come: AtomicBool,
    taken: std::sync::Mutex<Vec<TestReservation>>,
}

impl Admission for Racing {
    type Reservation = TestReservation;
    fn available(&self, context: &Arc<DeviceContext>) -> Result<Bytes> {
        self.admission.available(context)
    }
    fn reserve(&self, context: &Arc<DeviceContext>, bytes: Bytes) -> Result<TestReservation> {
        if self.others_come.swap(false, SeqCst) {
            let all = self.admission.available(context)?;
            self.taken.lock().expect("no panic").push(self.admission.reserve(context, all)?);
        }
        self.admission.reserve(context, bytes)
    }
}

#[test]
fn d4_whoever_loses_a_race_gets_the_next_best() {
    let admission = SharedLimits::new(&[4, 6, 5]);
    let racing = Racing { admission, others_come: AtomicBool::new(true), taken: Default::default() };
    let gpus = racing.admission.gpus();
    let (gpu, _aside) = gpus.reserve_on_best(&racing, Bytes(5)).expect("the next best has room");
    assert_eq!(gpu.id(), DeviceId(2));
}

#[test]
fn d4_choosers_that_come_at_once_never_overcommit_and_leave_nothing_unused() {
    for round in 0..50 {
        let admission = SharedLimits::new(&[7, 3, 5]);
        let gpus = admission.gpus();
        let kept: usize = std::thread::scope(|scope| {
            let chooser =
                || scope.spawn(|| (0..4).map_while(|_| gpus.reserve_on_best(&admission, Bytes(1)).ok()).collect());
            let choosers: Vec<_> = (0..6).map(|_| chooser()).collect();
            let kept: Vec<Vec<_>> = choosers.into_iter().map(|chooser| chooser.join().expect("no panic")).collect();
            let taken: Vec<u64> = admission.taken.iter().map(|taken| taken.load(SeqCst)).collect();
            assert_eq!(taken, [7, 3, 5], "round {round}: 24 wanted 15");
            kept.iter().map(Vec::len).sum()
        });
        assert_eq!(kept, 15);
    }
}
