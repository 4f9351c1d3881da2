//! Plans and their reservations, on simulated devices.

use bursar_core::{Account, Bytes, DeviceContext, DeviceId, Driver};
use bursar_fit::{FitError, Headroom, MemoryKind, ProbeError, Ram, ReadError, Spec, fit_workers};
use bursar_ledger::Ledger;
use bursar_sim::Sim;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

const GIB: Bytes = Bytes::gib(1);

fn devices(count: u32, bytes: Bytes) -> (Arc<Sim>, Vec<Arc<DeviceContext>>) {
    let sim = Sim::builder().immediate().devices(count as usize, bytes).build();
    let open = |n| DeviceContext::open(sim.clone(), DeviceId(n)).expect("a simulated device");
    let contexts = (0..count).map(open).collect();
    (sim, contexts)
}

fn stage(contexts: &[Arc<DeviceContext>]) -> Spec {
    Spec::vram("stage", contexts.iter().cloned()).headroom(Headroom::ALL).per_worker(GIB)
}

#[test]
fn f4_what_is_available_is_what_the_driver_has_less_what_others_set_aside() {
    let (sim, contexts) = devices(2, Bytes::gib(10));
    let available =
        || stage(&contexts).plan().map(|plan| [0, 1].map(|n| plan.assignments[n].candidate.available.get() >> 30));
    assert_eq!(available().expect("devices"), [10, 10]);
    sim.allocate(DeviceId(0), 3 << 30).expect("room");
    let ledger = Ledger::for_device(&contexts[1]).expect("a ledger");
    let aside = ledger.reserve(Bytes::gib(4)).expect("room");
    assert_eq!(available().expect("devices"), [7, 6]);
    // Memory that was drawn is counted by the driver.
    aside.charge(Bytes::gib(4)).expect("set aside");
    sim.allocate(DeviceId(1), 4 << 30).expect("room");
    assert_eq!(available().expect("devices"), [7, 6]);
    ledger.set_limit(Bytes::gib(5)).expect("any limit");
    assert_eq!(available().expect("devices"), [7, 1]);
    aside.release(Bytes::gib(4));
}

#[test]
fn f4_without_a_device_the_error_says_how_to_give_a_probe() {
    let nowhere = Spec::new("stage", MemoryKind::Vram);
    for outcome in [nowhere.plan().map(drop), fit_workers(&nowhere).map(drop)] {
        let error = outcome.expect_err("no device");
        assert!(matches!(error, FitError::NoDevice) && error.to_string().contains("Spec::probe"), "{error}");
    }
}

#[test]
fn f5_stages_that_plan_at_once_never_get_the_same_bytes() {
    for round in 0..20 {
        let (_sim, contexts) = devices(2, Bytes::gib(20));
        let start = Barrier::new(6);
        let reserved: Vec<_> = std::thread::scope(|scope| {
            let (contexts, start) = (&contexts, &start);
            let ask = move |want| {
                start.wait();
                fit_workers(&stage(contexts).fixed(Bytes::mib(512)).want(want))
            };
            let asking: Vec<_> = (0..6).map(|n| scope.spawn(move || ask(3 + (n + round) % 5))).collect();
            asking.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        for device in [0, 1].map(DeviceId) {
            let shares = reserved.iter().flatten().flat_map(|reserved| &reserved.shares);
            let promised: u64 = shares
                .filter(|share| share.device == Some(device))
                .map(|share| {
                    let bytes = share.reservation.as_ref().expect("a ledger").bytes();
                    assert_eq!(bytes, Bytes((share.workers << 30) + (512 << 20)));
                    bytes.get()
                })
                .sum();
            assert!(promised <= 20 << 30, "{round}: {promised} of {device}");
        }
        // Six stages want 27 to 33 workers where 38 fit beside six times what they share, so most get all of theirs.
        assert!(reserved.iter().flatten().count() >= 5, "{round}: {reserved:?}");
        let refused = reserved.iter().filter_map(|outcome| outcome.as_ref().err());
        refused.for_each(|error| assert!(error.is_capacity(), "{round}: {error}"));
    }
}

#[test]
fn f5_a_program_that_takes_memory_between_plan_and_promise_is_noticed() {
    let (sim, contexts) = devices(1, Bytes::gib(10));
    let (foreign, has_taken) = (sim.clone(), Arc::new(AtomicBool::new(false)));
    let seen = has_taken.clone();
    let spec = stage(&contexts).want(8).probe(move |_| {
        let free = foreign.memory(DeviceId(0)).map_err(|error| ProbeError::Custom { why: error.to_string() })?.free;
        if !seen.swap(true, Ordering::Relaxed) {
            foreign.allocate(DeviceId(0), 6 << 30).expect("room");
        }
        Ok(free)
    });
    let reserved = fit_workers(&spec).expect("four still fit");
    assert!(has_taken.load(Ordering::Relaxed));
    assert_eq!((reserved.plan.workers, reserved.plan.reduced), (4, true));
    let reservation = reserved.shares[0].reservation.as_ref().expect("a ledger");
    assert_eq!(reservation.bytes(), Bytes::gib(4));
}

#[test]
fn f5_what_cannot_be_set_aside_in_whole_is_not_set_aside_in_part() {
    let (_sim, contexts) = devices(2, Bytes::gib(4));
    let claim = stage(&contexts).want(12).available(Bytes::gib(6));
    assert!(fit_workers(&claim).expect_err("four on each").is_capacity());
    let plan = stage(&contexts).want(12).plan().expect("devices");
    assert_eq!(plan.workers, 8, "nothing stayed behind");
}

#[test]
fn f2_overflow_is_an_error_in_vram_unless_the_caller_says_otherwise() {
    let (_sim, contexts) = devices(1, Bytes::gib(4));
    let large = stage(&contexts).fixed(Bytes::gib(2)).per_worker(Bytes::gib(3)).want(2);
    let error = fit_workers(&large).expect_err("five of four");
    assert!(matches!(&error, FitError::Overflow(plan) if plan.workers == 1), "{error}");
    assert!(error.to_string().contains("VRAM does not swap"), "{error}");
    let reserved = fit_workers(&large.allow_overflow(true)).expect("allowed");
    let reservation = reserved.shares[0].reservation.as_ref().expect("what there is");
    assert_eq!((reserved.plan.workers, reservation.bytes()), (1, Bytes::gib(4)));
}

#[test]
fn f6_a_probe_of_one_s_own_overrides_everything() {
    let nowhere = Ram::below("no/such/machine");
    let ram = Spec::ram("stage").machine(nowhere.clone()).per_worker(GIB).want(99);
    assert!(matches!(ram.plan(), Err(FitError::Probe(ProbeError::Read(ReadError::Unreadable { .. })))));
    assert_eq!(ram.available(Bytes::gib(10)).plan().expect("a probe").workers, 7);
    let (_sim, contexts) = devices(2, Bytes::gib(4));
    let probe = |device: Option<DeviceId>| Ok(Bytes::gib(u64::from(device.map_or(0, |device| device.0 + 1)) * 100));
    let plan = stage(&contexts).want(999).probe(probe).plan().expect("a probe");
    assert_eq!(plan.assignments.iter().map(|assignment| assignment.workers).collect::<Vec<_>>(), [100, 200]);
    let failing = stage(&contexts).probe(|_| Err(ProbeError::Custom { why: "no idea".into() }));
    assert!(failing.plan().expect_err("no idea").to_string().contains("no idea"));
}

#[test]
fn f5_the_machine_s_memory_is_set_aside_among_processes() {
    const FOLDER: &str = "BURSAR_LEDGER_DIR";
    const CHILD: &str = "BURSAR_FIT_TEST_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let folder = std::env::temp_dir().join(format!("bursar-fit-host-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let this = std::env::current_exe().expect("this test");
        let name = "f5_the_machine_s_memory_is_set_aside_among_processes";
        let output = Command::new(this).args(["--exact", name]).env(FOLDER, &folder).env(CHILD, "1").output();
        std::fs::remove_dir_all(&folder).expect("it was made");
        let output = output.expect("this test");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && told.contains("1 passed"), "{told}");
        return;
    }
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("a folder"));
    let spec = Spec::ram("stage").headroom(Headroom::ALL).per_worker(Bytes::mib(64)).want(2).across_processes();
    let before = spec.plan().expect("Linux");
    assert!(!folder.join("HOST.ledger").exists(), "asking makes no ledger");
    let reserved = fit_workers(&spec).expect("128 MiB");
    let reservation = reserved.shares[0].reservation.as_ref().expect("a ledger");
    assert_eq!((reserved.plan.workers, reservation.bytes()), (2, Bytes::mib(128)));
    assert_eq!(before.workers, 2);
    let reading = Ledger::inspect(&folder.join("HOST.ledger")).expect("a ledger");
    assert_eq!((reading.undrawn, reading.processes.len()), (Bytes::mib(128), 1));
    // Memory that another reservation holds is not available.
    let rest = Ram::of_this_machine().read().expect("Linux").total;
    let large = Spec::ram("large").headroom(Headroom::ALL).per_worker(rest).want(1);
    let overflowing = fit_workers(&large).expect("RAM goes on");
    assert!(overflowing.plan.overflow.is_some());
    drop(overflowing);
    drop(reserved);
    assert_eq!(Ledger::inspect(&folder.join("HOST.ledger")).expect("a ledger").undrawn, Bytes::ZERO);
}
