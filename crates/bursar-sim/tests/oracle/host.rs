//! Pinned memory beside copies in flight, and host functions.

use super::judge;
use super::rig::{Host, Rig, SEEDS};
use bursar_core::Access;
use bursar_sim::HazardKind;

#[test]
fn a_source_in_pinned_memory_is_not_written_before_its_copy_is_done() {
    let program = |rig: &Rig, early: bool| {
        let (a, ptr, host) = (rig.stream(), rig.alloc(4096), rig.pinned(4096));
        host.write(5, 1);
        rig.upload(a, ptr, host.0, 64);
        if !early {
            rig.sync(a);
        }
        host.write(5, 2);
        rig.sync(a);
        assert_eq!(rig.peek(ptr, 6)[5], if early { 2 } else { 1 }, "it is read when the copy runs");
        rig.host_free(host.0);
    };
    let hazard = judge(HazardKind::HostTouched, |rig| program(rig, true), |rig| program(rig, false));
    assert_eq!(hazard.first.map(|first| first.what), Some("copy_to_device"));
    assert_eq!(hazard.device, None);
}

#[test]
fn a_target_in_pinned_memory_is_not_written_before_its_copy_is_done() {
    let program = |rig: &Rig, early: bool| {
        let (a, ptr, host) = (rig.stream(), rig.alloc(4096), rig.pinned(4096));
        rig.fill(a, ptr, 9, 64);
        rig.download(a, host.0, ptr, 64);
        if early {
            host.write(5, 2);
        }
        rig.sync(a);
        assert_eq!(host.read(5), 9);
        rig.host_free(host.0);
    };
    judge(HazardKind::HostTouched, |rig| program(rig, true), |rig| program(rig, false));
}

#[test]
fn declared_host_accesses_are_judged_against_the_copies_in_flight() {
    let program = |rig: &Rig, waits: bool, access: Access| {
        let (a, ptr, host) = (rig.stream(), rig.alloc(4096), rig.pinned(4096));
        rig.fill(a, ptr, 9, 64);
        rig.download(a, host.0, ptr, 64);
        if waits {
            rig.sync(a);
        }
        rig.sim.touch_host(host.0.wrapping_add(63), 100, access);
        rig.sync(a);
        rig.host_free(host.0);
    };
    for access in [Access::Read, Access::Write] {
        let (wrong, right) = (|rig: &Rig| program(rig, false, access), |rig: &Rig| program(rig, true, access));
        let hazard = judge(HazardKind::HostTouched, wrong, right);
        assert_eq!(hazard.range.end - hazard.range.start, 1);
    }
    let reading_a_source = |rig: &Rig, access: Access| {
        let (a, ptr, host) = (rig.stream(), rig.alloc(4096), rig.pinned(4096));
        rig.upload(a, ptr, host.0, 64);
        rig.sim.touch_host(host.0, 64, access);
        rig.sync(a);
    };
    judge(
        HazardKind::HostTouched,
        |rig| reading_a_source(rig, Access::Write),
        |rig| reading_a_source(rig, Access::Read),
    );
}

#[test]
fn pinned_memory_is_not_freed_before_its_copy_is_done() {
    let program = |rig: &Rig, waits: bool| {
        let (a, ptr, host) = (rig.stream(), rig.alloc(4096), rig.pinned(4096));
        host.write(0, 7);
        rig.upload(a, ptr, host.0, 64);
        if waits {
            rig.sync(a);
        }
        rig.host_free(host.0);
        rig.sync(a);
        assert_eq!(rig.peek(ptr, 1), [7], "the copy still finds it");
    };
    judge(HazardKind::HostTouched, |rig| program(rig, false), |rig| program(rig, true));
}

#[test]
fn copies_and_host_functions_may_change_pinned_memory_in_stream_order() {
    for seed in SEEDS {
        let rig = Rig::seeded(seed);
        let (a, b) = (rig.stream(), rig.stream());
        let (from, to, host) = (rig.alloc(4096), rig.alloc(4096), rig.pinned(4096));
        rig.fill(a, from, 3, 64);
        rig.download(a, host.0, from, 64);
        rig.order(a, b);
        rig.upload(b, to, host.0, 64);
        let address = host.0.expose_provenance();
        rig.host(b, move || Host(std::ptr::with_exposed_provenance_mut(address)).write(0, 4));
        rig.upload(b, to, host.0, 1);
        rig.sync(b);
        assert_eq!(rig.peek(to, 2), [4, 3]);
        rig.sim.assert_clean();
    }
}

#[test]
fn two_copies_that_share_pinned_memory_are_ordered() {
    let program = |rig: &Rig, ordered: bool| {
        let (a, b) = (rig.stream(), rig.stream());
        let (from, to, host) = (rig.alloc(4096), rig.alloc(4096), rig.pinned(64));
        rig.fill(a, from, 0, 64);
        rig.download(a, host.0, from, 64);
        if ordered {
            rig.order(a, b);
        }
        rig.upload(b, to, host.0, 64);
    };
    let hazard = judge(HazardKind::Conflict, |rig| program(rig, false), |rig| program(rig, true));
    assert_eq!(hazard.device, None);
}

#[test]
fn a_host_function_does_not_call_the_driver() {
    let program = |rig: &Rig, calls: bool| {
        let (a, sim, device) = (rig.stream(), rig.sim.clone(), rig.device);
        rig.host(a, move || {
            if calls {
                assert!(bursar_core::Driver::memory(&*sim, device).is_err());
            }
        });
        rig.sync(a);
    };
    judge(HazardKind::CallFromHostFunction, |rig| program(rig, true), |rig| program(rig, false));
}
