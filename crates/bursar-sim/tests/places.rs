//! The place in the program that made a call: known exactly, or not at all.
#![allow(unsafe_code)]

use bursar_core::{Access, Build, DeviceMemoryResource};
use bursar_core::{
    CallSite, DeviceContext, DeviceId, DevicePtr, Driver, HostFlags, Pattern, RawStream, Stack, leaf, tag,
};
use bursar_sim::{CallRecord, Hazard, Launch, Operation, Sim};
use std::sync::Arc;

const GPU: DeviceId = DeviceId(0);

fn line_of(op: &Operation) -> Option<u32> {
    op.location.map(|location| {
        assert_eq!(location.file(), file!());
        location.line()
    })
}

fn only_hazard(sim: &Sim) -> Hazard {
    let hazards = sim.take_hazards();
    assert_eq!(hazards.len(), 1, "{hazards:?}");
    hazards[0]
}

fn two_streams(sim: &Sim) -> (RawStream, RawStream, DevicePtr) {
    let stream = || sim.stream_create(GPU, 0).expect("a stream");
    (stream(), stream(), sim.allocate(GPU, 4096).expect("memory"))
}

#[test]
fn raw_calls_and_launches_know_their_lines() {
    let sim = Sim::seeded(3);
    let (a, b, ptr) = two_streams(&sim);
    let first = line!() + 2;
    // SAFETY: breaking the driver's contract is what the simulator is for.
    unsafe { sim.fill(GPU, a, ptr, Pattern::U8(1), 64) }.expect("submitted");
    let second = line!() + 1;
    sim.launch(GPU, b, Launch::new("reader").reads(ptr, 16)).expect("submitted");
    let hazard = only_hazard(&sim);
    let fill = hazard.first.expect("two operations");
    assert_eq!((line_of(&fill), line_of(&hazard.second)), (Some(first), Some(second)));
    assert_eq!((fill.access, hazard.second.access), (Some(Access::Write), Some(Access::Read)));
    assert_eq!(fill.bytes.expect("a range"), ptr.0..ptr.0 + 64);
    assert_eq!(hazard.second.bytes.expect("a range"), ptr.0..ptr.0 + 16);
    assert!(format!("{fill:#}").ends_with(&format!("at {}", fill.location.expect("a place"))));
}

#[test]
fn a_copy_from_host_memory_that_is_written_again_knows_its_line() {
    let sim = Sim::seeded(3);
    let (a, _, ptr) = two_streams(&sim);
    let staging = sim.host_allocate(GPU, 64, HostFlags::default()).expect("pinned memory");
    let first = line!() + 2;
    // SAFETY: both ranges are live.
    unsafe { sim.copy_to_device(GPU, a, ptr, staging, 64) }.expect("submitted");
    let second = line!() + 1;
    sim.touch_host(staging, 64, Access::Write);
    let hazard = only_hazard(&sim);
    assert_eq!((hazard.first.as_ref().and_then(line_of), line_of(&hazard.second)), (Some(first), Some(second)));
}

#[test]
fn a_write_that_nobody_told_of_is_at_no_place_rather_than_at_a_wrong_one() {
    let sim = Sim::seeded(3);
    let (a, _, ptr) = two_streams(&sim);
    let staging = sim.host_allocate(GPU, 64, HostFlags::default()).expect("pinned memory");
    // SAFETY: both ranges are live.
    unsafe { sim.copy_to_device(GPU, a, ptr, staging, 64) }.expect("submitted");
    // SAFETY: the memory is live; that the copy has not run is the mistake.
    unsafe { staging.write(9) };
    sim.settle();
    let second = only_hazard(&sim).second;
    assert_eq!((second.what, second.access, second.location), ("write", Some(Access::Write), None));
}

#[test]
fn a_host_read_of_what_a_kernel_reads_is_no_mistake() {
    let sim = Sim::seeded(3);
    let (a, b, _) = two_streams(&sim);
    let staging = sim.host_allocate(GPU, 64, HostFlags::default()).expect("pinned memory");
    sim.launch(GPU, a, Launch::new("reader").reads_host(staging, 64)).expect("submitted");
    sim.touch_host(staging, 64, Access::Read);
    sim.assert_clean();
    sim.launch(GPU, b, Launch::new("writer").writes_host(staging, 64)).expect("submitted");
    assert_eq!(only_hazard(&sim).second.what, "writer");
    let outside = sim.launch(GPU, a, Launch::new("far").reads_host(staging, 65));
    assert!(outside.is_err(), "that is not pinned");
}

#[test]
fn behind_a_seam_the_outermost_entry_point_is_the_place_and_otherwise_none_is() {
    let sim = Sim::seeded(3);
    let context = DeviceContext::open(sim.clone(), GPU).expect("a device");
    let memory = Stack::new().over(leaf::Async).build(&context).expect("memory");
    let stream = context.create_stream(0).expect("a stream");
    let allocated = |sim: &Arc<Sim>| -> CallRecord {
        let calls = sim.calls();
        *calls.iter().rfind(|call| call.name == "granted").expect("a block")
    };
    let unknown = memory.allocate(64, 256, stream, tag!("unknown")).expect("a block");
    assert_eq!(allocated(&sim).location, None);

    let line = line!() + 1;
    let outer = context.enter_call_site();
    let inner = context.enter_call_site();
    let known = memory.allocate(64, 256, stream, tag!("known")).expect("a block");
    drop(inner);
    assert_eq!(allocated(&sim).location.map(|location| location.line()), Some(line));
    drop(outer);
    assert_eq!(CallSite::current(), None);
    for block in [unknown, known] {
        memory.deallocate(block, stream).expect("freed");
    }
}

#[test]
fn a_driver_that_does_not_listen_is_told_no_place() {
    let context = DeviceContext::open(Sim::immediate(), GPU).expect("a device");
    let _call = context.enter_call_site();
    assert_eq!(CallSite::current(), None);
}
