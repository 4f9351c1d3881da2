//! The operations that order two accesses, and those that do not.

use super::judge;
use super::rig::{Rig, SEEDS};
use bursar_core::{DevicePtr, Gate, HostFunction, RawStream};
use bursar_sim::{Executor, HazardKind, Launch};

#[test]
fn conflicting_accesses_are_ordered() {
    let program = |rig: &Rig, ordered: bool| {
        let (a, b, ptr) = (rig.stream(), rig.stream(), rig.alloc(4096));
        rig.fill(a, ptr, 1, 100);
        if ordered {
            rig.order(a, b);
        }
        rig.fill(b, ptr.offset(90), 2, 100);
    };
    let hazard = judge(HazardKind::Conflict, |rig| program(rig, false), |rig| program(rig, true));
    assert_eq!(hazard.range.end - hazard.range.start, 10);
}

#[test]
fn readers_need_no_order_but_a_writer_waits_for_all_of_them() {
    let program = |rig: &Rig, forgets_one: bool| {
        let streams = [rig.stream(), rig.stream(), rig.stream()];
        let ptr = rig.alloc(4096);
        for stream in streams {
            rig.sim.launch(rig.device, stream, Launch::new("reader").reads(ptr, 64)).unwrap();
        }
        rig.order(streams[1], streams[0]);
        if !forgets_one {
            rig.order(streams[2], streams[0]);
        }
        rig.fill(streams[0], ptr, 1, 64);
    };
    let hazard = judge(HazardKind::Conflict, |rig| program(rig, true), |rig| program(rig, false));
    assert_eq!(hazard.first.map(|first| first.executor), Some(Executor::Stream(3)));
}

#[test]
fn order_may_come_from_a_query_a_synchronisation_or_a_host_function() {
    for seed in SEEDS {
        for way in 0..4 {
            let rig = Rig::seeded(seed);
            let (a, b, ptr) = (rig.stream(), rig.stream(), rig.alloc(4096));
            rig.fill(a, ptr, 1, 64);
            match way {
                0 => rig.sync(a),
                1 => while !rig.query(a).is_complete() {},
                2 => {
                    let event = rig.event();
                    rig.record(event, a);
                    while !rig.query_event(event).is_complete() {}
                }
                _ => {
                    let gate = Gate::default();
                    let heard = gate.clone();
                    rig.host(a, move || heard.open());
                    while !gate.is_open() {
                        rig.sim.step();
                    }
                }
            }
            rig.fill(b, ptr, 2, 64);
            rig.sim.assert_clean();
        }
    }
}

#[test]
fn a_query_that_says_pending_orders_nothing() {
    let rig = Rig::seeded(3);
    let (a, b, ptr) = (rig.stream(), rig.stream(), rig.alloc(4096));
    let gate = Gate::default();
    rig.host_function(a, HostFunction::behind(gate.clone(), || ()));
    rig.fill(a, ptr, 1, 64);
    assert!(!rig.query(a).is_complete());
    rig.fill(b, ptr, 2, 64);
    assert_eq!(rig.only_hazard().kind, HazardKind::Conflict);
    gate.open();
}

#[test]
fn waiting_for_an_event_means_its_latest_record_at_that_time() {
    let program = |rig: &Rig, record_again: bool| {
        let (a, b, ptr) = (rig.stream(), rig.stream(), rig.alloc(4096));
        let event = rig.event();
        rig.record(event, a);
        rig.fill(a, ptr, 1, 64);
        if record_again {
            rig.record(event, a);
        }
        rig.wait(b, event);
        rig.record(event, a);
        rig.fill(b, ptr, 2, 64);
    };
    judge(HazardKind::Conflict, |rig| program(rig, false), |rig| program(rig, true));
}

#[test]
fn the_default_stream_orders_blocking_streams_and_no_others() {
    let program = |rig: &Rig, blocking: bool| {
        let stream = |rig: &Rig| match blocking {
            true => rig.sim.create_blocking_stream(rig.device).unwrap(),
            false => rig.stream(),
        };
        let (a, ptr) = (stream(rig), rig.alloc(4096));
        rig.fill(a, ptr, 1, 64);
        rig.fill(RawStream::LEGACY, ptr, 2, 64);
    };
    judge(HazardKind::Conflict, |rig| program(rig, false), |rig| program(rig, true));
    let program = |rig: &Rig, device: u32| {
        let (a, ptr) = (rig.sim.create_blocking_stream(rig.device).unwrap(), rig.alloc(4096));
        let other = rig.on(device);
        rig.fill(a, ptr, 1, 64);
        other.fill(RawStream::LEGACY, ptr, 2, 64);
        other.sync(RawStream::LEGACY);
        rig.sync(a);
    };
    judge(HazardKind::Conflict, |rig| program(rig, 1), |rig| program(rig, 0));
}

#[test]
fn a_destroyed_stream_is_waited_for_with_its_device_and_then_no_longer() {
    let blocking = |rig: &Rig| rig.sim.create_blocking_stream(rig.device).unwrap();
    let fill_and_destroy = |rig: &Rig, stream: RawStream, ptr: DevicePtr| {
        rig.fill(stream, ptr, 1, 64);
        rig.destroy(stream);
    };
    judge(
        HazardKind::Conflict,
        |rig| {
            let (ptr, other) = (rig.alloc(4096), rig.alloc(4096));
            fill_and_destroy(rig, blocking(rig), ptr);
            rig.free(other);
            fill_and_destroy(rig, rig.stream(), ptr);
            rig.fill(RawStream::LEGACY, ptr, 2, 64);
        },
        |rig| {
            let ptr = rig.alloc(4096);
            for _ in 0..3 {
                fill_and_destroy(rig, rig.stream(), ptr);
                rig.free(rig.alloc(64));
                fill_and_destroy(rig, blocking(rig), ptr);
                rig.fill(RawStream::LEGACY, ptr, 2, 64);
                rig.free(rig.alloc(64));
                rig.fill(RawStream::LEGACY, ptr, 3, 64);
                rig.sync(RawStream::LEGACY);
            }
        },
    );
}
