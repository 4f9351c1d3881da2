//! Captures beside work that is no part of them: blocks that they leave behind, frees on streams that are not captured, and
//! captures that the driver does not end.
#![allow(unsafe_code)]

use super::{LEN, pooled, pooled_over};
use bursar_conformance::sleep::Heap;
use bursar_core::{DeviceId, Driver, Error, Graph, Result, Stack, Status, StreamMisuse, leaf, tag};
use bursar_device::{DeviceBuffer, Gpu, GpuCapture, SleepOptions, StreamLease, WakeOptions};
use bursar_memory::{Guard, PagePool};
use bursar_sim::{Call, Faults, Sim};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

fn leases<const N: usize>(gpu: &Gpu) -> [StreamLease; N] {
    std::array::from_fn(|_| gpu.streams().lease().expect("room"))
}

/// Leaves a buffer behind where another one was written to before, which the capture reads or does not touch.
fn leave_behind(gpu: &Gpu, stream: &StreamLease, is_read: bool) -> (Graph, DeviceBuffer<u32>) {
    let record = |capture: &GpuCapture<'_>| -> Result<_> {
        let (gpu, stream) = (capture.gpu(), capture.stream());
        let mut scratch = gpu.buffer::<u32>(LEN, stream, tag!("scratch"))?;
        gpu.submit(stream, |work| work.fill(&mut scratch, 1))?;
        let address = scratch.ptr();
        drop(scratch);
        let left = gpu.buffer::<u32>(LEN, stream, tag!("left"))?;
        assert_eq!(left.ptr(), address, "the launch writes there");
        if is_read {
            gpu.submit(stream, |work| work.read(&left).map(drop))?;
        }
        Ok(left)
    };
    gpu.capture(stream, record).expect("captured")
}

#[test]
fn z2_a_launch_comes_before_uses_of_what_it_left_behind_untouched() {
    for (seed, is_read) in (0..64).map(|seed| (seed / 2, seed % 2 == 0)) {
        let sim = Sim::seeded(seed);
        let gpu = pooled(&sim);
        let [stream, other, launching] = leases(&gpu);
        let (graph, mut left) = leave_behind(&gpu, &stream, is_read);
        graph.launch(&launching).expect("launched");
        other.submit(|work| work.fill(&mut left, 7)).expect("submitted");
        assert_eq!(left.to_vec().expect("read"), [7; LEN], "seed {seed}");
        let read = other.submit(|work| work.read_back(&left)).expect("submitted");
        graph.launch(&launching).expect("launched");
        assert_eq!(read.wait().expect("read"), [7; LEN], "seed {seed}: the launch comes after it");
        left.fill(8).expect("filled");
        assert_eq!(left.to_vec().expect("read"), [8; LEN], "seed {seed}");
        drop((graph, left));
        sim.assert_clean();
    }
}

/// A block that lies where one of an earlier graph was is used before any launch: after whoever used and freed that one.
#[test]
fn z2_a_block_is_used_after_what_was_freed_where_it_lies() {
    for (seed, frees_elsewhere) in (0..64).map(|seed| (seed / 2, seed % 2 == 0)) {
        let sim = Sim::seeded(seed);
        let gpu = pooled(&sim);
        let [stream, first, second] = leases(&gpu);
        let memory = gpu.graph_memory().expect("room");
        let capture =
            |tag| gpu.capture_into(&memory, &stream, |capture| capture.gpu().zeros::<u32>(LEN, capture.stream(), tag));
        let (one, mut earlier) = capture(tag!("earlier")).expect("captured");
        let address = earlier.ptr();
        first.submit(|work| work.fill(&mut earlier, 1)).expect("submitted");
        if frees_elsewhere {
            earlier.free_on(&first).expect("not captured");
        }
        drop(earlier);
        let (two, mut later) = capture(tag!("later")).expect("captured");
        assert_eq!(later.ptr(), address);
        second.submit(|work| work.fill(&mut later, 2)).expect("submitted");
        assert_eq!(later.to_vec().expect("read"), [2; LEN], "seed {seed}");
        sim.settle();
        assert_eq!(later.to_vec().expect("read"), [2; LEN], "seed {seed}");
        two.launch(&first).expect("launched");
        assert_eq!(later.to_vec().expect("read"), [0; LEN], "seed {seed}");
        drop((one, two, later));
        sim.assert_clean();
    }
}

fn stacks(driver: &Arc<Sim>) -> [(&'static str, Gpu); 4] {
    let open = |name, opened: Result<Gpu>| (name, opened.expect("a simulated device opens"));
    let driver = || -> Arc<dyn Driver> { driver.clone() };
    let pool = Stack::new().layer(PagePool::default());
    let guarded = Stack::new().layer(Guard::default()).layer(PagePool::default());
    [
        open("pool", Gpu::open(driver(), DeviceId(0), &pool.over(leaf::Frames))),
        open("guard", Gpu::open(driver(), DeviceId(0), &guarded.over(leaf::Frames))),
        open("async", Gpu::open(driver(), DeviceId(0), &Stack::new().over(leaf::Async))),
        open("direct", Gpu::open(driver(), DeviceId(0), &Stack::new().over(leaf::Direct))),
    ]
}

#[test]
fn z4_a_free_in_a_capture_pulls_no_other_stream_into_it() {
    for seed in 0..8 {
        let sim = Sim::seeded(seed);
        for (name, gpu) in stacks(&sim) {
            let [stream, other] = leases(&gpu);
            let mut freed = gpu.zeros::<u32>(LEN, &stream, tag!("freed")).expect("room");
            other.submit(|work| work.fill(&mut freed, 9)).expect("submitted");
            let mut kept = gpu.zeros::<u32>(LEN, &other, tag!("kept")).expect("room");
            let captured = gpu.capture(&stream, |capture| -> Result<()> {
                capture.gpu().submit(capture.stream(), |work| work.fill(&mut freed, 5))?;
                freed.free_on(&other)?;
                drop(freed);
                assert_eq!(gpu.context().check_stream(&other), Ok(()), "{name}: it is no part of the capture");
                other.submit(|work| work.fill(&mut kept, 7))
            });
            captured.expect("captured");
            assert_eq!(kept.to_vec().expect("read"), [7; LEN], "{name}: what was submitted runs");
            drop(gpu.buffer::<u32>(LEN, &stream, tag!("next")).expect("room"));
            assert_eq!(gpu.deferred_frees(), 0, "{name}: the free has had its turn");
        }
        sim.assert_clean();
    }
}

#[test]
fn z4_frees_that_waited_for_memory_to_wake_pull_no_stream_into_a_capture() {
    let sim = Sim::seeded(1);
    let gpu = pooled(&sim);
    let [stream, other] = leases(&gpu);
    let mut freed = gpu.zeros::<u32>(LEN, &stream, tag!("freed")).expect("room");
    let mut kept = gpu.zeros::<u32>(LEN, &other, tag!("kept")).expect("room");
    other.submit(|work| work.fill(&mut freed, 9)).expect("submitted");
    gpu.sleep(&Heap, &SleepOptions::new()).expect("nothing keeps it awake");
    freed.free_on(&other).expect("not captured");
    drop(freed);
    let captured = gpu.capture(&stream, |_| -> Result<()> {
        gpu.wake(&WakeOptions::new())?;
        assert_eq!(gpu.context().check_stream(&other), Ok(()), "it is no part of the capture");
        other.submit(|work| work.fill(&mut kept, 7))
    });
    captured.expect("captured");
    assert_eq!(kept.to_vec().expect("read"), [7; LEN]);
    drop(kept);
    sim.assert_clean();
}

#[test]
fn z3_a_capture_that_the_driver_does_not_end_is_refused_by_name_and_ends_at_last() {
    for (failures, fails) in (1..12).map(|n| (n / 2 + 1, n % 2 == 0)) {
        let sim = Sim::seeded(1);
        let faults = Faults::new(sim.clone());
        let gpu = pooled_over(faults.clone());
        let [stream, other] = leases(&gpu);
        let mut kept = gpu.zeros::<u32>(LEN, &stream, tag!("kept")).expect("room");
        (1..=failures).for_each(|nth| faults.fail_nth(Call::CaptureEnd, nth, Status::NotSupported));
        let captured = gpu.capture(&stream, |capture| -> Result<()> {
            capture.order(&stream, &other)?;
            drop(capture.gpu().zeros::<u32>(LEN, &other, tag!("scratch"))?);
            if fails { Err(Error::NoDevice) } else { Ok(()) }
        });
        captured.expect_err("the driver failed, or the closure");
        // Whoever uses one of its streams tries to end it, and is refused where that fails once more.
        let refusals = failures.saturating_sub(if fails { 2 } else { 3 });
        for _ in 0..refusals {
            let refused = other.submit(|work| work.fill(&mut kept, 7)).expect_err("captured");
            assert!(matches!(refused, Error::StreamMisuse { why: StreamMisuse::Capturing, .. }), "{refused}");
        }
        stream.submit(|work| work.fill(&mut kept, 7)).expect("it has ended at last");
        assert_eq!(kept.to_vec().expect("read"), [7; LEN]);
        let (graph, ()) = gpu.capture(&stream, |_| -> Result<()> { Ok(()) }).expect("captured");
        graph.launch(&other).expect("launched");
        drop((kept, graph));
        sim.assert_clean();
    }
}

#[test]
fn r5_a_stream_whose_handle_was_asked_for_in_a_capture_is_asked_about_after_it() {
    let sim = Sim::seeded(1);
    let gpu = pooled(&sim);
    let [stream] = leases(&gpu);
    let (_, raw) = gpu.capture(&stream, |_| gpu.context().resolve(&stream)).expect("captured");
    gpu.context().check_stream(&stream).expect("the capture is over");
    sim.begin_capture(DeviceId(0), raw).expect("not captured");
    let refused = gpu.context().check_stream(&stream).expect_err("somebody else captures it");
    assert!(matches!(refused, Error::StreamMisuse { why: StreamMisuse::Capturing, .. }), "{refused}");
    sim.end_capture(DeviceId(0), raw).expect("captured");
}

/// Ends the stall of a stream after a while, for whoever waits for it. Returns a function that ends it, and says whether that came first.
fn stalled(faults: &Arc<Faults>, stream: &StreamLease) -> impl FnOnce() -> bool {
    let raw = stream.submit(|work| work.raw_stream()).expect("a stream");
    // SAFETY: the stream is live.
    let stall = unsafe { faults.stall(DeviceId(0), raw) }.expect("the device works");
    let (end, ended) = channel();
    let ends = std::thread::spawn(move || {
        let is_first = ended.recv_timeout(Duration::from_secs(5)).is_ok();
        drop(stall);
        is_first
    });
    move || {
        _ = end.send(());
        ends.join().expect("no panic")
    }
}

/// A stream that comes back from the memory of a graph waits for its launches; who waits for his own work takes another.
#[test]
fn z3_a_capture_and_a_wake_wait_for_no_work_of_others() {
    for is_asleep in [false, true] {
        let faults = Faults::new(Sim::seeded(1));
        let gpu = Gpu::open(faults.clone(), DeviceId(0), &Stack::new().layer(PagePool::default()).over(leaf::Frames));
        let gpu = gpu.expect("a simulated device opens");
        let [busy, stream] = leases(&gpu);
        let kept = gpu.buffer_from(&[3u32; LEN], &stream, tag!("kept")).expect("room");
        let capture = |stream: &StreamLease| {
            gpu.capture(stream, |capture| capture.gpu().zeros::<u32>(LEN, capture.stream(), tag!("left")))
        };
        let (graph, left) = capture(&busy).expect("captured");
        let in_time = if is_asleep {
            gpu.sleep(&Heap, &SleepOptions::new()).expect("idle");
            let others = leases::<2>(&gpu);
            let end = stalled(&faults, &busy);
            drop((graph, left));
            gpu.wake(&WakeOptions::new()).expect("room");
            drop(others);
            end()
        } else {
            let end = stalled(&faults, &busy);
            graph.launch(&busy).expect("launched");
            drop((graph, left));
            drop(capture(&stream).expect("captured"));
            end()
        };
        assert!(in_time, "asleep: {is_asleep}");
        assert_eq!(kept.to_vec().expect("read"), [3; LEN]);
    }
}

#[test]
fn z3_a_stream_whose_lease_ends_in_a_capture_is_anothers_only_after_it() {
    let sim = Sim::seeded(1);
    let gpu = pooled(&sim);
    let [stream, side] = leases(&gpu);
    let mut other = gpu.buffer_from(&[1u32; LEN], &stream, tag!("other")).expect("room");
    let number = side.number();
    let record = |capture: &GpuCapture<'_>| -> Result<()> {
        capture.order(capture.stream(), &side)?;
        drop(side);
        let elsewhere = || {
            let lease = gpu.streams().lease()?;
            lease.submit(|work| work.fill(&mut other, 2))
        };
        std::thread::scope(|scope| scope.spawn(elsewhere).join().expect("no panic"))
    };
    let (graph, ()) = gpu.capture(&stream, record).expect("captured");
    assert_eq!(other.to_vec().expect("read"), [2; LEN], "it is no part of the graph");
    let leased: Vec<_> = (0..2).map(|_| gpu.streams().lease().expect("room").number()).collect();
    assert!(leased.contains(&number), "it is idle again");
    drop((graph, other));
    sim.assert_clean();
}

/// In a capture no stream can be asked how far it is.
#[test]
fn p4_a_capture_has_what_was_freed_before_and_is_done_with() {
    let sim = Sim::builder().seed(3).device(bursar_core::Bytes::mib(96)).build();
    let gpu = Gpu::open(sim.clone(), DeviceId(0), &Stack::new().layer(PagePool::default()).over(leaf::Frames));
    let gpu = gpu.expect("a simulated device opens");
    let [stream] = leases(&gpu);
    let len = 80 << 20;
    drop(gpu.buffer_from(&vec![7u8; len], &stream, tag!("before")).expect("room"));
    let capture =
        |capture: &GpuCapture<'_>| capture.gpu().buffer::<u8>(len, capture.stream(), tag!("scratch")).map(drop);
    gpu.capture(&stream, capture).expect("nothing else is used");
    sim.assert_clean();
}
