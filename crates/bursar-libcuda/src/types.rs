//! The driver's types and numbers, as its header declares them. Tests compare them with cudarc's.
#![allow(non_camel_case_types, non_snake_case, reason = "the names of CUDA's manual")]

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

pub(crate) type CUdevice = c_int;
pub(crate) type CUdeviceptr = c_ulonglong;
pub(crate) type CUmemGenericAllocationHandle = c_ulonglong;

/// Declares handles: pointers to types that only the driver looks into. They are numbers here and point at nothing.
macro_rules! handles {
    ($($handle:ident = $name:ident;)*) => { $(
        #[repr(C)]
        #[derive(Debug)]
        pub(crate) struct $name {
            _private: [u8; 0],
        }

        pub(crate) type $handle = *mut $name;
    )* };
}

handles! {
    CUcontext = CUctx_st;
    CUstream = CUstream_st;
    CUevent = CUevent_st;
    CUmemoryPool = CUmemPoolHandle_st;
    CUarray = CUarray_st;
    CUmipmappedArray = CUmipmappedArray_st;
    CUgraph = CUgraph_st;
    CUmodule = CUmod_st;
    CUfunction = CUfunc_st;
    CUlibrary = CUlib_st;
    CUkernel = CUkern_st;
}

/// Declares enumerations as numbers: a program may pass any value.
macro_rules! enumerations {
    ($($name:ident { $($constant:ident = $value:literal),* $(,)? })*) => {
        $(
            #[repr(transparent)]
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(crate) struct $name(pub(crate) c_uint);

            #[allow(dead_code, reason = "some values are there for tests and for reading")]
            impl $name {
                $(pub(crate) const $constant: Self = Self($value);)*
            }
        )*

        #[test]
        fn k1_enumerations_have_the_values_of_cudarc() {
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
    CUdevice_attribute {}
    CUlimit {
        CU_LIMIT_STACK_SIZE = 0,
        CU_LIMIT_PRINTF_FIFO_SIZE = 1,
        CU_LIMIT_MALLOC_HEAP_SIZE = 2,
        CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH = 3,
        CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4,
        CU_LIMIT_MAX_L2_FETCH_GRANULARITY = 5,
        CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6,
    }
    CUstreamCaptureMode {
        CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
        CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    }
    CUstreamCaptureStatus {
        CU_STREAM_CAPTURE_STATUS_NONE = 0,
        CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
    }
    CUmemAllocationGranularity_flags {
        CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
    }
    CUmemAllocationType { CU_MEM_ALLOCATION_TYPE_PINNED = 1 }
    CUmemLocationType { CU_MEM_LOCATION_TYPE_DEVICE = 1 }
    CUmemAccess_flags {
        CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
        CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    }
    CUdriverProcAddressQueryResult {
        CU_GET_PROC_ADDRESS_SUCCESS = 0,
        CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
        CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
    }
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
        fn k1_structures_have_the_layout_of_cudarc() {
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
        win32HandleMetaData: *mut c_void,
        allocFlags: CUmemAllocationFlags,
    }
    CUmemAccessDesc as CUmemAccessDesc_st {
        location: CUmemLocation,
        flags: CUmemAccess_flags,
    }
}

/// The flags of `cuStreamCreate`.
pub(crate) const CU_STREAM_NON_BLOCKING: c_uint = 1;
/// The flags of `cuEventCreate`.
pub(crate) const CU_EVENT_DISABLE_TIMING: c_uint = 2;
