//! Every driver call of a sleep and a wake fails once: afterwards the pool is awake or asleep, whole.

use crate::rig::FRAME;
use crate::sleep_rig::SleepRig;
use bursar_conformance::sleep::{Heap, in_the_end, with_each_failure};
use bursar_core::{
    Bytes, DeviceBlock, DeviceMemoryResource, Error, Holder, HostMemory, HostStore, Result, SleepRequest, SleepState,
    Sleeper, Status, Stream, WakeRequest, tag,
};
use bursar_memory::PagePool;
use bursar_sim::{Call, Faults};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A pool with blocks that hold something, between others that are free.
fn filled(seed: u64) -> (SleepRig, Stream, Vec<DeviceBlock>) {
    let rig = SleepRig::new(seed, 32, &PagePool::default().largest_frame(Bytes(2 * FRAME)), None);
    let stream = rig.stream();
    let sizes = [3 * FRAME, 5000, FRAME / 2, 4 * FRAME + 100, 300];
    let mut blocks: Vec<_> =
        sizes.iter().map(|&bytes| rig.pool.allocate(bytes, 256, stream, tag!("faults")).expect("room")).collect();
    rig.pool.deallocate(blocks.remove(2), stream).expect("its own");
    for (value, block) in blocks.iter().enumerate() {
        rig.fill(block, value as u8 + 1, stream);
    }
    (rig, stream, blocks)
}

/// Sleeps and wakes with one fault; returns whether the fault was met.
fn survives(seed: u64, keep_place: bool, call: Call, arm: impl Fn(&Faults)) -> bool {
    let (rig, stream, blocks) = filled(seed);
    let request = SleepRequest { keep_place, ..SleepRequest::default() };
    let before = rig.faults.total_calls();
    arm(&rig.faults);
    let slept = rig.pool.sleep(&Heap, &request);
    let state = rig.state();
    assert!(matches!(state, SleepState::Awake | SleepState::Asleep), "{call}: {state}");
    assert!(slept.is_err() || state == SleepState::Asleep);
    let woken = if state == SleepState::Asleep { rig.pool.wake(&WakeRequest::default()).err() } else { None };
    let calls = rig.faults.total_calls() - before;
    rig.faults.heal();
    // What failed is tried again: whatever it was, nothing is lost.
    let place = if woken.is_some() && keep_place { rig.pool.sleep_reading().asleep } else { Bytes::ZERO };
    in_the_end(|| rig.pool.reap());
    rig.assert_charged(place);
    in_the_end(|| rig.pool.sleep(&Heap, &SleepRequest::default()));
    assert_eq!(rig.state(), SleepState::Asleep);
    in_the_end(|| rig.pool.wake(&WakeRequest::default()));
    assert_eq!(rig.state(), SleepState::Awake);
    in_the_end(|| rig.pool.reap());
    rig.assert_charged(Bytes::ZERO);
    for (value, block) in blocks.iter().enumerate() {
        rig.expect(block, value as u8 + 1, stream);
    }
    in_the_end(|| rig.context.synchronize(stream));
    for block in blocks {
        rig.pool.deallocate(block, stream).expect("its own");
    }
    rig.finish();
    calls > 0
}

#[test]
fn z7_a_failure_of_any_driver_call_leaves_it_awake_or_asleep_whole() {
    let (counted, _, blocks) = filled(0);
    counted.faults.reset_counts();
    counted.pool.sleep(&Heap, &SleepRequest::default()).expect("asleep");
    counted.pool.wake(&WakeRequest::default()).expect("awake");
    drop(blocks);
    let (kinds, faults) = with_each_failure(&counted.faults, 11, |call, nth| {
        let keep_place = nth % 2 == 0;
        assert!(survives(nth, keep_place, call, |faults| faults.fail_nth(call, nth, Status::InvalidValue)));
        if call.is_submission() {
            survives(nth, keep_place, call, |faults| faults.lose_nth_result(call, nth, Status::InvalidValue));
        }
    });
    assert!(kinds >= 8 && faults > 30, "{faults} faults of {kinds} kinds");
}

/// Where a wait for copies fails, one of them may have, also if the next wait does not: nothing relies on what was copied.
#[test]
fn z7_a_wait_for_copies_that_fails_is_a_failure_of_the_whole() {
    let (rig, stream, blocks) = filled(2);
    rig.context.synchronize(stream).expect("the device works");
    let fail_a_wait = || rig.faults.fail_nth(Call::StreamSynchronize, 1, Status::InvalidValue);
    fail_a_wait();
    rig.pool.sleep(&Heap, &SleepRequest::default()).expect_err("the copies may have failed");
    assert_eq!(rig.state(), SleepState::Awake);
    in_the_end(|| rig.pool.sleep(&Heap, &SleepRequest::default()));
    fail_a_wait();
    rig.pool.wake(&WakeRequest::default()).expect_err("the copies may have failed");
    assert_eq!(rig.state(), SleepState::Asleep);
    in_the_end(|| rig.pool.wake(&WakeRequest::default()));
    for (value, block) in blocks.into_iter().enumerate() {
        rig.expect(&block, value as u8 + 1, stream);
        rig.pool.deallocate(block, stream).expect("its own");
    }
    rig.finish();
}

#[test]
fn z7_a_device_without_memory_leaves_it_asleep_until_there_is_some() {
    let (rig, stream, blocks) = filled(1);
    rig.pool.sleep(&Heap, &SleepRequest::default()).expect("asleep");
    let asleep = rig.pool.sleep_reading().asleep;
    for limit in [Bytes::ZERO, Bytes(FRAME), Bytes(asleep.get() - 1)] {
        rig.faults.out_of_memory_at(limit);
        assert!(rig.pool.wake(&WakeRequest::default()).expect_err("no memory").is_capacity());
        assert_eq!((rig.state(), rig.pool.sleep_reading().asleep), (SleepState::Asleep, asleep));
        rig.assert_charged(Bytes::ZERO);
    }
    rig.faults.heal();
    rig.pool.wake(&WakeRequest::default()).expect("memory");
    for (value, block) in blocks.into_iter().enumerate() {
        rig.expect(&block, value as u8 + 1, stream);
        rig.pool.deallocate(block, stream).expect("its own");
    }
    rig.finish();
}

/// A frame that was mapped and could not be made accessible, nor be unmapped then, is made accessible by the next wake.
#[test]
fn z7_a_frame_that_stays_mapped_without_access_wakes_with_it() {
    for nth in 1..=3 {
        let (rig, stream, blocks) = filled(nth);
        rig.pool.sleep(&Heap, &SleepRequest::default()).expect("asleep");
        rig.faults.fail_nth(Call::PagesAllow, nth, Status::InvalidValue);
        rig.faults.fail_always(Call::PagesUnmap, Status::InvalidValue);
        rig.pool.wake(&WakeRequest::default()).expect_err("a frame is not accessible");
        assert_eq!(rig.state(), SleepState::Asleep);
        rig.faults.heal();
        in_the_end(|| rig.pool.wake(&WakeRequest::default()));
        for (value, block) in blocks.into_iter().enumerate() {
            rig.expect(&block, value as u8 + 1, stream);
            rig.pool.deallocate(block, stream).expect("its own");
        }
        rig.finish();
    }
}

/// Host memory that comes shorter than it was asked for, from the `nth` piece on.
#[derive(Debug)]
struct Short {
    nth: usize,
    lent: AtomicUsize,
}

impl HostStore for Short {
    fn lend(&self, bytes: usize) -> Result<Box<dyn HostMemory>> {
        let is_short = self.lent.fetch_add(1, SeqCst) + 1 >= self.nth;
        Ok(Box::new(vec![0u8; bytes - usize::from(is_short)]))
    }
}

/// Contents are copied to no host memory that is too short for them, whichever piece it is.
#[test]
fn z7_host_memory_that_is_shorter_than_asked_for_leaves_it_awake() {
    for nth in 1..=3 {
        let (rig, stream, blocks) = filled(3);
        let request = SleepRequest { piece: Bytes::mib(2), ..SleepRequest::default() };
        let store = Short { nth, lent: AtomicUsize::new(0) };
        let refused = rig.pool.sleep(&store, &request).expect_err("a byte is missing");
        let Error::SizeMismatch { expected, found } = refused else { panic!("{refused}") };
        assert_eq!((found + 1, rig.state()), (expected, SleepState::Awake));
        assert!(store.lent.into_inner() >= nth, "it was lent");
        rig.assert_charged(Bytes::ZERO);
        rig.pool.sleep(&Heap, &request).expect("asleep");
        rig.pool.wake(&WakeRequest::default()).expect("awake");
        for (value, block) in blocks.into_iter().enumerate() {
            rig.expect(&block, value as u8 + 1, stream);
            rig.pool.deallocate(block, stream).expect("its own");
        }
        rig.finish();
    }
}

/// Frames that nobody takes back wake as they are, and once they are given back nothing stays charged for them or their place.
#[test]
fn z7_frames_that_are_refused_when_they_are_given_back_leave_no_place() {
    for (keep_place, refusals) in [(false, 1), (false, u64::MAX), (true, 1), (true, 3), (true, u64::MAX)] {
        let (rig, stream, blocks) = filled(4);
        in_the_end(|| rig.context.synchronize(stream));
        rig.pool.trim(Bytes::ZERO);
        let held = rig.pool.held();
        rig.refusals.store(refusals, SeqCst);
        let request = SleepRequest { keep_place, ..SleepRequest::default() };
        let report = rig.pool.sleep(&Heap, &request).expect("asleep all the same");
        assert!(report.kept > Bytes::ZERO && report.released.saturating_add(report.kept) == held, "{report:?}");
        rig.refusals.store(0, SeqCst);
        let woken = rig.pool.wake(&WakeRequest::default()).expect("awake");
        assert_eq!((woken.taken, rig.pool.held()), (report.released, held));
        for (value, block) in blocks.into_iter().enumerate() {
            rig.expect(&block, value as u8 + 1, stream);
            rig.pool.deallocate(block, stream).expect("its own");
        }
        rig.context.synchronize(stream).expect("the device works");
        rig.pool.trim(Bytes::ZERO);
        rig.assert_charged(Bytes::ZERO);
        assert_eq!(rig.purse.held(), Bytes::ZERO);
        rig.finish();
    }
}

/// Where the driver does not take frames back, the account that a place was kept with knows of them beside those places: asleep,
/// where the place of a block is given up, and awake.
#[test]
fn z7_an_account_knows_of_all_that_the_driver_did_not_take_back() {
    let mut failed = 0;
    for (keep_place, nth) in [false, true].into_iter().flat_map(|keep_place| (1..=6).map(move |nth| (keep_place, nth)))
    {
        let (rig, stream, mut blocks) = filled(nth);
        in_the_end(|| rig.context.synchronize(stream));
        let assert_known = |when: &str| {
            let (known, held) = (rig.purse.held(), rig.faults.held(rig.context.device()));
            assert!(known >= held, "{when}, place {keep_place}, failure {nth}: {known} known of {held}");
            assert_eq!(rig.budget.charged_bytes(), known, "{when}, place {keep_place}, failure {nth}");
            held
        };
        rig.faults.fail_nth(Call::PagesRelease, nth, Status::InvalidValue);
        rig.pool.sleep(&Heap, &SleepRequest { keep_place, ..SleepRequest::default() }).expect("asleep all the same");
        failed += u64::from(assert_known("asleep") > Bytes::ZERO);
        let freed = blocks.split_off(2);
        freed.into_iter().for_each(|block| rig.pool.deallocate(block, stream).expect("its own"));
        rig.faults.fail_nth(Call::PagesMap, 1, Status::InvalidValue);
        rig.pool.wake(&WakeRequest::default()).expect_err("the first frame is not mapped");
        assert_known("asleep again");
        rig.faults.heal();
        in_the_end(|| rig.pool.wake(&WakeRequest::default()));
        assert_known("awake");
        for (value, block) in blocks.into_iter().enumerate() {
            rig.expect(&block, value as u8 + 1, stream);
            rig.pool.deallocate(block, stream).expect("its own");
        }
        in_the_end(|| rig.context.synchronize(stream));
        in_the_end(|| rig.pool.reap());
        rig.pool.trim(Bytes::ZERO);
        rig.assert_charged(Bytes::ZERO);
        rig.finish();
    }
    assert_eq!(failed, 12, "each failure was met");
}
