//! The table of driver functions: each is looked up once, under its ABI name, before any of them is called.
//!
//! A missing symbol is an error of loading. A result is a number, so that the code of a driver newer than this table is a
//! code without a name here, and nothing worse. A test compares every signature with cudarc's.
#![allow(unsafe_code)]

use super::enforced;
use super::sys::{
    CUDA_ERROR_DEINITIALIZED, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUgraph, CUgraphExec,
    CUhostFn, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemPool_attribute, CUmemoryPool, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus, CUuuid,
};
use libloading::Library;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::mem::transmute;
use std::sync::atomic::AtomicBool;

/// A call that failed: its name in the manual, and the code it returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    pub(crate) code: c_int,
}

/// The type of `cuGetErrorName`, which is no call that can fail.
type ErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

#[cfg(test)]
macro_rules! any {
    ($name:ident) => {
        _
    };
}

macro_rules! table {
    ($($name:ident = $symbol:ident($($arg:ident: $type:ty),*);)*) => {
        /// The driver's functions.
        #[derive(Clone, Copy)]
        #[allow(non_snake_case)]
        pub(crate) struct Api {
            pub(super) exiting: &'static AtomicBool,
            pub(super) error_name: ErrorName,
            $(pub(super) $name: unsafe extern "C" fn($($type),*) -> c_int,)*
        }

        impl Api {
            /// Finds every function in `library`; the error is the first that is missing. No call is made once `exiting` is
            /// set.
            pub(crate) fn find(library: &Library, exiting: &'static AtomicBool) -> Result<Self, &'static str> {
                Ok(Self {
                    exiting,
                    error_name: {
                        // SAFETY: the type is the driver's own.
                        let found = unsafe { library.get::<ErrorName>(c"cuGetErrorName") };
                        *found.map_err(|_| "cuGetErrorName")?
                    },
                    $($name: {
                        // SAFETY: the type is the driver's own.
                        let found = unsafe { library.get(concat!(stringify!($symbol), "\0").as_bytes()) };
                        let found = *found.map_err(|_| stringify!($symbol))?;
                        let found = enforced::own_function(found, concat!(stringify!($symbol), "\0").as_bytes());
                        // SAFETY: what stands for a function of the driver has its type.
                        unsafe { transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(found) }
                    },)*
                })
            }

            /// Returns a table in which every function returns `CUDA_ERROR_NOT_SUPPORTED`.
            #[cfg(test)]
            pub(super) fn unsupported(exiting: &'static AtomicBool, error_name: ErrorName) -> Self {
                $(#[allow(non_snake_case)]
                extern "C" fn $name($(_: $type),*) -> c_int {
                    801
                })*
                Self { exiting, error_name, $($name,)* }
            }

            $(
                /// # Safety
                /// As the driver's manual says.
                #[allow(non_snake_case)]
                #[inline]
                pub(super) unsafe fn $name(&self, $($arg: $type),*) -> Result<(), Failure> {
                    let call = stringify!($name);
                    if self.is_exiting() {
                        return Err(Failure { call, code: CUDA_ERROR_DEINITIALIZED });
                    }
                    // SAFETY: the caller's own promise.
                    match unsafe { (self.$name)($($arg),*) } {
                        0 => Ok(()),
                        code => Err(Failure { call, code }),
                    }
                }
            )*
        }

        /// Returns every symbol with its parameters, as declared here and as cudarc declares them.
        #[cfg(test)]
        fn parameters() -> Vec<(&'static str, String, String)> {
            use std::any::{type_name, type_name_of_val};
            vec![$((
                stringify!($symbol),
                tests::parameters_in(type_name::<unsafe fn($($type),*)>()),
                tests::parameters_in(type_name_of_val(&(cudarc::driver::sys::$symbol as unsafe fn($(any!($arg)),*) -> _))),
            ),)*]
        }
    };
}

table! {
    cuInit = cuInit(flags: c_uint);
    cuDeviceGetCount = cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet = cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetName = cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    cuDeviceGetUuid = cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
    cuDeviceTotalMem = cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    cuDeviceGetAttribute =
        cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);

    cuDevicePrimaryCtxRetain = cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuCtxGetCurrent = cuCtxGetCurrent(context: *mut CUcontext);
    cuCtxSetCurrent = cuCtxSetCurrent(context: CUcontext);
    cuCtxGetStreamPriorityRange = cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    cuThreadExchangeStreamCaptureMode = cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);

    cuMemGetInfo = cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc = cuMemAlloc_v2(ptr: *mut CUdeviceptr, bytes: usize);
    cuMemFree = cuMemFree_v2(ptr: CUdeviceptr);
    cuMemAllocAsync = cuMemAllocAsync(ptr: *mut CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemFreeAsync = cuMemFreeAsync(ptr: CUdeviceptr, stream: CUstream);
    cuDeviceGetMemPool = cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    cuMemPoolGetAttribute =
        cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
    cuMemPoolTrimTo = cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);

    cuStreamCreateWithPriority =
        cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    cuStreamDestroy = cuStreamDestroy_v2(stream: CUstream);
    cuStreamQuery = cuStreamQuery(stream: CUstream);
    cuStreamSynchronize = cuStreamSynchronize(stream: CUstream);
    cuStreamWaitEvent = cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    cuStreamIsCapturing = cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);

    cuStreamBeginCapture = cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    cuStreamEndCapture = cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    cuGraphInstantiateWithFlags =
        cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    cuGraphDestroy = cuGraphDestroy(graph: CUgraph);
    cuGraphLaunch = cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    cuGraphExecDestroy = cuGraphExecDestroy(exec: CUgraphExec);

    cuEventCreate = cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy = cuEventDestroy_v2(event: CUevent);
    cuEventRecord = cuEventRecord(event: CUevent, stream: CUstream);
    cuEventQuery = cuEventQuery(event: CUevent);
    cuEventSynchronize = cuEventSynchronize(event: CUevent);

    cuMemGetAllocationGranularity = cuMemGetAllocationGranularity(
        bytes: *mut usize, kind: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags
    );
    cuMemAddressReserve = cuMemAddressReserve(
        ptr: *mut CUdeviceptr, bytes: usize, align: usize, wish: CUdeviceptr, flags: c_ulonglong
    );
    cuMemAddressFree = cuMemAddressFree(ptr: CUdeviceptr, bytes: usize);
    cuMemCreate = cuMemCreate(
        pages: *mut CUmemGenericAllocationHandle, bytes: usize, kind: *const CUmemAllocationProp, flags: c_ulonglong
    );
    cuMemRelease = cuMemRelease(pages: CUmemGenericAllocationHandle);
    cuMemMap = cuMemMap(
        ptr: CUdeviceptr, bytes: usize, offset: usize, pages: CUmemGenericAllocationHandle, flags: c_ulonglong
    );
    cuMemSetAccess = cuMemSetAccess(ptr: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);
    cuMemUnmap = cuMemUnmap(ptr: CUdeviceptr, bytes: usize);

    cuMemHostAlloc = cuMemHostAlloc(ptr: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemFreeHost = cuMemFreeHost(ptr: *mut c_void);
    cuMemHostRegister = cuMemHostRegister_v2(ptr: *mut c_void, bytes: usize, flags: c_uint);
    cuMemHostUnregister = cuMemHostUnregister(ptr: *mut c_void);
    cuMemHostGetDevicePointer = cuMemHostGetDevicePointer_v2(ptr: *mut CUdeviceptr, host: *mut c_void, flags: c_uint);

    cuMemcpyHtoDAsync =
        cuMemcpyHtoDAsync_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize, stream: CUstream);
    cuMemcpyDtoHAsync = cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyPeerAsync = cuMemcpyPeerAsync(
        dst: CUdeviceptr, to: CUcontext, src: CUdeviceptr, from: CUcontext, bytes: usize, stream: CUstream
    );
    cuMemcpyAsync = cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemsetD8Async = cuMemsetD8Async(dst: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
    cuMemsetD16Async = cuMemsetD16Async(dst: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream);
    cuMemsetD32Async = cuMemsetD32Async(dst: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
    cuLaunchHostFunc = cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the parameters of a function type, each without the modules it is declared in and without the suffix that
    /// the header has for structures and enumerations.
    pub(super) fn parameters_in(function: &str) -> String {
        let (list, _) = function.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')).expect("a function type");
        let names = list.split_inclusive([' ', ',', '(', ')', '<', '>']).map(|word| {
            let name = word.rsplit("::").next().unwrap_or(word);
            let (name, separator) = name.split_at(name.trim_end_matches([' ', ',', '(', ')', '<', '>']).len());
            let name = ["_st", "_enum"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
            format!("{name}{separator}")
        });
        names.collect()
    }

    #[test]
    fn parameters_are_compared_without_their_modules() {
        let written = "unsafe fn(*mut a::b::CUuuid_st, a::CUdevice_attribute_enum, i32) -> a::cudaError_enum";
        assert_eq!(parameters_in(written), "*mut CUuuid, CUdevice_attribute, i32");
    }

    #[test]
    fn j1_every_function_has_the_parameters_that_cudarc_declares() {
        for (symbol, ours, theirs) in parameters() {
            assert_eq!(ours, theirs, "{symbol}");
        }
    }
}
