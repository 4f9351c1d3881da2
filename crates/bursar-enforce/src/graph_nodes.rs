//! The memory that a graph will allocate, asked of the driver node by node.
#![allow(unsafe_code)]

use crate::driver::{Function, Handle};
use crate::entry::SUCCESS;
use crate::granule::PAGE;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;

/// The kinds of nodes that are looked at.
const CHILD_GRAPH: c_int = 4;
const ALLOCATION: c_int = 10;
/// The depth to which graphs within graphs are followed.
const DEPTH_MAX: u32 = 16;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`, with the properties of its pool as bytes.
#[repr(C)]
struct AllocationNode {
    properties: [u64; 11],
    access: *mut c_void,
    access_count: usize,
    bytes: usize,
    start: u64,
}

/// Returns the most that a graph allocates, each allocation in whole pages; nothing where the driver does not tell.
pub(crate) fn allocations(graph: Handle) -> u64 {
    allocations_within(graph, 0)
}

fn allocations_within(graph: Handle, depth: u32) -> u64 {
    let of_node = |node: Handle| match kind(node) {
        Some(ALLOCATION) => allocation(node).and_then(|bytes| bytes.checked_next_multiple_of(PAGE)).unwrap_or(0),
        Some(CHILD_GRAPH) if depth < DEPTH_MAX => child(node).map_or(0, |child| allocations_within(child, depth + 1)),
        _ => 0,
    };
    nodes(graph).unwrap_or_default().into_iter().map(of_node).fold(0, u64::saturating_add)
}

fn nodes(graph: Handle) -> Option<Vec<Handle>> {
    static FUNCTION: Function = Function::new(&[c"cuGraphGetNodes"]);
    // SAFETY: the driver's function of this name has this signature.
    let ask = unsafe {
        transmute::<*mut c_void, unsafe extern "C" fn(Handle, *mut Handle, *mut usize) -> c_int>(FUNCTION.get()?)
    };
    let mut count = 0;
    // SAFETY: without a list, the driver says how many there are.
    let status = unsafe { ask(graph, ptr::null_mut(), &raw mut count) };
    if status != SUCCESS {
        return None;
    }
    let mut nodes = vec![Handle::default(); count];
    // SAFETY: a list of ours for the answer, with its length.
    let status = unsafe { ask(graph, nodes.as_mut_ptr(), &raw mut count) };
    nodes.truncate(count);
    (status == SUCCESS).then_some(nodes)
}

fn kind(node: Handle) -> Option<c_int> {
    static FUNCTION: Function = Function::new(&[c"cuGraphNodeGetType"]);
    // SAFETY: the driver's function of this name has this signature.
    let ask = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(Handle, *mut c_int) -> c_int>(FUNCTION.get()?) };
    let mut kind = 0;
    // SAFETY: a node of a graph that the program has, and a variable of ours for the answer.
    let status = unsafe { ask(node, &raw mut kind) };
    (status == SUCCESS).then_some(kind)
}

fn child(node: Handle) -> Option<Handle> {
    static FUNCTION: Function = Function::new(&[c"cuGraphChildGraphNodeGetGraph"]);
    // SAFETY: the driver's function of this name has this signature.
    let ask = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(Handle, *mut Handle) -> c_int>(FUNCTION.get()?) };
    let mut graph = Handle::default();
    // SAFETY: a node of a graph that the program has, and a variable of ours for the answer.
    let status = unsafe { ask(node, &raw mut graph) };
    (status == SUCCESS).then_some(graph)
}

fn allocation(node: Handle) -> Option<u64> {
    static FUNCTION: Function = Function::new(&[c"cuGraphMemAllocNodeGetParams"]);
    // SAFETY: the driver's function of this name has this signature.
    let ask = unsafe {
        transmute::<*mut c_void, unsafe extern "C" fn(Handle, *mut AllocationNode) -> c_int>(FUNCTION.get()?)
    };
    let mut node_is =
        AllocationNode { properties: [0; 11], access: ptr::null_mut(), access_count: 0, bytes: 0, start: 0 };
    // SAFETY: a node of a graph that the program has, and a variable of ours for the answer.
    let status = unsafe { ask(node, &raw mut node_is) };
    (status == SUCCESS).then_some(node_is.bytes as u64)
}

const _: () = assert!(std::mem::offset_of!(AllocationNode, bytes) == 104, "the layout of the driver's header");
