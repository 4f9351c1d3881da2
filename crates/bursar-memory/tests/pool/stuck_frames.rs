//! R6 in the pool: frames that can be neither used nor unmapped stay counted, and are tried again.

use crate::rig::{FRAME, Rig, small};
use bursar_core::{Bytes, Error, Holder, Status};
use bursar_sim::{Call, Sim};

const FAILS: Status = Status::Unavailable;

/// A pool that failed to grow by four frames, `mapped` of which could not be unmapped again.
fn stuck(mapped: u64) -> Rig {
    let rig = Rig::new(Sim::seeded(1), 64, &small());
    if mapped == 4 {
        rig.faults.fail_next(Call::PagesAllow, FAILS);
    } else {
        rig.faults.fail_nth(Call::PagesMap, mapped + 1, FAILS);
    }
    rig.faults.fail_always(Call::PagesUnmap, FAILS);
    let stream = rig.stream();
    let failed = rig.try_allocate(4 * FRAME, stream).expect_err("it cannot be mapped");
    assert!(matches!(failed, Error::Driver(_)), "{failed}");
    let reported = rig.try_allocate(FRAME, stream).expect_err("the frames could not be unmapped");
    assert!(matches!(reported, Error::Driver(_)), "{reported}");
    assert_eq!((rig.pool.held(), rig.pool.cached()), (Bytes(4 * FRAME), Bytes(4 * FRAME)));
    assert_eq!((rig.driver_held(), rig.budget.charged_bytes()), (Bytes(4 * FRAME), Bytes(4 * FRAME)));
    rig
}

#[test]
fn r6_frames_that_cannot_be_unmapped_are_given_back_when_they_can() {
    for mapped in [1, 2, 3, 4] {
        let rig = stuck(mapped);
        rig.pool.reap().expect_err("they still cannot be unmapped");
        rig.pool.trim(Bytes::ZERO);
        assert_eq!(rig.pool.held(), Bytes(mapped * FRAME), "those that were mapped nowhere went");
        rig.context.fault().check().expect_err("it failed again");
        rig.faults.heal();
        assert_eq!(rig.pool.trim(Bytes::ZERO), Bytes(mapped * FRAME));
        assert_eq!((rig.pool.held(), rig.driver_held()), (Bytes::ZERO, Bytes::ZERO));
        rig.finish();
    }
}

#[test]
fn r6_frames_that_could_not_be_unmapped_are_used_when_they_can() {
    for mapped in [1, 3, 4] {
        let rig = stuck(mapped);
        rig.faults.heal();
        rig.pool.reap().expect("they can be unmapped now");
        let block = rig.allocate(4 * FRAME, rig.stream());
        rig.fill(&block, 1, block.stream());
        assert_eq!((rig.pool.held(), rig.pool.cached()), (Bytes(4 * FRAME), Bytes::ZERO));
        rig.free(block);
        rig.finish();
    }
}

#[test]
fn r6_a_pool_that_is_dropped_tries_once_more() {
    let rig = stuck(2);
    rig.faults.heal();
    rig.finish();
}
