//! The calls of the simulator, with the driver's statuses.
//!
//! The simulator checks every handle, address and size itself and relies on nothing but host memory, so a call that has no
//! host memory is safe with any arguments. Host memory comes as [`Host`] and [`HostSource`], which carry the promise of the
//! program that passed it.
#![allow(unsafe_code)]

use crate::arguments::{Host, HostSource};
use crate::status::CallResult;
use bursar_core::{
    DeviceId, DevicePtr, Driver, HostFlags, HostFunction, Pattern, Progress, RawEvent, RawGraph, RawGraphExec,
    RawPages, RawStream,
};
use bursar_sim::Sim;

/// A stream of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamOn {
    pub(crate) device: DeviceId,
    pub(crate) raw: RawStream,
}

/// Declares calls that the simulator checks completely.
macro_rules! checked {
    ($($name:ident($sim:ident, $device:ident $(, $argument:ident: $type:ty)*) -> $result:ty = $call:expr;)*) => { $(
        pub(crate) fn $name($sim: &Sim, $device: DeviceId $(, $argument: $type)*) -> CallResult<$result> {
            // SAFETY: the simulator looks up every handle and address that it is given, and refuses those it does not know.
            Ok(unsafe { $call }?)
        }
    )* };
}

checked! {
    free(sim, device, ptr: u64) -> () = sim.free(device, DevicePtr(ptr));
    stream_destroy(sim, device, stream: RawStream) -> () = sim.stream_destroy(device, stream);
    event_destroy(sim, device, event: RawEvent) -> () = sim.event_destroy(device, event);
    event_query(sim, device, event: RawEvent) -> Progress = sim.event_query(device, event);
    event_synchronize(sim, device, event: RawEvent) -> () = sim.event_synchronize(device, event);
    address_release(sim, device, ptr: u64, bytes: u64) -> () = sim.address_release(device, DevicePtr(ptr), bytes);
    pages_release(sim, device, pages: RawPages) -> () = sim.pages_release(device, pages);
    pages_map(sim, device, ptr: u64, bytes: u64, pages: RawPages) -> () =
        sim.pages_map(device, DevicePtr(ptr), bytes, pages);
    pages_allow(sim, device, ptr: u64, bytes: u64) -> () = sim.pages_allow(device, DevicePtr(ptr), bytes);
    graph_instantiate(sim, device, graph: RawGraph) -> RawGraphExec = sim.graph_instantiate(device, graph);
    graph_destroy(sim, device, graph: RawGraph) -> () = sim.graph_destroy(device, graph);
    graph_exec_destroy(sim, device, graph: RawGraphExec) -> () = sim.graph_exec_destroy(device, graph);
    pages_unmap(sim, device, ptr: u64, bytes: u64) -> () = sim.pages_unmap(device, DevicePtr(ptr), bytes);
}

/// Declares calls on a stream that the simulator checks completely.
macro_rules! checked_on_stream {
    ($($name:ident($sim:ident, $on:ident $(, $argument:ident: $type:ty)*) -> $result:ty = $call:expr;)*) => { $(
        pub(crate) fn $name($sim: &Sim, $on: StreamOn $(, $argument: $type)*) -> CallResult<$result> {
            // SAFETY: the simulator looks up every handle and address that it is given, and refuses those it does not know.
            Ok(unsafe { $call }?)
        }
    )* };
}

checked_on_stream! {
    free_async(sim, on, ptr: u64) -> () = sim.free_async(on.device, on.raw, DevicePtr(ptr));
    stream_query(sim, on) -> Progress = sim.stream_query(on.device, on.raw);
    stream_synchronize(sim, on) -> () = sim.stream_synchronize(on.device, on.raw);
    stream_wait(sim, on, event: RawEvent) -> () = sim.stream_wait(on.device, on.raw, event);
    event_record(sim, on, event: RawEvent) -> () = sim.event_record(on.device, event, on.raw);
    copy_on_device(sim, on, dst: u64, src: u64, bytes: u64) -> () =
        sim.copy_on_device(on.device, on.raw, DevicePtr(dst), DevicePtr(src), bytes);
    fill(sim, on, dst: u64, pattern: Pattern, count: u64) -> () =
        sim.fill(on.device, on.raw, DevicePtr(dst), pattern, count);
    capture_begin(sim, on) -> () = sim.capture_begin(on.device, on.raw);
    capture_end(sim, on) -> RawGraph = sim.capture_end(on.device, on.raw);
    graph_launch(sim, on, graph: RawGraphExec) -> () = sim.graph_launch(on.device, graph, on.raw);
    host_function(sim, on, function: HostFunction) -> () = sim.host_function(on.device, on.raw, function);
}

/// Copies host memory to device memory.
pub(crate) fn copy_to_device(sim: &Sim, on: StreamOn, dst: u64, src: HostSource, bytes: u64) -> CallResult {
    // SAFETY: the promise of the program about host memory; the simulator checks the rest.
    Ok(unsafe { sim.copy_to_device(on.device, on.raw, DevicePtr(dst), src.as_ptr(), bytes) }?)
}

/// Copies device memory to host memory.
pub(crate) fn copy_to_host(sim: &Sim, on: StreamOn, dst: Host, src: u64, bytes: u64) -> CallResult {
    // SAFETY: the promise of the program about host memory; the simulator checks the rest.
    Ok(unsafe { sim.copy_to_host(on.device, on.raw, dst.as_ptr(), DevicePtr(src), bytes) }?)
}

/// Returns whether the process has every page of a range of host memory.
pub(crate) fn is_mapped(host: Host, bytes: usize) -> bool {
    // SAFETY: the name exists on every system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = host.as_ptr().map_addr(|address| address - address % page);
    let length = (host.as_ptr().addr() - start.addr()).saturating_add(bytes);
    // SAFETY: nothing is read or written; a range that is not mapped is refused.
    unsafe { libc::msync(start.cast(), length, libc::MS_ASYNC) == 0 }
}

/// Pins host memory of the program.
pub(crate) fn host_register(sim: &Sim, device: DeviceId, host: Host, bytes: usize) -> CallResult {
    // SAFETY: the promise of the program that the memory stays mapped until it is unregistered.
    Ok(unsafe { sim.host_register(device, host.as_ptr(), bytes, HostFlags::default()) }?)
}

/// Unpins host memory of the program.
pub(crate) fn host_unregister(sim: &Sim, device: DeviceId, host: Host) -> CallResult {
    // SAFETY: the simulator refuses what is not registered.
    Ok(unsafe { sim.host_unregister(device, host.as_ptr()) }?)
}

/// Frees host memory that the simulator allocated.
pub(crate) fn host_free(sim: &Sim, device: DeviceId, host: Host) -> CallResult {
    // SAFETY: the simulator refuses what it did not allocate; that nothing touches it any more is the program's promise.
    Ok(unsafe { sim.host_free(device, host.as_ptr()) }?)
}
