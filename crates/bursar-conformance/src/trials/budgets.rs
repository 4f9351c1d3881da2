//! B: the promises of a limit anywhere in a stack.

use crate::{StackKind, StackRig};
use bursar_core::{Bytes, Error, Status, tag};
use bursar_sim::Call;

super::clauses! {
    Limit: b3_a_refusal_has_exact_numbers_and_leaves_the_counters_alone,
    Limit: b4_more_than_the_limit_is_refused_without_a_reap,
    Limit: b5_what_has_completed_is_reaped_before_anything_is_refused,
    Limit: b5_a_reap_that_fails_reports_its_own_error,
    Limit: b6_an_exact_fit_succeeds_and_the_next_byte_does_not,
    Limit: b7_what_is_charged_is_what_is_granted,
    Limit: b8_an_inner_failure_is_forwarded_and_costs_nothing,
    Limit: b9_a_charge_ends_when_the_memory_is_free,
}

fn limit(rig: &StackRig) -> Bytes {
    rig.stack.kind.limit.expect("chosen for its limit")
}

fn refused(rig: &StackRig, bytes: u64) -> Error {
    rig.memory.allocate(bytes, 256, rig.stream, tag!("too much")).expect_err("over the limit")
}

fn b3_a_refusal_has_exact_numbers_and_leaves_the_counters_alone(rig: &StackRig) {
    let limit = limit(rig);
    let block = rig.allocate(rig.fitting(Bytes(limit.get() / 4 * 3)));
    let (outstanding, released) = (rig.outstanding(), rig.memory.released_total());
    let calls = rig.faults.calls(Call::Allocate) + rig.faults.calls(Call::AllocateAsync);
    let requested = Bytes(limit.get() / 2);
    assert_eq!(
        refused(rig, rig.fitting(requested)).plain(),
        Error::out_of_budget(requested, limit.saturating_sub(outstanding), limit)
    );
    assert_eq!((rig.outstanding(), rig.memory.released_total()), (outstanding, released));
    assert_eq!(rig.faults.calls(Call::Allocate) + rig.faults.calls(Call::AllocateAsync), calls, "the inner was asked");
    rig.free(block);
    rig.drain();
}

fn b4_more_than_the_limit_is_refused_without_a_reap(rig: &StackRig) {
    let limit = limit(rig);
    rig.free(rig.allocate(256));
    let calls = rig.faults.total_calls();
    let requested = Bytes(limit.get() + 256);
    let refused = refused(rig, rig.fitting(requested));
    assert!(matches!(refused, Error::OutOfBudget { requested: r, .. } if r == requested));
    assert_eq!(rig.faults.total_calls(), calls, "the driver was called");
    rig.drain();
}

fn b5_what_has_completed_is_reaped_before_anything_is_refused(rig: &StackRig) {
    let limit = limit(rig);
    for _ in 0..8 {
        let block = rig.allocate(rig.fitting(limit));
        rig.free(block);
        rig.context.synchronize(rig.stream).expect("the device works");
    }
    rig.drain();
}

fn b5_a_reap_that_fails_reports_its_own_error(rig: &StackRig) {
    let limit = limit(rig);
    let block = rig.allocate(rig.fitting(limit));
    rig.context.fault().record(bursar_core::DriverError::new("planted", rig.context.device(), Status::InvalidValue));
    assert!(matches!(refused(rig, 256), Error::Driver(error) if error.call == "planted"));
    assert!(matches!(refused(rig, 256), Error::OutOfBudget { remaining: Bytes::ZERO, .. }));
    rig.free(block);
    rig.drain();
}

fn b6_an_exact_fit_succeeds_and_the_next_byte_does_not(rig: &StackRig) {
    let limit = limit(rig);
    let smallest = rig.memory.granted_size(1, 256).expect("a legal request");
    let most = rig.allocate(rig.fitting(limit.saturating_sub(smallest)));
    let last = rig.allocate(1);
    assert!(matches!(refused(rig, 1), Error::OutOfBudget { remaining: Bytes::ZERO, .. }));
    rig.free(most);
    rig.free(last);
    rig.drain();
}

fn b7_what_is_charged_is_what_is_granted(rig: &StackRig) {
    let limit = limit(rig);
    let block = rig.allocate(1);
    assert_eq!(rig.outstanding(), block.granted());
    let left = rig.fitting(limit.saturating_sub(block.granted()));
    assert!(refused(rig, left + 1).is_capacity());
    let rest = rig.allocate(left);
    assert_eq!(rig.outstanding(), limit);
    rig.free(block);
    rig.free(rest);
    rig.drain();
}

fn b8_an_inner_failure_is_forwarded_and_costs_nothing(rig: &StackRig) {
    let limit = limit(rig);
    let maps_pages = rig.context.facts().capabilities.page_granularity.is_some();
    let call = match rig.stack.kind {
        StackKind { pooled: true, .. } if maps_pages => Call::PagesCreate,
        StackKind { stream_ordered: true, .. } => Call::AllocateAsync,
        _ => Call::Allocate,
    };
    for _ in 0..3 {
        rig.faults.fail_next(call, Status::NotSupported);
        match rig.memory.allocate(rig.fitting(limit), 256, rig.stream, tag!("failing")) {
            Err(Error::Driver(error)) => assert_eq!(error.status, Status::NotSupported),
            other => panic!("{other:?}"),
        }
    }
    rig.free(rig.allocate(rig.fitting(limit)));
    rig.drain();
}

fn b9_a_charge_ends_when_the_memory_is_free(rig: &StackRig) {
    let limit = limit(rig);
    let block = rig.allocate(rig.fitting(limit));
    if rig.stack.kind.stream_ordered {
        let stall = rig.stall(rig.stream);
        rig.free(block);
        assert!(matches!(refused(rig, 1), Error::OutOfBudget { remaining: Bytes::ZERO, .. }), "the free has not run");
        drop(stall);
        rig.drain();
    } else {
        rig.free(block);
    }
    assert_eq!(rig.outstanding(), Bytes::ZERO);
    rig.free(rig.allocate(rig.fitting(limit)));
    rig.drain();
}
