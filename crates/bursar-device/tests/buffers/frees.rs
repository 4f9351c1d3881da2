//! Frees of buffers that fail, wait or come after the end of their stream (R6).
#![allow(unsafe_code)]

use super::{GPU0, faulty, gpu_on};
use bursar_core::{
    Action, Actions, Build, Bytes, DeviceId, Driver as _, DriverError, Error, Holding, Observer, Record, Stack, Status,
    StreamMisuse, leaf, tag,
};
use bursar_device::{DeviceBuffer, Gpu};
use bursar_memory::PagePool;
use bursar_sim::{Call, Launch, Sim};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The frees that were recorded in a device's sink, by tag.
#[derive(Debug, Default)]
struct Told(Mutex<Vec<&'static str>>);

impl Told {
    fn of(gpu: &Gpu) -> Arc<Self> {
        let told = Arc::new(Self::default());
        gpu.context().sink().subscribe(&(told.clone() as Arc<dyn Observer>)).expect("room");
        told
    }

    /// Returns the number of frees with a tag, refused ones included.
    fn frees(&self, tag: &str) -> u64 {
        self.0.lock().expect("no panic").iter().filter(|told| **told == tag).count() as u64
    }
}

impl Observer for Told {
    fn interest(&self) -> Actions {
        Actions::of(&[Action::Free])
    }
    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
    fn record(&self, record: &Record<'_>) {
        self.0.lock().expect("no panic").push(record.tag.name());
    }
    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        None
    }
}

#[test]
fn r6_a_free_that_fails_is_reported_by_the_next_buffer_and_not_lost() {
    let (faults, gpu) = faulty();
    let stream = gpu.streams().acquire().expect("room");
    let buffer = gpu.buffer::<u8>(100, stream, tag!("stuck")).expect("room");
    faults.fail_next(Call::FreeAsync, Status::InvalidValue);
    drop(buffer);
    assert_eq!(gpu.memory().bytes_outstanding(), Bytes(256));
    let error = DriverError::new("free_async", GPU0, Status::InvalidValue);
    let reported = gpu.buffer::<u8>(1, stream, tag!("next")).expect_err("the fault");
    assert_eq!(reported, error.into());
    gpu.memory().reap().expect("reported already");
    assert_eq!((gpu.memory().bytes_outstanding(), faults.held(GPU0)), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn r6_a_free_that_cannot_be_ordered_is_kept_and_tried_again() {
    let (faults, gpu) = faulty();
    let [home, last] = [(); 2].map(|()| gpu.streams().acquire().expect("room"));
    let mut buffer = gpu.buffer::<u8>(100, home, tag!("stranded")).expect("room");
    buffer.free_on(last).expect("its own stream");
    faults.fail_next(Call::EventRecord, Status::InvalidValue);
    drop(buffer);
    assert_eq!((gpu.deferred_frees(), gpu.memory().bytes_outstanding()), (0, Bytes(256)), "the memory keeps it");
    let error = DriverError::new("event_record", GPU0, Status::InvalidValue);
    let reported = gpu.buffer::<u8>(1, home, tag!("next")).expect_err("the fault");
    assert_eq!(reported, error.into());
    gpu.memory().reap_blocking(Duration::MAX).expect("nothing fails any more");
    assert_eq!((gpu.memory().bytes_outstanding(), faults.held(GPU0)), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn r6_a_buffer_that_is_dropped_while_its_stream_is_captured_is_freed_afterwards() {
    let sim = Sim::seeded(3);
    let gpu = gpu_on(sim.clone());
    let stream = gpu.streams().acquire().expect("room");
    let raw = gpu.context().resolve(stream).expect("its own");
    let buffer = gpu.buffer_from(&[1u8], stream, tag!("captured")).expect("room");
    sim.begin_capture(GPU0, raw).expect("its own stream");
    let read = buffer.to_vec().expect_err("nothing runs while a stream is captured");
    assert!(matches!(read, Error::StreamMisuse { why: StreamMisuse::Capturing, .. }), "{read}");
    drop(buffer);
    assert_eq!(gpu.deferred_frees(), 1);
    sim.end_capture(GPU0, raw).expect("it was captured");
    drop(gpu.buffer::<u8>(1, stream, tag!("next")).expect("room"));
    assert_eq!(gpu.deferred_frees(), 0);
    drop(gpu);
    sim.assert_clean();
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
}

#[test]
fn r6_what_is_stranded_is_tried_once_more_when_the_device_is_let_go() {
    let sim = Sim::seeded(4);
    let gpu = gpu_on(sim.clone());
    let stream = gpu.streams().acquire().expect("room");
    let raw = gpu.context().resolve(stream).expect("its own");
    let buffer = gpu.buffer::<u8>(1, stream, tag!("captured")).expect("room");
    sim.begin_capture(GPU0, raw).expect("its own stream");
    drop(buffer);
    sim.end_capture(GPU0, raw).expect("it was captured");
    drop(gpu);
    sim.assert_clean();
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
}

#[test]
fn r6_a_free_that_waits_for_a_capture_is_told_once() {
    let sim = Sim::seeded(5);
    let gpu = gpu_on(sim.clone());
    let told = Told::of(&gpu);
    let [stream, other] = [(); 2].map(|()| gpu.streams().acquire().expect("room"));
    let raw = gpu.context().resolve(stream).expect("its own");
    let mut buffers = [(); 2].map(|()| gpu.buffer::<u8>(1, stream, tag!("captured")).expect("room"));
    buffers[1].free_on(other).expect("its own stream");
    sim.begin_capture(GPU0, raw).expect("its own stream");
    drop(buffers);
    let kept = gpu.deferred_frees();
    assert!(kept > 0);
    let before = told.frees("captured");
    for _ in 0..5 {
        drop(gpu.buffer::<u8>(1, other, tag!("next")).expect("room"));
    }
    assert_eq!((gpu.deferred_frees(), told.frees("captured")), (kept, before), "nothing was freed, so nothing is told");
    sim.end_capture(GPU0, raw).expect("it was captured");
    drop(gpu.buffer::<u8>(1, other, tag!("next")).expect("room"));
    assert_eq!((gpu.deferred_frees(), told.frees("captured")), (0, before + kept as u64));
    sim.assert_clean();
}

#[test]
fn r6_a_buffer_whose_adopted_stream_has_ended_is_freed_on_a_stream_of_our_own() {
    let (faults, gpu) = faulty();
    let told = Told::of(&gpu);
    let raw = faults.stream_create(GPU0, 0).expect("room");
    // SAFETY: the stream outlives the adoption.
    let adopted = unsafe { gpu.context().adopt_stream(raw) }.expect("room");
    let other = gpu.streams().acquire().expect("room");
    let [first, mut moves, second] =
        [(); 3].map(|()| gpu.buffer::<u8>(100, adopted.stream(), tag!("adopted")).expect("room"));
    drop(adopted);
    moves.free_on(other).expect("its own stream");
    drop((first, moves));
    assert_eq!((gpu.deferred_frees(), faults.held(GPU0)), (0, Bytes(256)));
    let streams = faults.calls(Call::StreamCreate);
    drop(second);
    assert_eq!((gpu.deferred_frees(), faults.held(GPU0)), (0, Bytes::ZERO));
    assert_eq!(faults.calls(Call::StreamCreate), streams, "one stream does for all of them");
    assert_eq!(gpu.streams().created(), 1, "which takes no place in the pool");
    let frees = told.frees("adopted");
    for _ in 0..3 {
        gpu.buffer::<u8>(1, other, tag!("next")).expect("nothing is wrong with the device");
    }
    assert_eq!(told.frees("adopted"), frees, "they are told no more");
    // SAFETY: it was made here and its adoption has ended.
    unsafe { faults.stream_destroy(GPU0, raw) }.expect("alive");
}

#[test]
fn r6_a_buffer_whose_adopted_stream_has_ended_is_not_freed_out_of_order() {
    for seed in 0..32 {
        let sim = Sim::seeded(seed);
        let gpu = gpu_on(sim.clone());
        let raw = sim.stream_create(GPU0, 0).expect("room");
        // SAFETY: the stream outlives the adoption.
        let adopted = unsafe { gpu.context().adopt_stream(raw) }.expect("room");
        let home = gpu.streams().acquire().expect("room");
        let stays = gpu.buffer::<u8>(100, adopted.stream(), tag!("adopted")).expect("room");
        let mut moves = gpu.buffer::<u8>(100, home, tag!("adopted")).expect("room");
        gpu.context().order(home, adopted.stream()).expect("both are live");
        moves.free_on(adopted.stream()).expect("live");
        for buffer in [&stays, &moves] {
            sim.launch(GPU0, raw, Launch::new("late").writes(buffer.ptr(), 100)).expect("submitted");
        }
        drop(adopted);
        // SAFETY: it was made here and its adoption has ended.
        unsafe { sim.stream_destroy(GPU0, raw) }.expect("alive");
        drop((stays, moves));
        assert_eq!(gpu.deferred_frees(), 0, "seed {seed}");
        drop(gpu);
        sim.settle();
        sim.assert_clean();
        assert!(sim.leaks().is_empty(), "seed {seed}: {}", sim.leaks());
    }
}

#[test]
fn r6_a_buffer_that_finds_no_stream_to_be_freed_on_is_kept_and_tried_again() {
    let (faults, gpu) = faulty();
    let raw = faults.stream_create(GPU0, 0).expect("room");
    // SAFETY: the stream outlives the adoption.
    let adopted = unsafe { gpu.context().adopt_stream(raw) }.expect("room");
    let buffer = gpu.buffer::<u8>(100, adopted.stream(), tag!("adopted")).expect("room");
    faults.fail_always(Call::StreamCreate, Status::OutOfMemory);
    drop(adopted);
    drop(buffer);
    assert_eq!((gpu.deferred_frees(), faults.held(GPU0)), (0, Bytes(256)), "the memory keeps it");
    faults.heal();
    let default = gpu.context().default_stream();
    let reported = gpu.buffer::<u8>(1, default, tag!("next")).expect_err("the fault");
    assert_eq!(reported, DriverError::new("stream_create", GPU0, Status::OutOfMemory).into());
    gpu.memory().reap_blocking(Duration::MAX).expect("nothing fails any more");
    assert_eq!(faults.held(GPU0), Bytes::ZERO);
    // SAFETY: it was made here and its adoption has ended.
    unsafe { faults.stream_destroy(GPU0, raw) }.expect("alive");
}

/// Nothing can be ordered after a stream whose adoption ends while it is captured: only a wait for the whole device can.
#[test]
fn r6_a_buffer_of_a_stream_that_ended_while_it_was_captured_is_freed_at_the_latest_when_the_device_is_let_go() {
    fn check(stack: &impl Build, asks: bool) {
        let sim = Sim::seeded(6);
        let gpu = Gpu::open(sim.clone(), GPU0, stack).expect("a device");
        let raw = sim.stream_create(GPU0, 0).expect("room");
        // SAFETY: the stream outlives the adoption.
        let adopted = unsafe { gpu.context().adopt_stream(raw) }.expect("room");
        let buffer = gpu.buffer::<u8>(100, adopted.stream(), tag!("captured")).expect("room");
        sim.begin_capture(GPU0, raw).expect("alive");
        drop(adopted);
        drop(buffer);
        let held = gpu.memory_info().expect("the device works");
        assert!(held.free < held.total, "nothing is ordered after the stream");
        sim.end_capture(GPU0, raw).expect("it was captured");
        // SAFETY: it was made here and its adoption has ended.
        unsafe { sim.stream_destroy(GPU0, raw) }.expect("alive");
        if asks {
            assert_eq!(gpu.still_held(Duration::MAX), None, "whoever has the patience has it freed");
            assert_eq!(gpu.deferred_frees(), 0);
        }
        drop(gpu);
        sim.assert_clean();
        assert!(sim.leaks().is_empty(), "{}", sim.leaks());
    }
    for asks in [true, false] {
        check(&Stack::new().over(leaf::Direct), asks);
        check(&Stack::new().over(leaf::Async), asks);
        check(&Stack::new().layer(PagePool::default()).over(leaf::Frames), asks);
    }
}

#[test]
fn r6_a_write_that_fails_leaves_no_buffer_behind() {
    let (faults, gpu) = faulty();
    let stream = gpu.streams().acquire().expect("room");
    faults.fail_next(Call::CopyToDevice, Status::InvalidValue);
    let failed: Result<DeviceBuffer<u8>, _> = gpu.buffer_from(&[1, 2, 3], stream, tag!("failed"));
    assert!(failed.is_err());
    assert_eq!(faults.held(GPU0), Bytes::ZERO);
}
