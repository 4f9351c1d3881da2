//! K1: the status of every entry point for arguments that the driver refuses, and the names under which they are found.
#![allow(unsafe_code)]

mod rig;

use bursar_libcuda::{EntryPoint, entry_points};
use rig::{
    ALWAYS, Argument, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, OUT_OF_MEMORY,
    SUCCESS, address, call_words, symbols,
};
use std::ffi::{CString, c_int, c_void};

const CAPTURE_UNSUPPORTED: c_int = 900;

/// The statuses of calls whose arguments are all null: with no context, and with one. Each line is written in the order in
/// which the driver checks: initialisation, context, arguments.
const NULLS: &[(c_int, c_int, &str)] = &[
    (
        INVALID_VALUE,
        INVALID_VALUE,
        "cuDeviceGetCount cuDeviceGet cuDeviceGetName cuDeviceGetUuid cuDeviceGetUuid_v2 cuDeviceTotalMem_v2 \
         cuDeviceGetAttribute cuDeviceComputeCapability cuDeviceGetPCIBusId cuDeviceGetByPCIBusId cuDeviceCanAccessPeer \
         cuDevicePrimaryCtxRetain cuDevicePrimaryCtxGetState cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxGetCurrent \
         cuCtxGetApiVersion cuDeviceGetDefaultMemPool cuDeviceGetMemPool cuDeviceSetMemPool cuDeviceGetGraphMemAttribute \
         cuDeviceSetGraphMemAttribute cuMemPoolCreate cuMemPoolDestroy cuMemPoolTrimTo cuMemPoolSetAttribute \
         cuMemPoolGetAttribute cuMemPoolSetAccess cuMemPoolGetAccess cuMemGetAllocationGranularity cuMemAddressReserve \
         cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess cuMemGetAccess \
         cuMemRetainAllocationHandle cuMemGetAllocationPropertiesFromHandle cuMemExportToShareableHandle \
         cuMemImportFromShareableHandle cuArrayGetDescriptor_v2 cuArray3DGetDescriptor_v2 cuMipmappedArrayGetLevel \
         cuEventElapsedTime cuGraphDestroy cuGraphInstantiateWithFlags cuGraphExecDestroy cuThreadExchangeStreamCaptureMode cuLibraryLoadData cuLibraryLoadFromFile",
    ),
    (
        INVALID_CONTEXT,
        INVALID_VALUE,
        "cuCtxGetDevice cuCtxGetFlags cuCtxGetId cuCtxGetLimit cuMemAlloc_v2 cuMemAllocPitch_v2 cuMemAllocManaged \
         cuMemAllocAsync cuMemAllocFromPoolAsync cuMemFreeAsync cuPointerGetAttribute cuPointerSetAttribute \
         cuMemAdvise cuMemPrefetchAsync cuIpcGetMemHandle cuIpcOpenMemHandle cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle cuArrayCreate_v2 cuArray3DCreate_v2 \
         cuMipmappedArrayCreate cuMemAllocHost_v2 cuMemHostAlloc cuMemFreeHost cuMemHostRegister cuMemHostRegister_v2 cuMemHostUnregister \
         cuMemHostGetDevicePointer_v2 cuMemHostGetFlags cuStreamCreate cuStreamCreateWithPriority cuEventCreate \
         cuStreamIsCapturing cuStreamGetCtx cuStreamGetFlags cuStreamGetPriority cuStreamGetId cuLaunchHostFunc \
         cuStreamAddCallback cuStreamEndCapture cuStreamGetCaptureInfo_v2 cuGraphLaunch cuMemcpyHtoD_v2 cuMemcpyHtoDAsync_v2 cuMemcpyDtoH_v2 \
         cuMemcpyDtoHAsync_v2 cuMemcpy cuMemcpyAsync cuMemcpy2D_v2 cuMemcpy2DUnaligned_v2 cuMemcpy2DAsync_v2 \
         cuMemcpy3D_v2 cuMemcpy3DAsync_v2 cuModuleLoad cuModuleLoadData cuModuleLoadFatBinary cuModuleLoadDataEx \
         cuLaunchKernelEx",
    ),
    (
        INVALID_CONTEXT,
        SUCCESS,
        "cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 cuCtxPopCurrent cuCtxPopCurrent_v2 cuCtxSynchronize cuCtxGetStreamPriorityRange cuCtxSetLimit \
         cuMemGetInfo_v2 cuMemFree_v2 cuPointerGetAttributes cuStreamQuery cuStreamSynchronize cuMemcpyDtoD_v2 \
         cuMemcpyDtoDAsync_v2 cuMemcpyPeer cuMemcpyPeerAsync cuMemsetD8_v2 cuMemsetD16_v2 cuMemsetD32_v2 cuMemsetD8Async \
         cuMemsetD16Async cuMemsetD32Async cuMemsetD2D8_v2 cuMemsetD2D16_v2 cuMemsetD2D32_v2 cuMemsetD2D8Async \
         cuMemsetD2D16Async cuMemsetD2D32Async",
    ),
    (
        SUCCESS,
        SUCCESS,
        "cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxSetFlags \
         cuDevicePrimaryCtxSetFlags_v2 cuDeviceGraphMemTrim cuCtxSetCurrent",
    ),
    (
        INVALID_CONTEXT,
        INVALID_CONTEXT,
        "cuCtxDestroy cuCtxDestroy_v2 cuCtxPushCurrent cuCtxPushCurrent_v2 cuCtxEnablePeerAccess cuCtxDisablePeerAccess",
    ),
    (INVALID_CONTEXT, INVALID_HANDLE, "cuStreamWaitEvent cuEventRecord cuEventRecordWithFlags cuLaunchKernel"),
    (INVALID_CONTEXT, NOT_FOUND, "cuMemGetAddressRange_v2"),
    (INVALID_CONTEXT, CAPTURE_UNSUPPORTED, "cuStreamBeginCapture_v2"),
    (
        INVALID_HANDLE,
        INVALID_HANDLE,
        "cuArrayDestroy cuMipmappedArrayDestroy cuStreamDestroy cuStreamDestroy_v2 cuEventDestroy cuEventDestroy_v2 cuEventQuery cuEventSynchronize",
    ),
];

/// Returns the statuses of a symbol; both forms of a call have the same.
fn expected(symbol: &str) -> (c_int, c_int) {
    let plain = symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    let line = NULLS.iter().find(|(_, _, symbols)| symbols.split_whitespace().any(|one| one == plain));
    let &(without, with, _) = line.unwrap_or_else(|| panic!("{symbol} has no line"));
    (without, with)
}

/// Makes the primary context of the first device current on this thread, and the only one.
fn enter() -> u64 {
    let mut context = 0u64;
    ok!(cuInit(0u64));
    leave();
    ok!(cuDevicePrimaryCtxRetain(&mut context, 0i32));
    ok!(cuCtxSetCurrent(context));
    context
}

/// Leaves no context current on this thread.
fn leave() {
    let mut context = 1u64;
    while context != 0 {
        ok!(cuCtxSetCurrent(0u64));
        ok!(cuCtxGetCurrent(&mut context));
    }
}

#[test]
fn k1_every_entry_point_refuses_nulls_and_missing_contexts_with_the_driver_s_status() {
    ok!(cuInit(0u64));
    for symbol in symbols().filter(|symbol| !ALWAYS.contains(symbol)) {
        let (without, with) = expected(symbol);
        leave();
        // The context of another test may be active, which only its release would notice.
        let touches_others = symbol.starts_with("cuDevicePrimaryCtxRe") && !symbol.ends_with("Retain");
        if !touches_others {
            assert_eq!(call_words(symbol, &[]), without, "{symbol} without a context");
        }
        if !symbol.starts_with("cuDevicePrimaryCtxReset") {
            enter();
            assert_eq!(call_words(symbol, &[]), with, "{symbol} with nulls");
        }
    }
    leave();
}

#[test]
fn k1_a_handle_of_one_kind_is_not_taken_for_another() {
    let context = enter();
    let (mut stream, mut event, mut pool, mut array, mut mipmapped) = (0u64, 0u64, 0u64, 0u64, 0u64);
    ok!(cuStreamCreate(&mut stream, 0u64));
    ok!(cuEventCreate(&mut event, 0u64));
    ok!(cuDeviceGetDefaultMemPool(&mut pool, 0i32));
    // The width, the height, the format of one byte, and one channel.
    ok!(cuArrayCreate_v2(&mut array, &[64u64, 64, 1 << 32 | 1]));
    ok!(cuMipmappedArrayCreate(&mut mipmapped, &[64u64, 64, 0, 1 << 32 | 1, 0], 3u64));
    let pages = pages_of(2 << 20);
    let live = [context, stream, event, pool, array, mipmapped, pages];
    let mut gone = 0u64;
    ok!(cuEventCreate(&mut gone, 0u64));
    ok!(cuEventDestroy_v2(gone));
    for (symbol, own, status) in [
        ("cuStreamSynchronize", stream, INVALID_HANDLE),
        ("cuStreamQuery", stream, INVALID_HANDLE),
        ("cuStreamDestroy_v2", stream, INVALID_HANDLE),
        ("cuEventSynchronize", event, INVALID_HANDLE),
        ("cuEventDestroy_v2", event, INVALID_HANDLE),
        ("cuMemPoolTrimTo", pool, INVALID_VALUE),
        ("cuMemPoolDestroy", pool, INVALID_VALUE),
        ("cuMemRelease", pages, INVALID_VALUE),
        ("cuArrayDestroy", array, INVALID_HANDLE),
        ("cuMipmappedArrayDestroy", mipmapped, INVALID_HANDLE),
        ("cuCtxSetCurrent", context, INVALID_CONTEXT),
        ("cuCtxDestroy_v2", context, INVALID_CONTEXT),
        ("cuMemFree_v2", 0, INVALID_VALUE),
        ("cuGraphDestroy", 0, INVALID_VALUE),
    ] {
        for other in live.into_iter().chain([gone, 3, 0x10, 0xdead_beef, u64::MAX]).filter(|other| *other != own) {
            assert_eq!(call_words(symbol, &[other]), status, "{symbol}({other:#x})");
        }
    }
    assert_eq!(cu!(cuMemPoolDestroy(pool)), INVALID_VALUE, "the pool that a device had first");
    assert_eq!(cu!(cuCtxDestroy_v2(context)), INVALID_CONTEXT, "a primary context");
    ok!(cuMemRelease(pages));
    assert_eq!(cu!(cuMemRelease(pages)), INVALID_VALUE, "released twice");
    ok!(cuMipmappedArrayDestroy(mipmapped));
    ok!(cuArrayDestroy(array));
    ok!(cuEventDestroy_v2(event));
    ok!(cuStreamDestroy_v2(stream));
    leave();
}

/// Returns the properties of physical memory of a device: pinned, no shareable handles, on that device.
fn properties(device: u64) -> [u64; 4] {
    [1, device << 32 | 1, 0, 0]
}

fn pages_of(bytes: u64) -> u64 {
    let mut pages = 0u64;
    ok!(cuMemCreate(&mut pages, bytes, &properties(0), 0u64));
    pages
}

#[test]
fn k1_sizes_and_devices_that_make_no_sense_are_refused() {
    enter();
    let mut place = [0u64; 16];
    assert_eq!(cu!(cuMemAlloc_v2(&mut place, 0u64)), INVALID_VALUE);
    assert_eq!(cu!(cuMemAlloc_v2(&mut place, 1u64 << 46)), OUT_OF_MEMORY);
    assert_eq!(cu!(cuMemAlloc_v2(&mut place, u64::MAX)), OUT_OF_MEMORY);
    assert_eq!(cu!(cuMemCreate(&mut place, (2u64 << 20) + 1, &properties(0), 0u64)), INVALID_VALUE);
    assert_eq!(cu!(cuMemCreate(&mut place, 2u64 << 20, &properties(99), 0u64)), INVALID_DEVICE);
    assert_eq!(cu!(cuMemAddressReserve(&mut place, 4096u64, 0u64, 0u64, 0u64)), INVALID_VALUE);
    assert_eq!(cu!(cuDeviceGet(&mut place, 99i32)), INVALID_DEVICE);
    assert_eq!(cu!(cuDeviceGet(&mut place, -1i32)), INVALID_DEVICE);
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(&mut place, 99i32)), INVALID_DEVICE);
    assert_eq!(cu!(cuDeviceGetAttribute(&mut place, 100_000i32, 0i32)), INVALID_VALUE);
    assert_eq!(cu!(cuStreamCreate(&mut place, 2u64)), INVALID_VALUE);
    assert_eq!(cu!(cuEventCreate(&mut place, 4u64)), INVALID_VALUE, "between processes, with timing");
    assert_eq!(cu!(cuMemAllocPitch_v2(&mut place, &mut [0u64], 100u64, 10u64, 3u64)), INVALID_VALUE);
    assert_eq!(cu!(cuMemAllocManaged(&mut place, 4096u64, 0u64)), INVALID_VALUE);
    leave();
}

/// Looks a name up with `cuGetProcAddress_v2`. Returns the address and the reason.
fn find(name: &str, version: c_int, flags: u64) -> (*mut c_void, u32) {
    let (name, mut function, mut status) = (CString::new(name).expect("no zero"), std::ptr::null_mut(), 9u32);
    let name = name.as_ptr().cast_mut();
    assert_eq!(cu!(cuGetProcAddress_v2(name, &mut function, version, flags, &mut status)), SUCCESS);
    (function, status)
}

#[test]
fn k1_what_is_in_the_table_is_exported_and_found_under_its_name_and_version() {
    for entry @ &EntryPoint { name, symbol, since, per_thread, has_forms, .. } in entry_points() {
        let exported = address(symbol).unwrap_or_else(|| panic!("{symbol} is not exported"));
        let flags = 1 + u64::from(per_thread);
        assert_eq!(find(name, since, flags), (exported, 0), "{entry:?}");
        if has_forms && !per_thread {
            assert_eq!(find(name, since, 0), (exported, 0), "the legacy form is the default");
        }
        let (before, why) = find(name, since - 1, flags);
        assert_ne!(before, exported, "{symbol} did not exist before {since}");
        assert_eq!(before.is_null(), why != 0, "{symbol}");
        let mut function = std::ptr::null_mut::<c_void>();
        let text = CString::new(name).expect("no zero");
        assert_eq!(cu!(cuGetProcAddress(text.as_ptr().cast_mut(), &mut function, since, flags)), SUCCESS);
        assert_eq!(function, exported);
    }
}

#[test]
fn k1_what_is_not_there_is_absent_everywhere() {
    for name in ["cuGraphAddKernelNode", "cuTexObjectCreate", "cuNonsense", "cuMemAlloc_v2_ptsz", "cuda"] {
        assert!(address(name).is_none(), "{name}");
        assert_eq!(find(name, 13000, 0), (std::ptr::null_mut(), 1), "{name} is no symbol");
        let (text, mut function) = (CString::new(name).expect("no zero"), std::ptr::null_mut::<c_void>());
        assert_eq!(cu!(cuGetProcAddress(text.as_ptr().cast_mut(), &mut function, 13000i32, 0u64)), NOT_FOUND);
    }
    assert_eq!(find("cuMemAlloc", 2000, 0), (std::ptr::null_mut(), 2), "its version is too old");
    let (name, mut function) = (c"cuMemAlloc".as_ptr().cast_mut(), 0u64);
    assert_eq!(cu!(cuGetProcAddress_v2(name, 0u64, 12000i32, 0u64, 0u64)), INVALID_VALUE);
    assert_eq!(cu!(cuGetProcAddress_v2(0u64, &mut function, 12000i32, 0u64, 0u64)), INVALID_VALUE);
    assert_eq!(cu!(cuGetProcAddress_v2(name, &mut function, 12000i32, 4u64, 0u64)), INVALID_VALUE);
    assert_eq!(cu!(cuGetProcAddress_v2(name, &mut function, 12000i32, 0u64, 0u64)), SUCCESS, "no reason is wanted");
}

#[test]
fn k1_every_status_has_its_name_and_a_description() {
    let text = |symbol: &str, status: c_int| {
        let mut text = std::ptr::null::<i8>();
        let answer = call_words(symbol, &[Argument::word(status), Argument::word(&raw mut text)]);
        // SAFETY: null, or a text of the library, which stays loaded.
        (answer, (!text.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(text.cast()) }.to_string_lossy()))
    };
    let named = |status| text("cuGetErrorName", status);
    assert_eq!(named(2), (SUCCESS, Some("CUDA_ERROR_OUT_OF_MEMORY".into())));
    assert_eq!(named(999), (SUCCESS, Some("CUDA_ERROR_UNKNOWN".into())));
    assert_eq!(named(12_345), (INVALID_VALUE, None));
    for status in 0..1000 {
        let (named, described) = (named(status), text("cuGetErrorString", status));
        assert_eq!(named.0, described.0, "{status}");
        assert_eq!(named.1.is_some(), described.1.is_some_and(|text| !text.is_empty()), "{status}");
    }
}
