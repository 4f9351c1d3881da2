//! The entry points: every name, version and signature, written once.
//!
//! A line is the need of a call, its name in the manual, the symbol or the two forms of it, the version of CUDA that
//! introduced it, its parameters, and the function that makes the call. From it come the symbol of the shared object, the
//! line that `cuGetProcAddress` finds, and the comparison of its parameters with cudarc's; `beyond` marks those that are not
//! in the header cudarc is compiled with.
//!
//! - `always`: a call that works before `cuInit`.
//! - `ready`: a call that needs `cuInit`.
//! - `stream`: such a call with two forms, which differ in the default stream they mean.
#![allow(unsafe_code)]
#![allow(non_snake_case, reason = "the names of CUDA's manual")]

use crate::arguments::{Host, HostSource, In, Out};
use crate::calls::{
    array, capture, context, copy, device, event, fill, host, memory, module, ordered, physical, pointer, pool, rows,
    share, stream, version,
};
use crate::define::entry_points;
use crate::host_functions::{Callback, Function};
use crate::lookup;
use crate::status::{CUresult, CallResult};
use crate::types::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUcontext, CUdevice,
    CUdevice_attribute, CUdeviceptr, CUdriverProcAddressQueryResult, CUevent, CUgraph, CUgraphExec,
    CUgraphMem_attribute, CUgraphNode, CUipcMemHandle, CUlimit, CUmem_advise, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUmipmappedArray, CUpointer_attribute, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus, CUuuid,
};
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

entry_points! {
    always cuInit = cuInit, since 2000 (flags: c_uint) = version::init;
    always cuDriverGetVersion = cuDriverGetVersion, since 2020 (version: Out<c_int>) = version::driver_version;
    always cuGetErrorName = cuGetErrorName, beyond 6000 (error: CUresult, name: Out<*const c_char>) =
        version::error_name;
    always cuGetErrorString = cuGetErrorString, beyond 6000 (error: CUresult, text: Out<*const c_char>) =
        version::error_string;
    always cuGetProcAddress = cuGetProcAddress, beyond 11030
        (symbol: In<c_char>, function: Out<*mut c_void>, version: c_int, flags: c_ulonglong) = get_proc_address;
    always cuGetProcAddress = cuGetProcAddress_v2, since 12000
        (symbol: In<c_char>, function: Out<*mut c_void>, version: c_int, flags: c_ulonglong,
            status: Out<CUdriverProcAddressQueryResult>) = get_proc_address_v2;

    ready cuDeviceGetCount = cuDeviceGetCount, since 2000 (count: Out<c_int>) = device::count;
    ready cuDeviceGet = cuDeviceGet, since 2000 (device: Out<CUdevice>, ordinal: c_int) = device::get;
    ready cuDeviceGetName = cuDeviceGetName, since 2000 (name: Out<c_char>, length: c_int, device: CUdevice) =
        device::name;
    ready cuDeviceGetUuid = cuDeviceGetUuid, since 9020 (uuid: Out<CUuuid>, device: CUdevice) = device::uuid;
    ready cuDeviceGetUuid = cuDeviceGetUuid_v2, since 11040 (uuid: Out<CUuuid>, device: CUdevice) = device::uuid;
    ready cuDeviceTotalMem = cuDeviceTotalMem_v2, since 3020 (bytes: Out<usize>, device: CUdevice) =
        device::total_memory;
    ready cuDeviceGetAttribute = cuDeviceGetAttribute, since 2000
        (value: Out<c_int>, attribute: CUdevice_attribute, device: CUdevice) = device::attribute;
    ready cuDeviceComputeCapability = cuDeviceComputeCapability, since 2000
        (major: Out<c_int>, minor: Out<c_int>, device: CUdevice) = device::compute_capability;
    ready cuDeviceGetPCIBusId = cuDeviceGetPCIBusId, since 4010
        (id: Out<c_char>, length: c_int, device: CUdevice) = device::pci_bus_id;
    ready cuDeviceGetByPCIBusId = cuDeviceGetByPCIBusId, since 4010 (device: Out<CUdevice>, id: In<c_char>) =
        device::by_pci_bus_id;
    ready cuDeviceCanAccessPeer = cuDeviceCanAccessPeer, since 4000
        (can: Out<c_int>, device: CUdevice, peer: CUdevice) = device::can_access_peer;

    ready cuDevicePrimaryCtxRetain = cuDevicePrimaryCtxRetain, since 7000
        (context: Out<CUcontext>, device: CUdevice) = context::primary_retain;
    ready cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxRelease_v2, since 11000 (device: CUdevice) =
        context::primary_release;
    ready cuDevicePrimaryCtxReset = cuDevicePrimaryCtxReset_v2, since 11000 (device: CUdevice) =
        context::primary_reset;
    ready cuDevicePrimaryCtxSetFlags = cuDevicePrimaryCtxSetFlags_v2, since 11000 (device: CUdevice, flags: c_uint) =
        context::primary_set_flags;
    ready cuDevicePrimaryCtxGetState = cuDevicePrimaryCtxGetState, since 7000
        (device: CUdevice, flags: Out<c_uint>, is_active: Out<c_int>) = context::primary_state;
    ready cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxRelease, beyond 7000 (device: CUdevice) =
        context::primary_release;
    ready cuDevicePrimaryCtxReset = cuDevicePrimaryCtxReset, beyond 7000 (device: CUdevice) = context::primary_reset;
    ready cuDevicePrimaryCtxSetFlags = cuDevicePrimaryCtxSetFlags, beyond 7000 (device: CUdevice, flags: c_uint) =
        context::primary_set_flags;
    ready cuCtxCreate = cuCtxCreate_v2, since 3020 (context: Out<CUcontext>, flags: c_uint, device: CUdevice) =
        context::create_v2;
    ready cuCtxCreate = cuCtxCreate_v3, beyond 11040
        (context: Out<CUcontext>, parameters: *mut c_void, count: c_int, flags: c_uint, device: CUdevice) =
        context::create_v3;
    ready cuCtxCreate = cuCtxCreate_v4, beyond 12050
        (context: Out<CUcontext>, parameters: In<c_void>, flags: c_uint, device: CUdevice) = context::create_v4;
    ready cuCtxDestroy = cuCtxDestroy_v2, since 4000 (context: CUcontext) = context::destroy;
    ready cuCtxPushCurrent = cuCtxPushCurrent_v2, since 4000 (context: CUcontext) = context::push_current;
    ready cuCtxPopCurrent = cuCtxPopCurrent_v2, since 4000 (context: Out<CUcontext>) = context::pop_current;
    ready cuCtxDestroy = cuCtxDestroy, beyond 2000 (context: CUcontext) = context::destroy;
    ready cuCtxPushCurrent = cuCtxPushCurrent, beyond 2000 (context: CUcontext) = context::push_current;
    ready cuCtxPopCurrent = cuCtxPopCurrent, beyond 2000 (context: Out<CUcontext>) = context::pop_current;
    ready cuCtxEnablePeerAccess = cuCtxEnablePeerAccess, since 4000 (peer: CUcontext, flags: c_uint) =
        context::enable_peer_access;
    ready cuCtxDisablePeerAccess = cuCtxDisablePeerAccess, since 4000 (peer: CUcontext) =
        context::disable_peer_access;
    ready cuCtxGetCurrent = cuCtxGetCurrent, since 4000 (context: Out<CUcontext>) = context::get_current;
    ready cuCtxSetCurrent = cuCtxSetCurrent, since 4000 (context: CUcontext) = context::set_current;
    ready cuCtxGetDevice = cuCtxGetDevice, since 2000 (device: Out<CUdevice>) = context::get_device;
    ready cuCtxGetFlags = cuCtxGetFlags, since 7000 (flags: Out<c_uint>) = context::get_flags;
    ready cuCtxGetId = cuCtxGetId, since 12000 (context: CUcontext, id: Out<c_ulonglong>) = context::get_id;
    ready cuCtxSynchronize = cuCtxSynchronize, since 2000 () = context::synchronize;
    ready cuCtxGetStreamPriorityRange = cuCtxGetStreamPriorityRange, since 5050
        (least: Out<c_int>, greatest: Out<c_int>) = context::priority_range;
    ready cuCtxGetApiVersion = cuCtxGetApiVersion, since 3020 (context: CUcontext, version: Out<c_uint>) =
        context::api_version;
    ready cuCtxGetLimit = cuCtxGetLimit, since 3010 (value: Out<usize>, limit: CUlimit) = context::get_limit;
    ready cuCtxSetLimit = cuCtxSetLimit, since 3010 (limit: CUlimit, value: usize) = context::set_limit;

    ready cuMemGetInfo = cuMemGetInfo_v2, since 3020 (free: Out<usize>, total: Out<usize>) = memory::info;
    ready cuMemAlloc = cuMemAlloc_v2, since 3020 (pointer: Out<CUdeviceptr>, bytes: usize) = memory::allocate;
    ready cuMemFree = cuMemFree_v2, since 3020 (pointer: CUdeviceptr) = memory::free;
    stream cuMemAllocAsync = cuMemAllocAsync | cuMemAllocAsync_ptsz, since 11020
        (pointer: Out<CUdeviceptr>, bytes: usize, stream: CUstream) = ordered::allocate;
    stream cuMemFreeAsync = cuMemFreeAsync | cuMemFreeAsync_ptsz, since 11020
        (pointer: CUdeviceptr, stream: CUstream) = ordered::free;
    stream cuMemAllocFromPoolAsync = cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz, since 11020
        (pointer: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream) = ordered::allocate_from_pool;
    ready cuMemAllocPitch = cuMemAllocPitch_v2, since 3020
        (pointer: Out<CUdeviceptr>, pitch: Out<usize>, width: usize, height: usize, element: c_uint) =
        memory::allocate_pitch;
    ready cuMemAllocManaged = cuMemAllocManaged, since 6000
        (pointer: Out<CUdeviceptr>, bytes: usize, flags: c_uint) = memory::allocate_managed;
    ready cuMemAdvise = cuMemAdvise, since 8000
        (pointer: CUdeviceptr, bytes: usize, advice: CUmem_advise, device: CUdevice) = memory::advise;
    stream cuMemPrefetchAsync = cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz, since 8000
        (pointer: CUdeviceptr, bytes: usize, device: CUdevice, stream: CUstream) = memory::prefetch;
    ready cuMemPoolCreate = cuMemPoolCreate, since 11020 (pool: Out<CUmemoryPool>, properties: In<CUmemPoolProps>) =
        pool::create;
    ready cuMemPoolDestroy = cuMemPoolDestroy, since 11020 (pool: CUmemoryPool) = pool::destroy;
    ready cuMemPoolTrimTo = cuMemPoolTrimTo, since 11020 (pool: CUmemoryPool, keep: usize) = pool::trim;
    ready cuMemPoolSetAttribute = cuMemPoolSetAttribute, since 11020
        (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>) = pool::set_attribute;
    ready cuMemPoolGetAttribute = cuMemPoolGetAttribute, since 11020
        (pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>) = pool::get_attribute;
    ready cuMemPoolSetAccess = cuMemPoolSetAccess, since 11020
        (pool: CUmemoryPool, access: In<CUmemAccessDesc>, count: usize) = pool::set_access;
    ready cuMemPoolGetAccess = cuMemPoolGetAccess, since 11020
        (flags: Out<CUmemAccess_flags>, pool: CUmemoryPool, location: Out<CUmemLocation>) = pool::get_access;
    ready cuDeviceGetDefaultMemPool = cuDeviceGetDefaultMemPool, since 11020
        (pool: Out<CUmemoryPool>, device: CUdevice) = pool::get_default;
    ready cuDeviceGetMemPool = cuDeviceGetMemPool, since 11020 (pool: Out<CUmemoryPool>, device: CUdevice) =
        pool::get_current;
    ready cuDeviceSetMemPool = cuDeviceSetMemPool, since 11020 (device: CUdevice, pool: CUmemoryPool) =
        pool::set_current;
    ready cuDeviceGetGraphMemAttribute = cuDeviceGetGraphMemAttribute, since 11040
        (device: CUdevice, attribute: CUgraphMem_attribute, value: Out<c_void>) = capture::get_memory_attribute;
    ready cuDeviceSetGraphMemAttribute = cuDeviceSetGraphMemAttribute, since 11040
        (device: CUdevice, attribute: CUgraphMem_attribute, value: Out<c_void>) = capture::set_memory_attribute;
    ready cuDeviceGraphMemTrim = cuDeviceGraphMemTrim, since 11040 (device: CUdevice) = capture::trim_memory;
    ready cuPointerGetAttribute = cuPointerGetAttribute, since 4000
        (data: Out<c_void>, attribute: CUpointer_attribute, pointer: CUdeviceptr) = pointer::attribute;
    ready cuPointerGetAttributes = cuPointerGetAttributes, since 7000
        (count: c_uint, attributes: Out<CUpointer_attribute>, data: Out<Out<c_void>>, pointer: CUdeviceptr) =
        pointer::attributes;
    ready cuPointerSetAttribute = cuPointerSetAttribute, since 6000
        (value: In<c_void>, attribute: CUpointer_attribute, pointer: CUdeviceptr) = pointer::set_attribute;

    ready cuArrayCreate = cuArrayCreate_v2, since 3020
        (array: Out<CUarray>, descriptor: In<CUDA_ARRAY_DESCRIPTOR>) = array::create;
    ready cuArray3DCreate = cuArray3DCreate_v2, since 3020
        (array: Out<CUarray>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>) = array::create_3d;
    ready cuArrayGetDescriptor = cuArrayGetDescriptor_v2, since 3020
        (descriptor: Out<CUDA_ARRAY_DESCRIPTOR>, array: CUarray) = array::get_descriptor;
    ready cuArray3DGetDescriptor = cuArray3DGetDescriptor_v2, since 3020
        (descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR>, array: CUarray) = array::get_descriptor_3d;
    ready cuArrayDestroy = cuArrayDestroy, since 2000 (array: CUarray) = array::destroy;
    ready cuMipmappedArrayCreate = cuMipmappedArrayCreate, since 5000
        (array: Out<CUmipmappedArray>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>, levels: c_uint) =
        array::create_mipmapped;
    ready cuMipmappedArrayGetLevel = cuMipmappedArrayGetLevel, since 5000
        (array: Out<CUarray>, mipmapped: CUmipmappedArray, level: c_uint) = array::get_level;
    ready cuMipmappedArrayDestroy = cuMipmappedArrayDestroy, since 5000 (mipmapped: CUmipmappedArray) =
        array::destroy_mipmapped;

    ready cuMemGetAddressRange = cuMemGetAddressRange_v2, since 3020
        (base: Out<CUdeviceptr>, bytes: Out<usize>, pointer: CUdeviceptr) = pointer::address_range;

    ready cuMemGetAllocationGranularity = cuMemGetAllocationGranularity, since 10020
        (bytes: Out<usize>, properties: In<CUmemAllocationProp>, option: CUmemAllocationGranularity_flags) =
        physical::granularity;
    ready cuMemAddressReserve = cuMemAddressReserve, since 10020
        (pointer: Out<CUdeviceptr>, bytes: usize, align: usize, wish: CUdeviceptr, flags: c_ulonglong) =
        physical::reserve;
    ready cuMemAddressFree = cuMemAddressFree, since 10020 (pointer: CUdeviceptr, bytes: usize) =
        physical::address_free;
    ready cuMemCreate = cuMemCreate, since 10020
        (pages: Out<CUmemGenericAllocationHandle>, bytes: usize, properties: In<CUmemAllocationProp>,
            flags: c_ulonglong) = physical::create;
    ready cuMemRelease = cuMemRelease, since 10020 (pages: CUmemGenericAllocationHandle) = physical::release;
    ready cuMemMap = cuMemMap, since 10020
        (pointer: CUdeviceptr, bytes: usize, offset: usize, pages: CUmemGenericAllocationHandle, flags: c_ulonglong) =
        physical::map;
    ready cuMemUnmap = cuMemUnmap, since 10020 (pointer: CUdeviceptr, bytes: usize) = physical::unmap;
    ready cuMemSetAccess = cuMemSetAccess, since 10020
        (pointer: CUdeviceptr, bytes: usize, access: In<CUmemAccessDesc>, count: usize) = physical::set_access;
    ready cuMemGetAccess = cuMemGetAccess, since 10020
        (flags: Out<c_ulonglong>, location: In<CUmemLocation>, pointer: CUdeviceptr) = physical::get_access;
    ready cuMemRetainAllocationHandle = cuMemRetainAllocationHandle, since 11000
        (pages: Out<CUmemGenericAllocationHandle>, address: Host) = physical::retain;
    ready cuMemGetAllocationPropertiesFromHandle = cuMemGetAllocationPropertiesFromHandle, since 10020
        (properties: Out<CUmemAllocationProp>, pages: CUmemGenericAllocationHandle) = physical::properties;

    ready cuMemExportToShareableHandle = cuMemExportToShareableHandle, since 10020
        (shareable: Out<c_void>, pages: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType,
            flags: c_ulonglong) = share::export;
    ready cuMemImportFromShareableHandle = cuMemImportFromShareableHandle, since 10020
        (pages: Out<CUmemGenericAllocationHandle>, shareable: Host, kind: CUmemAllocationHandleType) = share::import;
    ready cuIpcGetMemHandle = cuIpcGetMemHandle, since 4010 (handle: Out<CUipcMemHandle>, pointer: CUdeviceptr) =
        share::ipc_get;
    ready cuIpcOpenMemHandle = cuIpcOpenMemHandle_v2, since 11000
        (pointer: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: c_uint) = share::ipc_open;
    ready cuIpcOpenMemHandle = cuIpcOpenMemHandle, beyond 4010
        (pointer: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: c_uint) = share::ipc_open;
    ready cuIpcCloseMemHandle = cuIpcCloseMemHandle, since 4010 (pointer: CUdeviceptr) = share::ipc_close;

    ready cuMemAllocHost = cuMemAllocHost_v2, since 3020 (pointer: Out<*mut c_void>, bytes: usize) = host::allocate;
    ready cuMemHostAlloc = cuMemHostAlloc, since 2020 (pointer: Out<*mut c_void>, bytes: usize, flags: c_uint) =
        host::allocate_with_flags;
    ready cuMemFreeHost = cuMemFreeHost, since 2000 (host: Host) = host::free;
    ready cuMemHostRegister = cuMemHostRegister_v2, since 6050 (host: Host, bytes: usize, flags: c_uint) =
        host::register;
    ready cuMemHostRegister = cuMemHostRegister, beyond 4000 (host: Host, bytes: usize, flags: c_uint) =
        host::register;
    ready cuMemHostUnregister = cuMemHostUnregister, since 4000 (host: Host) = host::unregister;
    ready cuMemHostGetDevicePointer = cuMemHostGetDevicePointer_v2, since 3020
        (pointer: Out<CUdeviceptr>, host: Host, flags: c_uint) = host::device_pointer;
    ready cuMemHostGetFlags = cuMemHostGetFlags, since 2030 (flags: Out<c_uint>, host: Host) = host::flags;

    ready cuStreamCreate = cuStreamCreate, since 2000 (stream: Out<CUstream>, flags: c_uint) = stream::create;
    ready cuStreamCreateWithPriority = cuStreamCreateWithPriority, since 5050
        (stream: Out<CUstream>, flags: c_uint, priority: c_int) = stream::create_with_priority;
    ready cuStreamDestroy = cuStreamDestroy_v2, since 4000 (stream: CUstream) = stream::destroy;
    ready cuStreamDestroy = cuStreamDestroy, beyond 2000 (stream: CUstream) = stream::destroy;
    stream cuStreamQuery = cuStreamQuery | cuStreamQuery_ptsz, since 2000 (stream: CUstream) = stream::query;
    stream cuStreamSynchronize = cuStreamSynchronize | cuStreamSynchronize_ptsz, since 2000 (stream: CUstream) =
        stream::synchronize;
    stream cuStreamWaitEvent = cuStreamWaitEvent | cuStreamWaitEvent_ptsz, since 3020
        (stream: CUstream, event: CUevent, flags: c_uint) = stream::wait_event;
    stream cuStreamIsCapturing = cuStreamIsCapturing | cuStreamIsCapturing_ptsz, since 10000
        (stream: CUstream, status: Out<CUstreamCaptureStatus>) = capture::status;
    stream cuStreamGetCtx = cuStreamGetCtx | cuStreamGetCtx_ptsz, since 9020
        (stream: CUstream, context: Out<CUcontext>) = stream::context;
    stream cuStreamGetFlags = cuStreamGetFlags | cuStreamGetFlags_ptsz, since 5050
        (stream: CUstream, flags: Out<c_uint>) = stream::flags;
    stream cuStreamGetPriority = cuStreamGetPriority | cuStreamGetPriority_ptsz, since 5050
        (stream: CUstream, priority: Out<c_int>) = stream::priority;
    stream cuStreamGetId = cuStreamGetId | cuStreamGetId_ptsz, since 12000
        (stream: CUstream, id: Out<c_ulonglong>) = stream::id;
    stream cuLaunchHostFunc = cuLaunchHostFunc | cuLaunchHostFunc_ptsz, since 10000
        (stream: CUstream, function: Function, data: *mut c_void) = stream::launch_host_function;
    stream cuStreamAddCallback = cuStreamAddCallback | cuStreamAddCallback_ptsz, beyond 5000
        (stream: CUstream, callback: Callback, data: *mut c_void, flags: c_uint) = stream::add_callback;
    stream cuStreamBeginCapture = cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz, since 10010
        (stream: CUstream, mode: CUstreamCaptureMode) = capture::begin;
    stream cuStreamEndCapture = cuStreamEndCapture | cuStreamEndCapture_ptsz, since 10000
        (stream: CUstream, graph: Out<CUgraph>) = capture::end;
    stream cuStreamGetCaptureInfo = cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz, since 11030
        (stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<c_ulonglong>, graph: Out<CUgraph>,
            dependencies: Out<*const CUgraphNode>, count: Out<usize>) = capture::info;
    ready cuGraphDestroy = cuGraphDestroy, since 10000 (graph: CUgraph) = capture::destroy_graph;
    ready cuGraphInstantiateWithFlags = cuGraphInstantiateWithFlags, since 11040
        (exec: Out<CUgraphExec>, graph: CUgraph, flags: c_ulonglong) = capture::instantiate;
    stream cuGraphLaunch = cuGraphLaunch | cuGraphLaunch_ptsz, since 10000
        (exec: CUgraphExec, stream: CUstream) = capture::launch;
    ready cuGraphExecDestroy = cuGraphExecDestroy, since 10000 (exec: CUgraphExec) = capture::destroy_exec;
    ready cuThreadExchangeStreamCaptureMode = cuThreadExchangeStreamCaptureMode, since 10010
        (mode: Out<CUstreamCaptureMode>) = capture::exchange_mode;

    ready cuEventCreate = cuEventCreate, since 2000 (event: Out<CUevent>, flags: c_uint) = event::create;
    ready cuEventDestroy = cuEventDestroy_v2, since 4000 (event: CUevent) = event::destroy;
    ready cuEventDestroy = cuEventDestroy, beyond 2000 (event: CUevent) = event::destroy;
    stream cuEventRecord = cuEventRecord | cuEventRecord_ptsz, since 2000 (event: CUevent, stream: CUstream) =
        event::record;
    stream cuEventRecordWithFlags = cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz, since 11010
        (event: CUevent, stream: CUstream, flags: c_uint) = event::record_with_flags;
    ready cuEventQuery = cuEventQuery, since 2000 (event: CUevent) = event::query;
    ready cuEventSynchronize = cuEventSynchronize, since 2000 (event: CUevent) = event::synchronize;
    ready cuEventElapsedTime = cuEventElapsedTime, since 2000
        (milliseconds: Out<f32>, start: CUevent, end: CUevent) = event::elapsed_time;

    stream cuMemcpyHtoD = cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds, since 3020
        (dst: CUdeviceptr, src: HostSource, bytes: usize) = copy::to_device;
    stream cuMemcpyHtoDAsync = cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz, since 3020
        (dst: CUdeviceptr, src: HostSource, bytes: usize, stream: CUstream) = copy::to_device_async;
    stream cuMemcpyDtoH = cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds, since 3020
        (dst: Host, src: CUdeviceptr, bytes: usize) = copy::to_host;
    stream cuMemcpyDtoHAsync = cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz, since 3020
        (dst: Host, src: CUdeviceptr, bytes: usize, stream: CUstream) = copy::to_host_async;
    stream cuMemcpyDtoD = cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds, since 3020
        (dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) = copy::on_device;
    stream cuMemcpyDtoDAsync = cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz, since 3020
        (dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream) = copy::on_device_async;
    stream cuMemcpy = cuMemcpy | cuMemcpy_ptds, since 4000 (dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) =
        copy::any;
    stream cuMemcpyAsync = cuMemcpyAsync | cuMemcpyAsync_ptsz, since 4000
        (dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream) = copy::any_async;
    stream cuMemcpyPeer = cuMemcpyPeer | cuMemcpyPeer_ptds, since 4000
        (dst: CUdeviceptr, to: CUcontext, src: CUdeviceptr, from: CUcontext, bytes: usize) = copy::peer;
    stream cuMemcpyPeerAsync = cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz, since 4000
        (dst: CUdeviceptr, to: CUcontext, src: CUdeviceptr, from: CUcontext, bytes: usize, stream: CUstream) =
        copy::peer_async;
    stream cuMemsetD8 = cuMemsetD8_v2 | cuMemsetD8_v2_ptds, since 3020
        (dst: CUdeviceptr, value: c_uchar, count: usize) = fill::d8;
    stream cuMemsetD16 = cuMemsetD16_v2 | cuMemsetD16_v2_ptds, since 3020
        (dst: CUdeviceptr, value: c_ushort, count: usize) = fill::d16;
    stream cuMemsetD32 = cuMemsetD32_v2 | cuMemsetD32_v2_ptds, since 3020
        (dst: CUdeviceptr, value: c_uint, count: usize) = fill::d32;
    stream cuMemsetD8Async = cuMemsetD8Async | cuMemsetD8Async_ptsz, since 3020
        (dst: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) = fill::d8_async;
    stream cuMemsetD16Async = cuMemsetD16Async | cuMemsetD16Async_ptsz, since 3020
        (dst: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream) = fill::d16_async;
    stream cuMemsetD32Async = cuMemsetD32Async | cuMemsetD32Async_ptsz, since 3020
        (dst: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) = fill::d32_async;
    stream cuMemsetD2D8 = cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds, since 3020
        (dst: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize) = fill::rows_d8;
    stream cuMemsetD2D16 = cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds, since 3020
        (dst: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize) = fill::rows_d16;
    stream cuMemsetD2D32 = cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds, since 3020
        (dst: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize) = fill::rows_d32;
    stream cuMemsetD2D8Async = cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz, since 3020
        (dst: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize, stream: CUstream) =
        fill::rows_d8_async;
    stream cuMemsetD2D16Async = cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz, since 3020
        (dst: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize, stream: CUstream) =
        fill::rows_d16_async;
    stream cuMemsetD2D32Async = cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz, since 3020
        (dst: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream) =
        fill::rows_d32_async;
    stream cuMemcpy2D = cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds, since 3020 (copy: In<CUDA_MEMCPY2D>) = rows::copy_2d;
    stream cuMemcpy2DUnaligned = cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds, since 3020
        (copy: In<CUDA_MEMCPY2D>) = rows::copy_2d;
    stream cuMemcpy2DAsync = cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz, since 3020
        (copy: In<CUDA_MEMCPY2D>, stream: CUstream) = rows::copy_2d_async;
    stream cuMemcpy3D = cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds, since 3020 (copy: In<CUDA_MEMCPY3D>) = rows::copy_3d;
    stream cuMemcpy3DAsync = cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz, since 3020
        (copy: In<CUDA_MEMCPY3D>, stream: CUstream) = rows::copy_3d_async;

    ready cuModuleLoad = cuModuleLoad, beyond 2000 (module: *mut c_void, file: *mut c_void) = module::load;
    ready cuModuleLoadData = cuModuleLoadData, beyond 2000 (module: *mut c_void, image: *mut c_void) = module::load;
    ready cuModuleLoadFatBinary = cuModuleLoadFatBinary, beyond 2000 (module: *mut c_void, image: *mut c_void) =
        module::load;
    ready cuModuleLoadDataEx = cuModuleLoadDataEx, beyond 2010
        (module: *mut c_void, image: *mut c_void, count: c_uint, options: *mut c_void, values: *mut c_void) =
        module::load_with_options;
    ready cuLibraryLoadData = cuLibraryLoadData, beyond 12000
        (library: *mut c_void, code: *mut c_void, options: *mut c_void, values: *mut c_void, count: c_uint,
            library_options: *mut c_void, library_values: *mut c_void, library_count: c_uint) = module::load_library;
    ready cuLibraryLoadFromFile = cuLibraryLoadFromFile, beyond 12000
        (library: *mut c_void, file: *mut c_void, options: *mut c_void, values: *mut c_void, count: c_uint,
            library_options: *mut c_void, library_values: *mut c_void, library_count: c_uint) = module::load_library;
    stream cuLaunchKernel = cuLaunchKernel | cuLaunchKernel_ptsz, beyond 4000
        (function: *mut c_void, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
            block_z: c_uint, shared: c_uint, stream: *mut c_void, parameters: *mut c_void, extra: *mut c_void) =
        module::launch;
    stream cuLaunchKernelEx = cuLaunchKernelEx | cuLaunchKernelEx_ptsz, beyond 11060
        (config: *mut c_void, function: *mut c_void, parameters: *mut c_void, extra: *mut c_void) =
        module::launch_with_config;
}

fn get_proc_address(symbol: In<c_char>, function: Out<*mut c_void>, version: c_int, flags: c_ulonglong) -> CallResult {
    lookup::get(entry_points(), symbol, function, version, flags)
}

fn get_proc_address_v2(
    symbol: In<c_char>,
    function: Out<*mut c_void>,
    version: c_int,
    flags: c_ulonglong,
    status: Out<CUdriverProcAddressQueryResult>,
) -> CallResult {
    lookup::get_v2(entry_points(), symbol, function, version, flags, status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k1_every_entry_point_has_the_parameters_that_cudarc_declares() {
        for (symbol, ours, theirs) in parameters() {
            let theirs = theirs.replace("Option<unsafe extern \"C\" fn(*mut c_void)", "CUhostFn");
            assert_eq!(ours, theirs, "{symbol}");
        }
    }

    #[test]
    fn k1_no_symbol_stands_in_the_table_twice() {
        let mut symbols: Vec<&str> = entry_points().iter().map(|entry| entry.symbol).collect();
        symbols.sort_unstable();
        let before = symbols.len();
        symbols.dedup();
        assert_eq!(symbols.len(), before);
    }
}
