//! The recent magazines of a thread, on a simulator that does not listen: where one does, every request takes the long path,
//! which checks everything anew.

use bursar_core::{
    Build, DeviceContext, DeviceId, DeviceMemoryResource, DriverError, Error, Stack, Status, Stream, StreamMisuse,
    leaf, tag,
};
use bursar_memory::PagePool;
use bursar_sim::Sim;
use std::sync::Arc;

/// The number of streams that a thread has recent magazines for.
const RECENT: usize = 8;

type Memory = Arc<dyn DeviceMemoryResource>;

fn open() -> (Arc<Sim>, Arc<DeviceContext>) {
    let sim = Sim::immediate();
    let context = DeviceContext::open(sim.clone(), DeviceId(0)).expect("a device");
    (sim, context)
}

fn pool(context: &Arc<DeviceContext>) -> Memory {
    let stack = Stack::new().layer(PagePool::default()).over(leaf::Frames);
    Arc::new(stack.build(context).expect("a pool"))
}

/// Allocates and frees, and returns where the block was.
fn pair(memory: &Memory, stream: Stream) -> Result<u64, Error> {
    let block = memory.allocate(1024, 256, stream, tag!("pair"))?;
    let address = block.ptr().0;
    Ok(memory.deallocate(block, stream).map(|()| address)?)
}

#[test]
fn r6_a_fault_is_reported_by_a_request_that_would_be_cached() {
    let (_, context) = open();
    let (memory, stream) = (pool(&context), context.create_stream(0).expect("a stream"));
    assert_eq!(pair(&memory, stream), pair(&memory, stream), "the second is cached");
    let fault = DriverError::new("free", DeviceId(0), Status::InvalidValue);
    context.fault().record(fault);
    assert_eq!(pair(&memory, stream), Err(fault.into()));
    assert!(pair(&memory, stream).is_ok(), "it is reported once");
}

#[test]
fn r5_a_stream_is_asked_about_from_when_its_handle_is_given_away() {
    let (sim, context) = open();
    let (memory, stream) = (pool(&context), context.create_stream(0).expect("a stream"));
    assert_eq!(pair(&memory, stream), pair(&memory, stream), "the second is cached");
    let block = memory.allocate(1024, 256, stream, tag!("pair")).expect("cached");
    let raw = context.resolve(stream).expect("live");
    sim.begin_capture(DeviceId(0), raw).expect("live");
    let captured = |error: &Error| matches!(error, Error::StreamMisuse { why: StreamMisuse::Capturing, .. });
    assert!(pair(&memory, stream).is_err_and(|error| captured(&error)));
    let refused = memory.deallocate(block, stream).expect_err("captured");
    assert!(captured(&refused.error));
    sim.end_capture(DeviceId(0), raw).expect("live");
    memory.deallocate(refused.block, stream).expect("no longer captured");
}

#[test]
fn p7_what_one_pool_has_cached_is_not_given_out_by_another() {
    let (_, context) = open();
    let stream = context.create_stream(0).expect("a stream");
    let (one, other) = (pool(&context), pool(&context));
    let (first, second) = (pair(&one, stream), pair(&other, stream));
    assert_ne!(first, second);
    for _ in 0..3 {
        assert_eq!((pair(&one, stream), pair(&other, stream)), (first.clone(), second.clone()));
    }
}

#[test]
fn p1_what_is_cached_for_one_stream_is_not_given_to_another() {
    let (_, context) = open();
    let memory = pool(&context);
    let streams: Vec<_> = (0..3 * RECENT).map(|_| context.create_stream(0).expect("a stream")).collect();
    let addresses = || streams.iter().map(|&stream| pair(&memory, stream).expect("memory")).collect::<Vec<_>>();
    let first = addresses();
    assert!((1..first.len()).all(|at| !first[..at].contains(&first[at])), "each has its own");
    assert_eq!(addresses(), first);
}
