//! R6, S5: frees that a leaf had to keep, because the driver failed or a stream was being captured.
#![allow(unsafe_code)]

mod common;

use bursar_core::{
    Build, Bytes, DeviceBlock, DeviceContext, DeviceId, DeviceMemoryResource, Driver, Holder, Pattern, Stack, Status,
    Stream, leaf, tag,
};
use bursar_sim::{Call, Faults, Sim};
use std::sync::Arc;
use std::time::Duration;

const GPU: DeviceId = DeviceId(0);
const FAILS: Status = Status::Other { code: 999, name: "CUDA_ERROR_UNKNOWN", sticky: false };
/// The size of the device.
const ALL: u64 = 64 << 20;

struct Rig {
    sim: Arc<Sim>,
    faults: Arc<Faults>,
    context: Arc<DeviceContext>,
}

impl Rig {
    fn new(seed: u64) -> Self {
        let sim = Sim::builder().seed(seed).device(Bytes(ALL)).build();
        let faults = Faults::new(sim.clone());
        Self { context: common::context(faults.clone()), sim, faults }
    }

    fn fill(&self, block: &DeviceBlock, stream: Stream) {
        let raw = self.context.hold(stream).expect("a live stream").raw();
        // SAFETY: the block is live, and the simulator reports what is not ordered.
        unsafe { self.sim.fill(GPU, raw, block.ptr(), Pattern::U8(1), 4096) }.expect("the simulator works");
    }

    /// Has a stack keep a free on an adopted stream that ends with nothing ordered after it; returns the stack.
    fn keep_a_free(&self, bytes: u64) -> impl DeviceMemoryResource + use<> {
        let memory = Stack::new().over(leaf::Async).build(&self.context).expect("a stack");
        let raw = self.sim.stream_create(GPU, 0).expect("the simulator works");
        // SAFETY: the stream is never destroyed.
        let adopted = unsafe { self.context.adopt_stream(raw) }.expect("room in the table");
        let stream = adopted.stream();
        let block = memory.allocate(bytes, 256, stream, tag!("kept")).expect("there is room");
        self.fill(&block, stream);
        for call in [Call::FreeAsync, Call::EventRecord, Call::StreamSynchronize] {
            self.faults.fail_always(call, FAILS);
        }
        memory.deallocate(block, stream).expect("the free is kept");
        drop(adopted);
        self.faults.heal();
        let _reported = self.context.fault().check();
        memory
    }
}

#[test]
fn s5_the_end_of_a_stack_waits_for_the_device_where_it_keeps_a_free() {
    let rig = Rig::new(1);
    drop(rig.keep_a_free(ALL / 2));
    assert_eq!(rig.context.left_behind(), Bytes::ZERO, "what was kept was put in order and freed");
    let heir = rig.context.heir().expect("a stream");
    rig.context.synchronize(heir).expect("the device works");
    let next = Stack::new().over(leaf::Async).build(&rig.context).expect("a stack");
    let block = next.allocate(ALL, 256, heir, tag!("all")).expect("all of it is free");
    next.deallocate(block, heir).expect("its own");
    rig.sim.assert_clean();
}

#[test]
fn s5_the_device_is_waited_for_even_if_it_is_full() {
    let rig = Rig::new(2);
    let memory = rig.keep_a_free(ALL / 2);
    let stream = rig.context.create_stream(0).expect("a stream");
    let other = Stack::new().over(leaf::Async).build(&rig.context).expect("a stack");
    let rest = other.allocate(ALL / 2, 256, stream, tag!("the rest")).expect("there is room");
    assert_eq!(rig.context.driver().memory(GPU).expect("the device works").free, Bytes::ZERO);
    memory.reap_blocking(Duration::MAX).expect("it waits as long as it takes");
    assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
    other.deallocate(rest, stream).expect("its own");
    rig.sim.assert_clean();
}

#[test]
fn r6_a_kept_free_whose_stream_is_captured_waits_and_is_no_failure() {
    let rig = Rig::new(3);
    let memory = Stack::new().over(leaf::Async).build(&rig.context).expect("a stack");
    let stream = rig.context.create_stream(0).expect("a stream");
    let block = memory.allocate(1 << 20, 256, stream, tag!("kept")).expect("there is room");
    rig.faults.fail_next(Call::FreeAsync, FAILS);
    memory.deallocate(block, stream).expect("the free is kept");
    assert!(memory.reap().is_err(), "reported once");
    rig.faults.fail_next(Call::FreeAsync, FAILS);
    let block = memory.allocate(1 << 20, 256, stream, tag!("kept")).expect("there is room");
    memory.deallocate(block, stream).expect("the free is kept");
    let _reported = rig.context.fault().check();
    let raw = rig.context.resolve(stream).expect("live");
    rig.sim.begin_capture(GPU, raw).expect("live");
    for _ in 0..3 {
        memory.reap().expect("the capture is somebody's right");
    }
    assert!(memory.bytes_outstanding() > Bytes::ZERO, "nothing was freed into the graph");
    rig.sim.end_capture(GPU, raw).expect("nothing has spoilt the capture");
    memory.reap_blocking(Duration::MAX).expect("the device works");
    assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
    rig.sim.assert_clean();
}

/// The driver waits for all work of the device before it frees, so there is nothing to report.
#[test]
fn r8_direct_memory_is_freed_on_any_stream() {
    for seed in 0..16 {
        let rig = Rig::new(seed);
        let memory = Stack::new().over(leaf::Direct).build(&rig.context).expect("a stack");
        let [home, other] = [(); 2].map(|()| rig.context.create_stream(0).expect("a stream"));
        let block = memory.allocate(1 << 20, 256, home, tag!("direct")).expect("there is room");
        rig.fill(&block, home);
        memory.deallocate(block, other).expect("its own");
        assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);
        rig.sim.assert_clean();
    }
}
