//! R6: the promises when the driver fails.

use crate::StackRig;
use bursar_core::{Bytes, DriverError, Error, Status, tag};
use bursar_sim::Call;

super::clauses! {
    PromptFree: r6_a_failed_free_is_counted_reported_once_and_tried_again,
    NoPool: r6_a_lost_device_is_reported_by_every_call,
    NoPool: r6_a_failed_allocation_leaves_nothing_behind,
}

fn free_call(rig: &StackRig) -> Call {
    if rig.stack.kind.stream_ordered { Call::FreeAsync } else { Call::Free }
}

fn allocate_call(rig: &StackRig) -> Call {
    if rig.stack.kind.stream_ordered { Call::AllocateAsync } else { Call::Allocate }
}

fn r6_a_failed_free_is_counted_reported_once_and_tried_again(rig: &StackRig) {
    let blocks = [rig.allocate(1000), rig.allocate(2000)];
    let granted = rig.outstanding();
    for block in blocks {
        rig.faults.fail_next(free_call(rig), Status::InvalidValue);
        rig.free(block);
    }
    assert_eq!(rig.outstanding(), granted, "the driver does not have them back");
    match rig.memory.allocate(256, 256, rig.stream, tag!("next")) {
        Err(Error::Driver(DriverError { status: Status::InvalidValue, .. })) => {}
        other => panic!("the next fallible call reports the failed free: {other:?}"),
    }
    let block = rig.allocate(256);
    rig.free(block);
    rig.drain();
    assert_eq!(rig.outstanding(), Bytes::ZERO, "tried again, and gone");
}

fn r6_a_lost_device_is_reported_by_every_call(rig: &StackRig) {
    let block = rig.allocate(1000);
    let granted = rig.outstanding();
    rig.faults.lose(rig.context.device());
    rig.free(block);
    for _ in 0..3 {
        for result in [
            rig.memory.allocate(256, 256, rig.stream, tag!("next")).map(drop),
            rig.memory.reap().map(drop),
            rig.memory.reap_blocking(std::time::Duration::MAX).map(drop),
        ] {
            assert!(matches!(result, Err(Error::Driver(error)) if error.is_sticky()), "{result:?}");
        }
    }
    assert_eq!(rig.outstanding(), granted, "what a lost device held stays counted");
}

fn r6_a_failed_allocation_leaves_nothing_behind(rig: &StackRig) {
    rig.faults.fail_next(allocate_call(rig), Status::InvalidValue);
    let failed = rig.memory.allocate(1000, 256, rig.stream, tag!("failing"));
    assert!(matches!(failed, Err(Error::Driver(DriverError { status: Status::InvalidValue, .. }))));
    assert_eq!(rig.outstanding(), Bytes::ZERO);
    rig.faults.fail_next(allocate_call(rig), Status::OutOfMemory);
    let failed = rig.memory.allocate(1000, 256, rig.stream, tag!("failing")).expect_err("no room");
    let granted = rig.memory.granted_size(1000, 256).expect("a legal request");
    assert!(
        failed.is_capacity() && matches!(failed, Error::OutOfMemory { requested, .. } if requested == granted),
        "{failed:?}"
    );
    assert_eq!(rig.outstanding(), Bytes::ZERO);
    rig.free(rig.allocate(1000));
    rig.drain();
}
