//! T3: a use that may have been submitted counts, whatever the call returned.
#![allow(unsafe_code)]

use super::{GPU0, LEN, Rig, SEEDS};
use bursar_core::{Driver, DriverError, Error, Result, Status};
use bursar_sim::{Call, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn t3_a_use_counts_though_the_submission_ends_with_an_error_or_a_panic() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b, c] = rig.leases();
        let mut buffer = rig.buffer(&a);
        let failed: Result<()> = b.submit(|work| {
            rig.add_one(work, &mut buffer)?;
            Err(Error::InvalidValue { what: "after the launch" })
        });
        assert!(failed.is_err());
        c.submit(|work| rig.look(work, &buffer)).expect("submitted");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            a.submit(|work| {
                rig.add_one(work, &mut buffer).expect("submitted");
                panic!("after the launch");
            })
        }));
        assert!(panicked.is_err());
        b.submit(|work| rig.look(work, &buffer)).expect("submitted");
        drop((buffer, a, b, c));
        rig.end(seed);
    }
}

#[test]
fn t3_a_use_counts_though_the_answer_to_the_submission_is_lost() {
    for seed in 0..SEEDS {
        for call in [Call::Fill, Call::CopyToDevice, Call::CopyToHost, Call::CopyOnDevice] {
            let rig = Rig::new(Sim::seeded(seed));
            let [a, b, c] = rig.leases();
            let [mut buffer, mut other] = [(); 2].map(|()| rig.buffer(&a));
            rig.faults.lose_nth_result(call, 1, Status::InvalidValue);
            let lost = b.submit(|work| match call {
                Call::Fill => work.fill(&mut buffer, 1),
                Call::CopyToDevice => work.copy_from_host(&mut buffer, vec![1; LEN]).map(drop).map_err(Error::from),
                Call::CopyToHost => work.read_back(&buffer).map(drop),
                _ => work.copy(&buffer, &mut other),
            });
            assert_eq!(lost, Err(DriverError::new(call.name(), GPU0, Status::InvalidValue).into()));
            c.submit(|work| rig.add_one(work, &mut buffer)).expect("submitted");
            c.submit(|work| rig.add_one(work, &mut other)).expect("submitted");
            drop((buffer, other, a, b, c));
            rig.end(seed);
        }
    }
}

#[test]
fn t3_what_could_not_be_ordered_is_not_declared_and_nothing_is_submitted() {
    let rig = Rig::new(Sim::seeded(1));
    let [a, b] = rig.leases();
    let mut buffer = rig.buffer(&a);
    a.submit(|work| work.fill(&mut buffer, 1)).expect("submitted");
    for call in [Call::EventRecord, Call::StreamWait] {
        rig.faults.fail_next(call, Status::InvalidValue);
        let error = DriverError::new(call.name(), GPU0, Status::InvalidValue);
        assert_eq!(b.submit(|work| work.fill(&mut buffer, 2)), Err(error.into()));
    }
    assert_eq!(rig.faults.calls(Call::Fill), 1);
    assert_eq!(buffer.to_vec(), Ok(vec![1; LEN]));
    drop(buffer);
    drop((a, b));
    rig.end(1);
}

#[test]
fn t3_a_transfer_that_nobody_waits_for_is_waited_for() {
    for seed in 0..SEEDS {
        let rig = Rig::new(Sim::seeded(seed));
        let [a, b] = rig.leases();
        let mut buffer = rig.buffer(&a);
        let upload = b.submit(|work| work.copy_from_host(&mut buffer, vec![7; LEN])).expect("submitted");
        drop(upload);
        let raw = rig.gpu.context().resolve(*b).expect("its own");
        // SAFETY: the table resolves live streams only.
        assert!(unsafe { rig.faults.stream_query(GPU0, raw) }.expect("it answers").is_complete(), "seed {seed}");
        assert_eq!(buffer.to_vec(), Ok(vec![7; LEN]));
        drop((buffer, a, b));
        rig.end(seed);
    }
}
