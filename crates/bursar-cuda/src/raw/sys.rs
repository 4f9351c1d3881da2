//! The driver's types and numbers that are used here, as its header declares them.
//!
//! They are our own, because cudarc, which has them all, compiles with exactly one of its version features: a library that
//! depends on it forces that choice on every program it is used in. Names are those of CUDA's manual. Tests compare every
//! declaration with cudarc's.
//!
//! An enumeration of the driver is a number with names for some of its values: a newer driver may return others.
#![allow(unsafe_code)]
#![allow(non_camel_case_types, non_snake_case, reason = "the names of CUDA's manual")]

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

pub(crate) type CUdevice = c_int;
pub(crate) type CUdeviceptr = c_ulonglong;
pub(crate) type CUmemGenericAllocationHandle = c_ulonglong;
pub(crate) type CUhostFn = Option<unsafe extern "C" fn(*mut c_void)>;
pub(crate) type CUcontext = *mut CUctx_st;
pub(crate) type CUstream = *mut CUstream_st;
pub(crate) type CUevent = *mut CUevent_st;
pub(crate) type CUgraph = *mut CUgraph_st;
pub(crate) type CUgraphExec = *mut CUgraphExec_st;
pub(crate) type CUmemoryPool = *mut CUmemPoolHandle_st;

/// Declares types that only the driver looks into.
macro_rules! opaque {
    ($($name:ident)*) => { $(
        #[repr(C)]
        #[derive(Debug)]
        pub(crate) struct $name {
            _private: [u8; 0],
        }
    )* };
}

opaque! { CUctx_st CUstream_st CUevent_st CUgraph_st CUgraphExec_st CUmemPoolHandle_st }

/// Declares enumerations as numbers, each with the values that are used here.
macro_rules! enumerations {
    ($($name:ident { $($constant:ident = $value:literal),* $(,)? })*) => {
        $(
            #[repr(transparent)]
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(crate) struct $name(pub(crate) c_uint);

            impl $name {
                $(pub(crate) const $constant: Self = Self($value);)*
            }
        )*

        #[test]
        fn j1_enumerations_have_the_values_of_cudarc() {
            $(
                assert_eq!(size_of::<$name>(), size_of::<cudarc::driver::sys::$name>(), stringify!($name));
                $(assert_eq!(
                    $name::$constant.0,
                    cudarc::driver::sys::$name::$constant as c_uint,
                    stringify!($constant)
                );)*
            )*
        }
    };
}

enumerations! {
    CUdevice_attribute {
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
        CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
        CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
        CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
    }
    CUstreamCaptureMode { CU_STREAM_CAPTURE_MODE_RELAXED = 2 }
    CUstreamCaptureStatus { CU_STREAM_CAPTURE_STATUS_NONE = 0 }
    CUmemPool_attribute { CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4 }
    CUstream_flags { CU_STREAM_NON_BLOCKING = 1 }
    CUevent_flags { CU_EVENT_DISABLE_TIMING = 2 }
    CUmemAllocationGranularity_flags { CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0 }
    CUmemAllocationType { CU_MEM_ALLOCATION_TYPE_PINNED = 1 }
    CUmemLocationType { CU_MEM_LOCATION_TYPE_DEVICE = 1 }
    CUmemAccess_flags { CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 }
}

/// Declares numbers that belong to no enumeration in the header.
macro_rules! numbers {
    ($($name:ident = $value:literal;)*) => {
        $(pub(crate) const $name: c_uint = $value;)*

        #[test]
        fn j1_numbers_are_those_of_cudarc() {
            $(assert_eq!($name, cudarc::driver::sys::$name, stringify!($name));)*
        }
    };
}

numbers! {
    CU_MEMHOSTALLOC_PORTABLE = 1;
    CU_MEMHOSTALLOC_DEVICEMAP = 2;
    CU_MEMHOSTALLOC_WRITECOMBINED = 4;
    CU_MEMHOSTREGISTER_PORTABLE = 1;
    CU_MEMHOSTREGISTER_DEVICEMAP = 2;
}

/// Declares the statuses that are told apart here. A status is a plain number, and may be one that has no name yet.
macro_rules! statuses {
    ($($name:ident = $value:literal;)*) => {
        $(pub(crate) const $name: c_int = $value;)*

        #[test]
        fn j1_statuses_are_those_of_cudarc() {
            $(assert_eq!($name, cudarc::driver::sys::CUresult::$name as c_int, stringify!($name));)*
        }
    };
}

statuses! {
    CUDA_ERROR_DEINITIALIZED = 4;
    CUDA_ERROR_NO_DEVICE = 100;
    CUDA_ERROR_INVALID_CONTEXT = 201;
    CUDA_ERROR_NOT_READY = 600;
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906;
}

/// Declares structures, with the name that cudarc has for each.
macro_rules! structures {
    ($($name:ident as $theirs:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)*
            }
        )*

        #[test]
        fn j1_structures_have_the_layout_of_cudarc() {
            use cudarc::driver::sys;
            use std::mem::offset_of;
            $(
                let (ours, theirs) = (size_of::<$name>(), size_of::<sys::$theirs>());
                assert_eq!(ours, theirs, "the size of {}", stringify!($name));
                let (ours, theirs) = (align_of::<$name>(), align_of::<sys::$theirs>());
                assert_eq!(ours, theirs, "the alignment of {}", stringify!($name));
                $(
                    let (ours, theirs) = (offset_of!($name, $field), offset_of!(sys::$theirs, $field));
                    assert_eq!(ours, theirs, "{}::{}", stringify!($name), stringify!($field));
                )*
            )*
        }
    };
}

structures! {
    CUuuid as CUuuid_st {
        bytes: [u8; 16],
    }
    CUmemLocation as CUmemLocation_st {
        type_: CUmemLocationType,
        id: c_int,
    }
    CUmemAllocationFlags as CUmemAllocationProp_st__bindgen_ty_1 {
        compressionType: u8,
        gpuDirectRDMACapable: u8,
        usage: u16,
        reserved: [u8; 4],
    }
    CUmemAllocationProp as CUmemAllocationProp_st {
        type_: CUmemAllocationType,
        requestedHandleTypes: c_uint,
        location: CUmemLocation,
        win32HandleMetaData: usize,
        allocFlags: CUmemAllocationFlags,
    }
    CUmemAccessDesc as CUmemAccessDesc_st {
        location: CUmemLocation,
        flags: CUmemAccess_flags,
    }
}

impl CUmemLocation {
    const fn on(device: CUdevice) -> Self {
        Self { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
    }
}

impl CUmemAllocationProp {
    /// Returns the kind of physical memory of `device`, which network cards can access, as they access plain memory, where
    /// `rdma` is true.
    pub(crate) const fn of(device: CUdevice, rdma: bool) -> Self {
        Self {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: 0,
            location: CUmemLocation::on(device),
            win32HandleMetaData: 0,
            allocFlags: CUmemAllocationFlags {
                compressionType: 0,
                gpuDirectRDMACapable: rdma as u8,
                usage: 0,
                reserved: [0; 4],
            },
        }
    }
}

impl CUmemAccessDesc {
    /// Returns the access of `device` for reading and writing.
    pub(crate) const fn of(device: CUdevice) -> Self {
        Self { location: CUmemLocation::on(device), flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE }
    }
}
