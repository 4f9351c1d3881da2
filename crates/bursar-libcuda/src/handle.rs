//! The handles of everything that has one: numbers that point at nothing, different for every kind and never used twice.

use std::ptr::without_provenance_mut;

/// The kinds of things that have handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Context = 1,
    Stream,
    Event,
    Pages,
    Pool,
    Array,
    MipmappedArray,
    Graph,
    GraphExec,
    NvmlDevice,
}

/// The bits below the kind.
const NUMBER_BITS: u32 = 40;
/// The alignment that the pointers of a driver would have.
const ALIGN_BITS: u32 = 4;

/// A handle.
pub(crate) type Handle = u64;

/// Returns the handle of the thing of a kind that has this number.
pub(crate) fn handle(kind: Kind, number: u64) -> Handle {
    (kind as u64) << NUMBER_BITS | (number + 1) << ALIGN_BITS
}

/// Returns the handle that a pointer of the interface is.
pub(crate) fn of<T>(pointer: *mut T) -> Handle {
    pointer.addr() as u64
}

/// Returns the pointer of the interface that a handle is.
pub(crate) fn pointer<T>(handle: Handle) -> *mut T {
    without_provenance_mut(handle as usize)
}
