//! S5: an adoption may end while its stream is being captured. The capture is left alone, nothing fails for it, and
//! what the stream was given is freed once there is an order.
#![allow(unsafe_code)]

use bursar_core::{Build, Bytes, DeviceId, Driver, Stack, Status, leaf, tag};
use bursar_device::Gpu;
use bursar_memory::{PagePool, Quota};
use bursar_sim::{Call, Faults, Random, Sim};
use std::time::Duration;

const GPU0: DeviceId = DeviceId(0);
const LEN: usize = 1000;
const SEEDS: u64 = 64;

/// Drops what is there, in a random order.
fn drop_some<T>(random: &mut Random, all: &mut [Option<T>]) {
    for one in all {
        if random.chance(2) {
            *one = None;
        }
    }
}

/// Buffers and transfers of an adopted stream are dropped before, during and after a capture in which the adoption ends.
fn ends_while_captured(seed: u64, stack: &impl Build) {
    let (sim, mut random) = (Sim::seeded(seed), Random::new(seed));
    let (faults, quota) = (Faults::new(sim.clone()), Quota::of(Bytes::mib(1)));
    let whole = Gpu::open(faults.clone(), GPU0, stack).expect("a simulated device opens");
    let gpu = if random.chance(2) { whole.under(&quota).expect("room") } else { whole.clone() };
    let raw = sim.stream_create(GPU0, 0).expect("room");
    // SAFETY: the stream outlives the adoption.
    let adopted = unsafe { gpu.context().adopt_stream(raw) }.expect("room");
    let mut buffers = [(); 4].map(|()| Some(gpu.buffer::<u8>(LEN, &adopted, tag!("captured")).expect("room")));
    let mut transfers = buffers.each_mut().map(|buffer| {
        let buffer = buffer.as_mut().expect("made just now");
        Some(gpu.submit(&adopted, |work| work.copy_from_host(buffer, vec![1; LEN])).expect("submitted"))
    });
    drop_some(&mut random, &mut transfers);
    drop_some(&mut random, &mut buffers);
    sim.begin_capture(GPU0, raw).expect("live");
    faults.reset_counts();
    drop_some(&mut random, &mut transfers);
    drop_some(&mut random, &mut buffers);
    drop(adopted);
    drop_some(&mut random, &mut transfers);
    drop_some(&mut random, &mut buffers);
    let touched = [Call::StreamSynchronize, Call::EventRecord, Call::StreamQuery, Call::Allocate];
    assert_eq!(touched.map(|call| faults.calls(call)), [0; 4], "seed {seed}: it would be part of the capture");
    let other = gpu.streams().lease().expect("room");
    drop(gpu.buffer::<u8>(LEN, &other, tag!("unrelated")).expect("a capture is no failure"));
    sim.end_capture(GPU0, raw).expect("nothing has spoilt the capture");
    // SAFETY: it was made here and its adoption has ended.
    unsafe { sim.stream_destroy(GPU0, raw) }.expect("alive");
    drop((transfers, buffers));
    gpu.memory().reap_blocking(Duration::MAX).expect("the device works");
    assert_eq!((gpu.memory().bytes_outstanding(), gpu.deferred_frees()), (Bytes::ZERO, 0), "seed {seed}");
    assert_eq!(quota.used(), Bytes::ZERO, "seed {seed}");
    drop(other);
    assert!(gpu.close().is_ok() && whole.close().is_ok(), "seed {seed}");
    sim.assert_clean();
    assert!(sim.leaks().is_empty(), "seed {seed}: {}", sim.leaks());
}

#[test]
fn s5_direct_memory_of_a_stream_that_ended_while_it_was_captured_is_freed_after_it() {
    (0..SEEDS).for_each(|seed| ends_while_captured(seed, &Stack::new().over(leaf::Direct)));
}

#[test]
fn s5_the_drivers_pool_has_memory_of_a_stream_that_ended_while_it_was_captured_back() {
    (0..SEEDS).for_each(|seed| ends_while_captured(seed, &Stack::new().over(leaf::Async)));
}

#[test]
fn s5_a_pool_has_memory_of_a_stream_that_ended_while_it_was_captured_back() {
    let stack = Stack::new().layer(PagePool::default()).over(leaf::Frames);
    (0..SEEDS).for_each(|seed| ends_while_captured(seed, &stack));
}

#[test]
fn s5_waits_that_a_capture_refuses_leave_one_small_allocation_at_most() {
    let sim = Sim::immediate();
    let gpu = Gpu::open(sim.clone(), GPU0, &Stack::new().over(leaf::Async)).expect("a simulated device opens");
    let raw = sim.stream_create(GPU0, 0).expect("room");
    // SAFETY: the stream outlives the adoption.
    let adopted = unsafe { gpu.context().adopt_stream(raw) }.expect("room");
    sim.begin_capture(GPU0, raw).expect("live");
    drop(adopted);
    for _ in 0..3 {
        gpu.memory().reap_blocking(Duration::MAX).expect("a capture is no failure");
        assert!(gpu.context().left_behind() <= Bytes(256), "{}", gpu.context().left_behind());
    }
    sim.end_capture(GPU0, raw).expect("nothing has spoilt the capture");
    gpu.memory().reap_blocking(Duration::MAX).expect("the device works");
    assert_eq!(gpu.context().left_behind(), Bytes::ZERO);
    gpu.close().expect("nothing is held");
    // SAFETY: it was made here and its adoption has ended.
    unsafe { sim.stream_destroy(GPU0, raw) }.expect("alive");
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
}

#[test]
fn z3_what_a_wait_for_the_device_left_is_not_freed_while_a_stream_is_captured() {
    let sim = Sim::immediate();
    let faults = Faults::new(sim.clone());
    let gpu = Gpu::open(faults.clone(), GPU0, &Stack::new().over(leaf::Async)).expect("a simulated device opens");
    let [ended, captured] = [(); 2].map(|()| sim.stream_create(GPU0, 0).expect("room"));
    // SAFETY: the streams outlive their adoptions.
    let adopted = [ended, captured].map(|raw| unsafe { gpu.context().adopt_stream(raw) }.expect("room"));
    let [adopted, _captured] = adopted;
    sim.begin_capture(GPU0, ended).expect("live");
    drop(adopted);
    sim.end_capture(GPU0, ended).expect("nothing has spoilt the capture");
    faults.fail_next(Call::Free, Status::InvalidValue);
    gpu.context().order_ended(Duration::MAX);
    assert_eq!(gpu.context().left_behind(), Bytes(256), "its free failed");
    sim.begin_capture(GPU0, captured).expect("live");
    faults.reset_counts();
    gpu.context().trim();
    assert_eq!(faults.calls(Call::Free), 0, "it waits for the device");
    sim.end_capture(GPU0, captured).expect("nothing has spoilt the capture");
    gpu.context().trim();
    assert_eq!(gpu.context().left_behind(), Bytes::ZERO);
}
