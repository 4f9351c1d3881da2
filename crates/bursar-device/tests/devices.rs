//! Clauses D1 to D5: the devices of a pool, and the choice between them.

use bursar_core::{
    AllocTag, Build, Bytes, DeviceContext, DeviceId, Driver, DriverError, Error, Link, LinkKind, NumaNode, Result,
    Stack, Status, leaf,
};
use bursar_device::{DeviceBuffer, DevicePool, DeviceSlice, Gpu, StreamLease, StreamPool};
use bursar_sim::{Call, Faults, Sim};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

fn stack() -> impl Build {
    Stack::new().over(leaf::Async)
}

fn sim(devices: usize) -> Arc<Sim> {
    Sim::builder().immediate().devices(devices, Bytes::gib(80)).build()
}

fn open(driver: Arc<dyn Driver>) -> DevicePool {
    DevicePool::open(driver, &stack()).expect("usable devices")
}

fn with(driver: Arc<dyn Driver>, devices: &[u32]) -> Result<DevicePool> {
    let devices: Vec<_> = devices.iter().copied().map(DeviceId).collect();
    DevicePool::with_devices(driver, &stack(), &devices)
}

fn ids<'a>(gpus: impl IntoIterator<Item = &'a Gpu>) -> Vec<u32> {
    gpus.into_iter().map(|gpu| gpu.id().0).collect()
}

/// Holds `bytes` of a device's memory until it is dropped.
fn hold(gpu: &Gpu, bytes: Bytes) -> DeviceBuffer<u8> {
    let stream = gpu.context().default_stream();
    gpu.buffer(bytes.get() as usize, stream, AllocTag::UNTAGGED).expect("room")
}

#[test]
fn d1_open_uses_every_device_in_order() {
    let gpus = open(sim(4));
    assert_eq!((ids(&gpus), gpus.len(), gpus.is_empty()), (vec![0, 1, 2, 3], 4, false));
    assert!(gpus.left_out().is_empty());
}

#[test]
fn d1_a_choice_of_devices_keeps_its_order() {
    assert_eq!(ids(&with(sim(4), &[3, 0, 2]).expect("usable devices")), [3, 0, 2]);
}

#[test]
fn d1_nonsense_choices_are_refused() {
    let faults = Faults::new(sim(4));
    let error = |devices: &[u32]| with(faults.clone(), devices).expect_err("nonsense");
    assert!(matches!(error(&[]), Error::InvalidValue { .. }));
    assert_eq!(error(&[1, 2, 1]).to_string(), "invalid value: a device is named twice: 1");
    let unknown = Error::InvalidDevice { device: DeviceId(4), count: 4 };
    assert_eq!((error(&[0, 4]).to_string(), error(&[0, 4])), ("there is no gpu4 among 4 devices".into(), unknown));
    assert_eq!(faults.calls(Call::Open), 0, "nothing is opened for nothing");
}

#[test]
fn d1_a_sick_device_is_reported_and_left_out_with_its_cause() {
    let faults = Faults::new(sim(3));
    faults.lose(DeviceId(1));
    let gpus = open(faults);
    let lost = |error: &Error| matches!(error, Error::Driver(error) if error.status == Status::DeviceLost);
    assert_eq!(ids(&gpus), [0, 2]);
    let [(DeviceId(1), error)] = gpus.left_out() else { panic!("{:?}", gpus.left_out()) };
    assert!(lost(error) && lost(&gpus.device(DeviceId(1)).expect_err("it was left out")));
}

/// A stack that cannot be built for one device, as where the folder of its ledger cannot be used.
#[derive(Debug)]
struct NotFor(DeviceId, Error);

impl Build for NotFor {
    type Memory = <leaf::Async as leaf::Leaf>::Source;
    fn build(&self, context: &Arc<DeviceContext>) -> Result<Self::Memory> {
        if context.device() == self.0 { Err(self.1.clone()) } else { leaf::Leaf::open(&leaf::Async, context) }
    }
}

#[test]
fn d1_devices_that_are_named_are_all_opened_or_none_and_the_cause_is_told() {
    let no_folder = || Error::Account { why: "the folder of the ledger cannot be used".into() };
    let out_of_memory = || Error::Driver(DriverError::new("open", DeviceId(1), Status::OutOfMemory));
    for cause in [no_folder(), out_of_memory()] {
        for order in [[0, 1, 2], [1, 0, 2], [2, 0, 1]] {
            let faults = Faults::new(sim(3));
            let stack = NotFor(DeviceId(1), cause.clone());
            let refused =
                DevicePool::with_devices(faults.clone(), &stack, &order.map(DeviceId)).expect_err("one fails");
            let expected = Error::DeviceUnusable { device: DeviceId(1), cause: Box::new(cause.clone()) };
            assert_eq!(refused, expected);
            assert_eq!(refused.is_capacity(), cause.is_capacity());
            assert_eq!(refused.to_string(), format!("gpu1 cannot be used: {cause}"));
            assert_eq!(std::error::Error::source(&refused).map(ToString::to_string), Some(cause.to_string()));
            assert_eq!(faults.calls(Call::Open), faults.calls(Call::Close), "nothing stays open");
        }
    }
}

/// Whichever call fails while devices are opened, the error has the failure and the device, and nothing stays open.
#[test]
fn d1_one_failure_while_named_devices_are_opened_is_the_error() {
    let mut refusals = 0;
    for call in Call::ALL.iter().copied().filter(|call| call.can_fail()) {
        for nth in 1..=4 {
            let sim = sim(2);
            let faults = Faults::new(sim.clone());
            faults.fail_nth(call, nth, Status::OutOfMemory);
            if let Err(refused) = with(faults.clone(), &[1, 0]) {
                let Error::DeviceUnusable { device, .. } = refused else { panic!("{call} number {nth}: {refused:?}") };
                let failure = refused.driver_error().expect("a failure of the driver");
                assert_eq!((failure.device, failure.status), (device, Status::OutOfMemory), "{call} number {nth}");
                assert!(sim.leaks().is_empty(), "{call} number {nth}: {}", sim.leaks());
                refusals += 1;
            }
        }
    }
    assert!(refusals >= 4, "opening, and asking for the facts, of each device");
}

#[test]
fn d1_a_device_that_cannot_be_opened_halfway_is_closed_again() {
    let faults = Faults::new(sim(2));
    let gpus = DevicePool::open(faults.clone(), &NotFor(DeviceId(0), Error::NoDevice)).expect("one is usable");
    assert_eq!((ids(&gpus), gpus.left_out().len()), (vec![1], 1));
    assert_eq!((faults.calls(Call::Open), faults.calls(Call::Close)), (2, 1));
    drop(gpus);
    assert_eq!(faults.calls(Call::Close), 2);
}

#[test]
fn d1_a_device_that_is_lost_while_it_is_opened_has_its_first_failure_as_cause() {
    let faults = Faults::new(Sim::immediate());
    faults.fail_next(Call::Facts, Status::DeviceLost);
    let refused = with(faults, &[0]).expect_err("it is lost");
    assert_eq!(refused.to_string(), "gpu0 cannot be used: facts failed on gpu0: DEVICE_LOST (-1)");
    assert_eq!(format!("{refused:?}"), refused.to_string(), "said once");
}

#[test]
fn d1_where_nothing_is_usable_the_error_says_why_for_each() {
    let failure = |device| Error::Driver(DriverError::new("open", DeviceId(device), Status::NotSupported));
    let sick = |devices| {
        let faults = Faults::new(sim(devices));
        faults.fail_always(Call::Open, Status::NotSupported);
        faults
    };
    let both = DevicePool::open(sick(2), &stack()).expect_err("none works");
    let causes = [0, 1].map(|device| (DeviceId(device), failure(device)));
    assert_eq!(both, Error::NoUsableDevice { causes: causes.into() });
    let said = both.to_string();
    assert!(said.starts_with("no device can be used: gpu0: ") && said.contains("; gpu1: "), "{said}");
    let only = Error::DeviceUnusable { device: DeviceId(0), cause: Box::new(failure(0)) };
    assert_eq!(DevicePool::open(sick(1), &stack()).expect_err("it does not work"), only);
}

#[test]
fn d2_all_who_open_a_device_share_its_primary_context() {
    let sim = sim(2);
    let (first, second) = (open(sim.clone()), open(sim));
    for (here, there) in first.iter().zip(&second) {
        assert!(Arc::ptr_eq(here.context(), here.memory().context()));
        assert!(Arc::ptr_eq(here.context(), here.streams().context()));
        assert!(!Arc::ptr_eq(here.context(), there.context()), "two tables of streams");
        assert_eq!(here.raw_context(), there.raw_context(), "one context of the driver");
    }
    let [a, b] = [0, 1].map(|at| first.device_at(at).expect("there").raw_context());
    assert_ne!(a, b, "each device has its own");
}

#[test]
fn d3_what_is_unknown_is_named() {
    let gpus = with(sim(4), &[3, 1]).expect("usable devices");
    let said = |refused: Result<&Gpu>| refused.expect_err("unknown").to_string();
    assert_eq!(said(gpus.device(DeviceId(0))), "there is no gpu0 among 2 devices");
    assert_eq!(said(gpus.device_at(2)), "invalid value: the pool has no device at this index: 2");
    let one = with(sim(1), &[0]).expect("usable");
    assert_eq!(said(one.device(DeviceId(7))), "there is no gpu7 among 1 device");
}

#[test]
fn d3_devices_are_found_by_ordinal_and_by_place() {
    let gpus = with(sim(4), &[3, 1]).expect("usable devices");
    assert_eq!(gpus.device(DeviceId(1)).expect("there").id(), DeviceId(1));
    assert_eq!(gpus.device_at(0).expect("there").id(), DeviceId(3));
    for device in [DeviceId(0), DeviceId(9)] {
        let unknown = Error::InvalidDevice { device, count: 2 };
        assert_eq!(gpus.device(device).expect_err("not in the pool"), unknown);
    }
    assert_eq!(ids(gpus.iter()), ids(&gpus));
}

#[test]
fn d3_everything_can_be_shared_and_shown() {
    fn check<T: Send + Sync + Debug>() {}
    check::<DevicePool>();
    check::<Gpu>();
    check::<StreamPool>();
    check::<StreamLease>();
    check::<DeviceBuffer<f32>>();
    check::<DeviceSlice<'_, f32>>();
    let gpus = open(sim(2));
    let shown = format!("{gpus:?}");
    assert!(shown.contains("DeviceId(1)") && shown.len() < 2000, "{shown}");
}

#[test]
fn d3_devices_tell_their_identity() {
    let gpus = open(sim(2));
    let uuids: Vec<_> = gpus.iter().map(|gpu| gpu.facts().uuid).collect();
    assert_ne!(uuids[0], uuids[1]);
    assert!(gpus.iter().all(|gpu| gpu.facts().total == Bytes::gib(80)));
}

#[test]
fn d4_round_robin_is_exact_on_sixteen_threads() {
    const EACH: usize = 3001;
    let gpus = open(sim(4));
    let turns = Mutex::new([0; 4]);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut mine = [0; 4];
                for _ in 0..EACH {
                    mine[gpus.round_robin().id().0 as usize] += 1;
                }
                let mut turns = turns.lock().expect("no panic");
                (0..4).for_each(|at| turns[at] += mine[at]);
            });
        }
    });
    assert_eq!(*turns.lock().expect("no panic"), [16 * EACH / 4; 4]);
    let next: Vec<_> = (0..5).map(|_| gpus.round_robin()).collect();
    assert_eq!(ids(next), [0, 1, 2, 3, 0]);
}

/// Up to a GiB of every device is allocated and freed meanwhile, and what is held of them differs by more than that.
#[test]
fn d4_most_free_is_right_while_others_allocate() {
    let gpus = open(sim(4));
    let gpu = |at| gpus.device_at(at).expect("there");
    let _held = [(0, 12), (1, 8), (3, 4)].map(|(at, gib)| hold(gpu(at), Bytes::gib(gib)));
    let (done, churned) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (gpu, done, churned) = (gpu(number % 4), &done, &churned);
            scope.spawn(move || {
                let mut size = number as u64 + 1;
                while !done.load(Relaxed) {
                    drop(hold(gpu, Bytes::mib(1 + size * 37 % 500)));
                    gpu.memory().reap().expect("no fault");
                    churned.fetch_add(1, Relaxed);
                    size += 1;
                }
            });
        }
        let asks = || {
            let goal = churned.load(Relaxed) + 200;
            let mut chosen = BTreeSet::new();
            while churned.load(Relaxed) < goal {
                chosen.insert(gpus.most_free().id().0);
            }
            chosen.into_iter().collect::<Vec<_>>()
        };
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            assert_eq!(asks(), [2]);
            let more = hold(gpu(2), Bytes::gib(6));
            assert_eq!(asks(), [3]);
            let _most = hold(gpu(3), Bytes::gib(6));
            assert_eq!(asks(), [2]);
            let _rest = hold(gpu(2), Bytes::gib(4));
            assert_eq!(asks(), [1]);
            drop(more);
            gpu(2).memory().reap().expect("no fault");
            assert_eq!(asks(), [2]);
        }));
        done.store(true, Relaxed);
        caught.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn d4_most_free_is_live_and_ties_go_to_the_first() {
    let gpus = open(sim(3));
    let [a, b, c] = [0, 1, 2].map(|at| gpus.device_at(at).expect("there"));
    assert_eq!(gpus.most_free().id(), a.id());
    let held = hold(a, Bytes::gib(3));
    assert_eq!(gpus.most_free().id(), b.id());
    let more = hold(b, Bytes::gib(1));
    assert_eq!(gpus.most_free().id(), c.id());
    let _most = hold(c, Bytes::gib(2));
    assert_eq!(gpus.most_free().id(), b.id());
    drop((held, more));
    for gpu in &gpus {
        gpu.memory().reap().expect("no fault");
    }
    assert_eq!(gpus.most_free().id(), a.id());
}

#[test]
fn d4_a_device_that_cannot_be_asked_is_passed_over() {
    let faults = Faults::new(sim(3));
    let gpus = open(faults.clone());
    faults.fail_next(Call::Memory, Status::Unavailable);
    assert_eq!(gpus.most_free().id(), DeviceId(1));
    faults.fail_always(Call::Memory, Status::Unavailable);
    assert_eq!(gpus.most_free().id(), DeviceId(0));
    let error = DriverError::new("memory", DeviceId(0), Status::Unavailable);
    assert_eq!(gpus.most_free().memory_info(), Err(error.into()));
}

#[test]
fn d4_most_total_is_the_first_of_the_largest() {
    let sizes = [80, 141, 141, 24].map(Bytes::gib);
    let sim = sizes.into_iter().fold(Sim::builder().immediate(), |sim, size| sim.device(size));
    let gpus = open(sim.build());
    let _held = hold(gpus.device_at(1).expect("there"), Bytes::gib(3));
    assert_eq!(gpus.most_total().id(), DeviceId(1));
}

#[test]
fn d4_near_is_the_most_free_on_the_node_and_nothing_elsewhere() {
    let somewhere = open(sim(2));
    assert!(somewhere.near(NumaNode::UNKNOWN).is_none(), "an unknown node is nowhere");
    let faults = Faults::new(Sim::builder().immediate().devices(2, Bytes::gib(80)).numa_node(3).build());
    let gpus = open(faults.clone());
    let near = |node| gpus.near(node).map(|gpu| gpu.id().0);
    assert_eq!((near(NumaNode::UNKNOWN), near(NumaNode::new(1))), (None, None));
    assert_eq!(near(NumaNode::new(3)), Some(0));
    let _held = hold(gpus.device_at(0).expect("there"), Bytes::gib(1));
    assert_eq!(near(NumaNode::new(3)), Some(1));
    faults.fail_always(Call::Memory, Status::Unavailable);
    assert_eq!(near(NumaNode::new(3)), Some(0));
}

#[test]
fn d5_links_are_what_the_machine_reports() {
    let linked = Sim::builder().immediate().devices(3, Bytes::gib(80)).linked().build();
    let kind = LinkKind::NvLink { lanes: 18 };
    let expected = [DeviceId(0), DeviceId(2)].map(|to| Link { to, kind });
    assert_eq!(open(linked).device_at(1).expect("there").links(), Ok(expected.to_vec()));

    let faults = Faults::new(sim(2));
    let gpus = open(faults.clone());
    assert_eq!(gpus.most_total().links(), Ok(Vec::new()), "never guessed");
    faults.fail_next(Call::Links, Status::NotSupported);
    assert!(gpus.most_total().links().is_err());
}
