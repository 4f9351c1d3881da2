//! Graphs that allocate: their memory is the device's graph memory, which grows when they are instantiated, uploaded or launched.
#![allow(unsafe_code)]

use crate::driver::{Device, Handle, read};
use crate::entry::SUCCESS;
use crate::hook::hook;
use crate::integer_map::IntegerMap;
use crate::pools::{self, Store};
use crate::share::Share;
use crate::{device, graph_nodes};
use std::ffi::{c_char, c_int, c_ulonglong, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// The most that each instantiated graph allocates, by its handle.
static NEEDS: LazyLock<Mutex<IntegerMap<u64>>> = LazyLock::new(Mutex::default);

fn needs() -> MutexGuard<'static, IntegerMap<u64>> {
    NEEDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a call that may take up to `bytes` of graph memory. What has run cannot be taken back: if it took more than was foreseen, the
/// rest is charged as soon as there is room.
fn grow(share: &Share, bytes: u64, call: impl FnOnce() -> c_int) -> c_int {
    match device::of(share).filter(|_| bytes > 0 && device::is_current(share)) {
        Some(device) => pools::grow(share, Store::Graphs(device), bytes, call, || false),
        None => call(),
    }
}

fn instantiate(share: &Share, made: *const Handle, graph: Handle, call: impl FnOnce() -> c_int) -> c_int {
    let bytes = graph_nodes::allocations(graph);
    let status = grow(share, bytes, call);
    if status == SUCCESS && bytes > 0 {
        needs().insert(read(made).0.addr() as u64, bytes);
    }
    status
}

fn run(share: &Share, graph: Handle, call: impl FnOnce() -> c_int) -> c_int {
    let bytes = needs().get(&(graph.0.addr() as u64)).copied().unwrap_or(0);
    grow(share, bytes, call)
}

hook! {
    take fn cuGraphInstantiate(
        made: *mut Handle, graph: Handle, node: *mut c_void, log: *mut c_char, length: usize
    ) |real, share| instantiate(share, made, graph, || real(made, graph, node, log, length));
    take fn cuGraphInstantiate_v2(
        made: *mut Handle, graph: Handle, node: *mut c_void, log: *mut c_char, length: usize
    ) |real, share| instantiate(share, made, graph, || real(made, graph, node, log, length));
    take fn cuGraphInstantiateWithFlags(made: *mut Handle, graph: Handle, flags: c_ulonglong) |real, share| {
        instantiate(share, made, graph, || real(made, graph, flags))
    };
    take fn cuGraphInstantiateWithParams(made: *mut Handle, graph: Handle, parameters: *mut c_void) |real, share| {
        instantiate(share, made, graph, || real(made, graph, parameters))
    };
    take fn cuGraphInstantiateWithParams_ptsz(made: *mut Handle, graph: Handle, parameters: *mut c_void) |real, share| {
        instantiate(share, made, graph, || real(made, graph, parameters))
    };
    take fn cuGraphUpload(graph: Handle, stream: *mut c_void) |real, share| run(share, graph, || real(graph, stream));
    take fn cuGraphUpload_ptsz(graph: Handle, stream: *mut c_void) |real, share| run(share, graph, || real(graph, stream));
    take fn cuGraphLaunch(graph: Handle, stream: *mut c_void) |real, share| run(share, graph, || real(graph, stream));
    take fn cuGraphLaunch_ptsz(graph: Handle, stream: *mut c_void) |real, share| run(share, graph, || real(graph, stream));

    pass fn cuGraphExecDestroy(graph: Handle) |real, share| {
        let need = needs().remove(&(graph.0.addr() as u64));
        let status = real(graph);
        match need {
            Some(bytes) if status != SUCCESS => drop(needs().insert(graph.0.addr() as u64, bytes)),
            _ => pools::settle_all(share),
        }
        status
    };
    pass fn cuDeviceGraphMemTrim(device: Device) |real, share| {
        let status = real(device);
        pools::settle_all(share);
        status
    };
}
