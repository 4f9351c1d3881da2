//! Driver calls, counted.
#![allow(unsafe_code)]

mod common;

use bursar_core::{
    Build, CountingDriver, DeviceId, DeviceMemoryResource, Driver, Holder, HostFlags, HostFunction, Note, Pattern,
    PeerPtr, SimulatedKernel, Stack, leaf, tag,
};
use bursar_sim::{Faults, Sim};
use common::context;
use std::sync::Arc;

const GPU: DeviceId = DeviceId(0);
const PAGE: u64 = 2 << 20;

/// Makes every call of the port once, `note` and `listens` last, and returns how many there were without those two.
fn every_call(driver: &dyn Driver) -> u64 {
    let mut calls = 0;
    macro_rules! call {
        ($call:expr) => {{
            calls += 1;
            $call
        }};
    }
    macro_rules! raw {
        ($call:expr) => {{
            calls += 1;
            // SAFETY: everything named here was made just before, on this device, and is given back once.
            unsafe { $call }.expect("the simulated device does it")
        }};
    }
    call!(driver.describe());
    call!(driver.device_count());
    call!(driver.open(GPU)).expect("a device");
    call!(driver.last_error(GPU));
    call!(driver.facts(GPU)).expect("facts");
    call!(driver.memory(GPU)).expect("memory");
    call!(driver.links(GPU)).expect("links");
    let stream = call!(driver.stream_create(GPU, 0)).expect("a stream");
    let event = call!(driver.event_create(GPU)).expect("an event");
    let direct = call!(driver.allocate(GPU, 512)).expect("memory");
    let range = call!(driver.address_reserve(GPU, PAGE, 0)).expect("addresses");
    let pages = call!(driver.pages_create(GPU, PAGE)).expect("pages");
    let host = call!(driver.host_allocate(GPU, 512, HostFlags::default())).expect("host memory");
    let mut own = vec![0u8; 512];
    raw!(driver.host_register(GPU, own.as_mut_ptr(), 512, HostFlags::default()));
    call!(driver.host_device_pointer(GPU, host)).expect("an address");
    raw!(driver.pages_map(GPU, range, PAGE, pages));
    raw!(driver.pages_allow(GPU, range, PAGE));
    let ordered = raw!(driver.allocate_async(GPU, stream, 512));
    raw!(driver.fill(GPU, stream, ordered, Pattern::U8(1), 512));
    raw!(driver.copy_on_device(GPU, stream, direct, ordered, 512));
    let peer = |ptr| PeerPtr { device: GPU, ptr };
    raw!(driver.copy_peer(GPU, stream, peer(direct), peer(ordered), 512));
    raw!(driver.simulate(GPU, stream, SimulatedKernel::new("kernel")));
    raw!(driver.copy_to_host(GPU, stream, host, direct, 512));
    raw!(driver.copy_to_device(GPU, stream, ordered, host, 512));
    raw!(driver.host_function(GPU, stream, HostFunction::new(|| ())));
    raw!(driver.event_record(GPU, event, stream));
    raw!(driver.event_query(GPU, event));
    raw!(driver.event_synchronize(GPU, event));
    raw!(driver.stream_wait(GPU, stream, event));
    raw!(driver.stream_is_capturing(GPU, stream));
    raw!(driver.stream_query(GPU, stream));
    raw!(driver.free_async(GPU, stream, ordered));
    raw!(driver.stream_synchronize(GPU, stream));
    raw!(driver.capture_begin(GPU, stream));
    let graph = raw!(driver.capture_end(GPU, stream));
    let executable = raw!(driver.graph_instantiate(GPU, graph));
    raw!(driver.graph_launch(GPU, executable, stream));
    raw!(driver.graph_exec_destroy(GPU, executable));
    raw!(driver.graph_destroy(GPU, graph));
    raw!(driver.host_unregister(GPU, own.as_mut_ptr()));
    raw!(driver.host_free(GPU, host));
    raw!(driver.pages_unmap(GPU, range, PAGE));
    raw!(driver.pages_release(GPU, pages));
    raw!(driver.address_release(GPU, range, PAGE));
    driver.listens();
    driver.simulates();
    // SAFETY: the range was allocated above and is not freed yet.
    unsafe { driver.note(GPU, Note::Freed { ptr: direct, stream, home: stream }) };
    raw!(driver.free(GPU, direct));
    raw!(driver.event_destroy(GPU, event));
    raw!(driver.stream_destroy(GPU, stream));
    raw!(driver.close(GPU));
    calls
}

#[test]
fn every_call_is_forwarded_and_counted_but_for_notes() {
    let faults = Faults::new(Sim::immediate());
    let counted = CountingDriver::new(faults.clone());
    let before = CountingDriver::calls_of_this_thread();
    let made = every_call(&*counted);
    assert_eq!(counted.calls(), made);
    assert_eq!(CountingDriver::calls_of_this_thread() - before, made);
    for call in bursar_sim::Call::ALL {
        assert_eq!(faults.calls(*call), 1, "{call:?} was not forwarded");
    }
}

#[test]
fn calls_are_counted_for_the_thread_that_made_them() {
    let counted = CountingDriver::new(Sim::immediate());
    let context = context(counted.clone());
    let memory = Arc::new(Stack::new().over(leaf::Async).build(&context).expect("a stack"));
    let opened = counted.calls();
    let stream = context.default_stream();

    let before = CountingDriver::calls_of_this_thread();
    let (made_there, block) = std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            let before = CountingDriver::calls_of_this_thread();
            let block = memory.allocate(512, 256, stream, tag!("there")).expect("room");
            (CountingDriver::calls_of_this_thread() - before, block)
        });
        there.join().expect("no panic")
    });
    assert!(made_there > 0, "the driver's own allocator was asked");
    assert_eq!(CountingDriver::calls_of_this_thread(), before, "this thread made no call");
    assert_eq!(memory.granted_size(512, 256).expect("a size"), memory.bytes_outstanding());
    assert_eq!(CountingDriver::calls_of_this_thread(), before, "no call was needed");
    assert_eq!(counted.calls(), opened + made_there);
    memory.deallocate(block, stream).expect("its own");
}
