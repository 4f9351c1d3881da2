//! Every driver call of a sleep and a wake fails once: afterwards the pool is awake or asleep, whole.

use crate::rig::FRAME;
use crate::sleep_rig::{Heap, SleepRig};
use bursar_core::{
    Bytes, DeviceBlock, DeviceMemoryResource, Holder, SleepRequest, SleepState, Sleeper, Status, Stream, WakeRequest,
    tag,
};
use bursar_memory::PagePool;
use bursar_sim::{Call, Faults};

/// The number of times that an operation which failed is tried again without faults.
const TRIES: u32 = 4;

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

/// Tries until it succeeds: a failure that the device remembers is reported once, by whichever call comes next.
#[track_caller]
fn in_the_end<T>(mut act: impl FnMut() -> bursar_core::Result<T>) -> T {
    let mut last = None;
    for _ in 0..TRIES {
        match act() {
            Ok(done) => return done,
            Err(error) => last = Some(error),
        }
    }
    panic!("it still fails: {last:?}");
}

/// Sleeps and wakes with one fault; returns whether the fault was met.
fn survives(seed: u64, keep_place: bool, call: Call, arm: impl Fn(&Faults)) -> bool {
    let (rig, stream, blocks) = filled(seed);
    let request = SleepRequest { keep_place, ..SleepRequest::default() };
    let before = rig.faults.total_calls();
    arm(&rig.faults);
    let slept = rig.pool.sleep(&Heap::default(), &request);
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
    in_the_end(|| rig.pool.sleep(&Heap::default(), &SleepRequest::default()));
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
    counted.pool.sleep(&Heap::default(), &SleepRequest::default()).expect("asleep");
    counted.pool.wake(&WakeRequest::default()).expect("awake");
    let calls: Vec<_> = Call::ALL.iter().map(|&call| (call, counted.faults.calls(call))).collect();
    drop(blocks);
    let (mut faults, mut kinds) = (0, 0);
    for (call, made) in calls.into_iter().filter(|(call, made)| call.can_fail() && *made > 0) {
        kinds += 1;
        // The first ones, some in the middle, and the last: a frame like any other is left out.
        let chosen = (1..=made + 1).filter(|nth| *nth <= 3 || *nth > made.saturating_sub(2) || nth % 11 == 0);
        for nth in chosen {
            let keep_place = nth % 2 == 0;
            assert!(survives(nth, keep_place, call, |faults| faults.fail_nth(call, nth, Status::InvalidValue)));
            faults += 1;
            if call.is_submission() {
                survives(nth, keep_place, call, |faults| faults.lose_nth_result(call, nth, Status::InvalidValue));
            }
        }
    }
    assert!(kinds >= 8 && faults > 30, "{faults} faults of {kinds} kinds");
}

#[test]
fn z7_a_device_without_memory_leaves_it_asleep_until_there_is_some() {
    let (rig, stream, blocks) = filled(1);
    rig.pool.sleep(&Heap::default(), &SleepRequest::default()).expect("asleep");
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
