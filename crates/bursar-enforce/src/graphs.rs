//! Graphs that allocate: their memory is the device's graph memory, which grows when they are instantiated, uploaded or launched.
#![allow(unsafe_code)]

use crate::driver::{Device, Handle, read};
use crate::entry::SUCCESS;
use crate::hook::hook;
use crate::integer_map::IntegerMap;
use crate::share::Share;
use crate::stores::{self, Store};
use crate::{device, graph_nodes};
use std::ffi::{c_char, c_int, c_ulonglong, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// An instantiated graph that allocates.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// The most that it allocates.
    bytes: u64,
    /// The count of trims of graph memory when it ran last: until the next one it has what it needs.
    has_run_at: Option<u64>,
}

static NEEDS: LazyLock<Mutex<IntegerMap<Need>>> = LazyLock::new(Mutex::default);

fn needs() -> MutexGuard<'static, IntegerMap<Need>> {
    NEEDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a call that may take up to `bytes` of graph memory. What has run cannot be taken back: if it took more than was foreseen, the
/// rest is charged as soon as there is room.
fn grow(share: &Share, bytes: u64, call: impl FnOnce() -> c_int) -> c_int {
    match device::of(share).filter(|_| device::is_current(share)) {
        Some(device) => stores::grow(share, Store::Graphs(device), bytes, call, || false),
        None => call(),
    }
}

fn instantiate(share: &Share, made: *const Handle, graph: Handle, call: impl FnOnce() -> c_int) -> c_int {
    let bytes = graph_nodes::allocations(graph);
    if bytes == 0 {
        return call();
    }
    let status = grow(share, bytes, call);
    if status == SUCCESS {
        needs().insert(read(made).0.addr() as u64, Need { bytes, has_run_at: None });
    }
    status
}

fn run(share: &Share, graph: Handle, call: impl FnOnce() -> c_int) -> c_int {
    let at = graph.0.addr() as u64;
    let Some(need) = needs().get(&at).copied() else { return call() };
    let trims = stores::graph_trims();
    let bytes = if need.has_run_at == Some(trims) { 0 } else { need.bytes };
    let status = grow(share, bytes, call);
    if status == SUCCESS {
        needs().insert(at, Need { has_run_at: Some(trims), ..need });
    }
    status
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
            Some(need) if status != SUCCESS => drop(needs().insert(graph.0.addr() as u64, need)),
            _ => stores::settle_all(share),
        }
        status
    };
    pass fn cuDeviceGraphMemTrim(device: Device) |real, share| {
        let status = stores::trimming_graphs(device, || real(device));
        stores::settle_all(share);
        status
    };
}
