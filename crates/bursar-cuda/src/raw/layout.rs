//! The structures that calls about pages take, in the layout that every driver reads.
//!
//! cudarc's bindings declare a location differently from one version to the next (a field in one, a union in another) for
//! the same eight bytes, so they are declared here once and compared with whichever binding is compiled.

use cudarc::driver::sys;
use std::ffi::{c_int, c_uint};
use std::ptr;

const PINNED: c_uint = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_uint;
const ON_DEVICE: c_uint = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_uint;
const READ_WRITE: c_uint = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as c_uint;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Location {
    kind: c_uint,
    id: c_int,
}

impl Location {
    const fn on(device: sys::CUdevice) -> Self {
        Self { kind: ON_DEVICE, id: device }
    }
}

/// `CUmemAllocationProp`: the kind of physical memory to create.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageKind {
    kind: c_uint,
    handle_types: c_uint,
    location: Location,
    win32: usize,
    compression: u8,
    gpu_direct_rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

impl PageKind {
    /// Returns the kind for memory of `device`, which network cards can access, as they access plain memory, where `rdma` is
    /// true.
    pub(crate) const fn of(device: sys::CUdevice, rdma: bool) -> Self {
        Self {
            kind: PINNED,
            handle_types: 0,
            location: Location::on(device),
            win32: 0,
            compression: 0,
            gpu_direct_rdma: rdma as u8,
            usage: 0,
            reserved: [0; 4],
        }
    }

    pub(super) const fn as_ptr(&self) -> *const sys::CUmemAllocationProp {
        ptr::from_ref(self).cast()
    }
}

/// `CUmemAccessDesc`: the access of a device to mapped memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageAccess {
    location: Location,
    flags: c_uint,
}

impl PageAccess {
    /// Returns the access of `device` for reading and writing.
    pub(crate) const fn of(device: sys::CUdevice) -> Self {
        Self { location: Location::on(device), flags: READ_WRITE }
    }

    pub(super) const fn as_ptr(&self) -> *const sys::CUmemAccessDesc {
        ptr::from_ref(self).cast()
    }
}

macro_rules! same_layout {
    ($($ours:ident = $theirs:ident { $($field:ident = $name:ident),* })*) => { $(
        const _: () = assert!(size_of::<$ours>() == size_of::<sys::$theirs>());
        const _: () = assert!(align_of::<$ours>() == align_of::<sys::$theirs>());
        $(const _: () = assert!(std::mem::offset_of!($ours, $field) == std::mem::offset_of!(sys::$theirs, $name));)*
    )* };
}

same_layout! {
    Location = CUmemLocation { kind = type_ }
    PageKind = CUmemAllocationProp {
        kind = type_, handle_types = requestedHandleTypes, location = location, win32 = win32HandleMetaData,
        compression = allocFlags
    }
    PageAccess = CUmemAccessDesc { location = location, flags = flags }
}
