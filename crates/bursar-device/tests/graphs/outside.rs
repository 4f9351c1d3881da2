//! Captures beside work that is no part of them: frees on streams that are not captured.

use super::{LEN, pooled};
use bursar_conformance::sleep::Heap;
use bursar_core::{DeviceId, Driver, Result, Stack, leaf, tag};
use bursar_device::{Gpu, SleepOptions, StreamLease, WakeOptions};
use bursar_memory::{Guard, PagePool};
use bursar_sim::Sim;
use std::sync::Arc;

fn leases<const N: usize>(gpu: &Gpu) -> [StreamLease; N] {
    std::array::from_fn(|_| gpu.streams().lease().expect("room"))
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
