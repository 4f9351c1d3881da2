//! The driver's types and numbers, as its header declares them. Tests compare them with cudarc's.
#![allow(non_camel_case_types, non_snake_case, reason = "the names of CUDA's manual")]

use crate::arguments::{Host, HostSource};
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
    CUgraphExec = CUgraphExec_st;
    CUgraphNode = CUgraphNode_st;
}

/// A device of NVML, which only NVML looks into.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct NvmlDevice {
    _private: [u8; 0],
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
    CUdevice_attribute {
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 2,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y = 3,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z = 4,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y = 6,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z = 7,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8,
        CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY = 9,
        CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
        CU_DEVICE_ATTRIBUTE_MAX_PITCH = 11,
        CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK = 12,
        CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13,
        CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT = 14,
        CU_DEVICE_ATTRIBUTE_GPU_OVERLAP = 15,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
        CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19,
        CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS = 31,
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
        CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
        CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36,
        CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37,
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
        CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
        CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
        CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
        CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT = 51,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
        CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED = 78,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
        CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
        CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
        CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
        CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
        CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
    }
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
        CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
    }
    CUmemAllocationGranularity_flags {
        CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
    }
    CUmemAllocationType { CU_MEM_ALLOCATION_TYPE_PINNED = 1 }
    CUmemAllocationHandleType {}
    CUmem_advise {
        CU_MEM_ADVISE_SET_READ_MOSTLY = 1,
        CU_MEM_ADVISE_UNSET_ACCESSED_BY = 6,
    }
    CUmemLocationType { CU_MEM_LOCATION_TYPE_DEVICE = 1 }
    CUmemAccess_flags {
        CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
        CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    }
    CUmemPool_attribute {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
        CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8,
    }
    CUgraphMem_attribute {
        CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH = 3,
    }
    CUpointer_attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT = 1,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
        CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
        CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
        CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
        CU_POINTER_ATTRIBUTE_MAPPED = 13,
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
        CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
    }
    CUmemorytype {
        CU_MEMORYTYPE_HOST = 1,
        CU_MEMORYTYPE_DEVICE = 2,
        CU_MEMORYTYPE_ARRAY = 3,
        CU_MEMORYTYPE_UNIFIED = 4,
    }
    CUarray_format {
        CU_AD_FORMAT_UNSIGNED_INT8 = 1,
        CU_AD_FORMAT_UNSIGNED_INT16 = 2,
        CU_AD_FORMAT_UNSIGNED_INT32 = 3,
        CU_AD_FORMAT_SIGNED_INT8 = 8,
        CU_AD_FORMAT_SIGNED_INT16 = 9,
        CU_AD_FORMAT_SIGNED_INT32 = 10,
        CU_AD_FORMAT_HALF = 16,
        CU_AD_FORMAT_FLOAT = 32,
    }
    CUdriverProcAddressQueryResult {
        CU_GET_PROC_ADDRESS_SUCCESS = 0,
        CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
        CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
    }
}

impl CUmemAllocationHandleType {
    pub(crate) const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: Self = Self(1);
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
    CUipcMemHandle as CUipcMemHandle_st {
        reserved: [u8; 64],
    }
    CUmemPoolProps as CUmemPoolProps_st {
        allocType: CUmemAllocationType,
        handleTypes: c_uint,
        location: CUmemLocation,
        win32SecurityAttributes: *mut c_void,
        maxSize: usize,
        reserved: [u8; 56],
    }
    CUDA_ARRAY_DESCRIPTOR as CUDA_ARRAY_DESCRIPTOR_st {
        Width: usize,
        Height: usize,
        Format: CUarray_format,
        NumChannels: c_uint,
    }
    CUDA_ARRAY3D_DESCRIPTOR as CUDA_ARRAY3D_DESCRIPTOR_st {
        Width: usize,
        Height: usize,
        Depth: usize,
        Format: CUarray_format,
        NumChannels: c_uint,
        Flags: c_uint,
    }
    CUDA_MEMCPY2D as CUDA_MEMCPY2D_st {
        srcXInBytes: usize,
        srcY: usize,
        srcMemoryType: CUmemorytype,
        srcHost: HostSource,
        srcDevice: CUdeviceptr,
        srcArray: CUarray,
        srcPitch: usize,
        dstXInBytes: usize,
        dstY: usize,
        dstMemoryType: CUmemorytype,
        dstHost: Host,
        dstDevice: CUdeviceptr,
        dstArray: CUarray,
        dstPitch: usize,
        WidthInBytes: usize,
        Height: usize,
    }
    CUDA_MEMCPY3D as CUDA_MEMCPY3D_st {
        srcXInBytes: usize,
        srcY: usize,
        srcZ: usize,
        srcLOD: usize,
        srcMemoryType: CUmemorytype,
        srcHost: HostSource,
        srcDevice: CUdeviceptr,
        srcArray: CUarray,
        reserved0: *mut c_void,
        srcPitch: usize,
        srcHeight: usize,
        dstXInBytes: usize,
        dstY: usize,
        dstZ: usize,
        dstLOD: usize,
        dstMemoryType: CUmemorytype,
        dstHost: Host,
        dstDevice: CUdeviceptr,
        dstArray: CUarray,
        reserved1: *mut c_void,
        dstPitch: usize,
        dstHeight: usize,
        WidthInBytes: usize,
        Height: usize,
        Depth: usize,
    }
}

/// The flags of `cuStreamCreate`.
pub(crate) const CU_STREAM_NON_BLOCKING: c_uint = 1;
/// The flags of `cuEventCreate`.
pub(crate) const CU_EVENT_DISABLE_TIMING: c_uint = 2;
