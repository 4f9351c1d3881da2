//! R6: whatever call fails in the life of a device, its buffers and its streams, nothing is touched early and nothing
//! is left behind for good, in whichever order they are dropped.

use bursar_core::{Build, Bytes, DeviceContext, DeviceId, Error, Result, Stack, Status, leaf, tag};
use bursar_device::Gpu;
use bursar_memory::{PagePool, Quota};
use bursar_sim::{Call, Faults, Sim};
use std::sync::Arc;

const GPU0: DeviceId = DeviceId(0);
const FAILS: Status = Status::Other { code: 999, name: "CUDA_ERROR_UNKNOWN", sticky: false };

/// Buffers that two streams use, dropped after their leases, or after the last handle of the device; allocated through
/// the first handle of the device, or through one under a limit that outlives it.
fn life(faults: &Arc<Faults>, stack: &impl Build, leases_first: bool, is_under: bool) -> Result<()> {
    let mut gpu = Gpu::open(faults.clone(), GPU0, stack)?;
    if is_under {
        gpu = gpu.under(&Quota::of(Bytes::gib(1)))?;
    }
    let (a, b) = (gpu.streams().lease()?, gpu.streams().lease()?);
    let mut buffers = Vec::new();
    for len in [100, 1 << 20, 3 << 20] {
        let mut buffer = gpu.buffer::<u8>(len, &a, tag!("life"))?;
        a.submit(|work| work.fill(&mut buffer, 1))?;
        b.submit(|work| work.fill(&mut buffer, 2))?;
        buffer.free_on(&b)?;
        buffers.push(buffer);
    }
    let read = b.submit(|work| work.read_back(&buffers[0]))?;
    assert_eq!(read.wait()?, [2; 100]);
    if leases_first {
        drop((a, b, gpu));
        drop(buffers);
    } else {
        drop(buffers);
        drop((gpu, b, a));
    }
    Ok(())
}

fn fails_anywhere(stack: &impl Build) {
    for call in Call::ALL.iter().copied().filter(|call| call.can_fail()) {
        for nth in 1..300 {
            let sim = Sim::seeded(nth);
            let faults = Faults::new(sim.clone());
            faults.fail_nth(call, nth, FAILS);
            let lived = life(&faults, stack, nth % 2 == 0, nth % 3 == 0);
            let of_driver = |error: &Error| error.driver_error().is_some();
            assert!(lived.as_ref().err().is_none_or(of_driver), "{call} number {nth}: {lived:?}");
            sim.assert_clean();
            assert!(sim.leaks().is_empty(), "{call} number {nth}: {}", sim.leaks());
            if faults.calls(call) < nth {
                break;
            }
        }
    }
}

#[test]
fn r6_one_failure_anywhere_in_the_life_of_a_device_over_a_pool_leaves_nothing() {
    fails_anywhere(&Stack::new().layer(PagePool::default()).over(leaf::Frames));
}

#[test]
fn r6_one_failure_anywhere_in_the_life_of_a_device_over_the_drivers_pool_leaves_nothing() {
    fails_anywhere(&Stack::new().over(leaf::Async));
}

#[test]
fn r6_one_failure_anywhere_in_the_life_of_a_device_over_direct_memory_leaves_nothing() {
    fails_anywhere(&Stack::new().over(leaf::Direct));
}

/// A buffer that another stream uses, dropped with its device while nothing can be ordered after anything: what the driver fails to
/// order is waited for, since nobody tries again later.
fn ends_without_order(stack: &impl Build) {
    for call in [Call::StreamWait, Call::EventRecord, Call::EventCreate] {
        for device_first in [false, true] {
            let sim = Sim::seeded(1);
            let faults = Faults::new(sim.clone());
            let context = DeviceContext::open(faults.clone(), GPU0).expect("a simulated device opens");
            let gpu = Gpu::with_context(&context, stack).expect("room for addresses");
            let (a, b) = (gpu.streams().acquire().expect("a stream"), gpu.streams().acquire().expect("a stream"));
            let mut buffer = gpu.buffer::<u8>(1000, a, tag!("buffer")).expect("room");
            gpu.submit(b, |work| work.fill(&mut buffer, 1)).expect("the device works");
            let graph = gpu.capture(a, |capture| -> Result<_> {
                let mut left = capture.gpu().buffer::<u8>(1000, capture.stream(), tag!("left by a graph"))?;
                capture.gpu().submit(capture.stream(), |work| work.fill(&mut left, 1))?;
                Ok(left)
            });
            let (graph, mut left) = graph.expect("the device works");
            graph.launch(b).expect("the device works");
            gpu.submit(a, |work| work.fill(&mut left, 2)).expect("the device works");
            faults.fail_always(call, FAILS);
            if device_first {
                drop(gpu);
                drop((buffer, left, graph));
            } else {
                drop((graph, buffer, left));
                drop(gpu);
            }
            faults.heal();
            drop(context);
            sim.assert_clean();
            assert!(sim.leaks().is_empty(), "{call}, device first {device_first}: {}", sim.leaks());
        }
    }
}

#[test]
fn r6_a_free_that_is_never_ordered_is_made_when_its_device_ends() {
    ends_without_order(&Stack::new().layer(PagePool::default()).over(leaf::Frames));
    ends_without_order(&Stack::new().over(leaf::Async));
    ends_without_order(&Stack::new().over(leaf::Direct));
}
