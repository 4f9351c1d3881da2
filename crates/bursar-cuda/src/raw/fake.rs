//! A table of functions that record their calls, for tests without a device. Each thread has its own state.
#![allow(unsafe_code)]

use super::Api;
use super::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUhostFn, CUmemAllocationGranularity_flags,
    CUmemAllocationProp, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus, CUuuid,
};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::AtomicBool;

/// The calls that a thread's fake driver has seen, and the results that it returns.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// The number that `cuDeviceGetCount` returns.
    pub(crate) devices: c_int,
    /// The ordinal that `cuDeviceGet` refuses.
    pub(crate) sick: Option<c_int>,
    /// The thread's current context.
    pub(crate) current: usize,
    /// The number of times the current context was read.
    pub(crate) looked: u32,
    /// A context that can no longer be made current.
    pub(crate) gone: Option<usize>,
    /// True if calls on a stream require a current context, as those of an older driver might.
    pub(crate) insists: bool,
    /// The thread's capture mode.
    pub(crate) capture_mode: c_uint,
    /// The number of retains that have not been released.
    pub(crate) retained: u32,
    /// The result of calls other than those about devices and contexts.
    pub(crate) result: c_int,
    /// The calls, with the context and the capture mode they were made in.
    pub(crate) seen: Vec<(&'static str, usize, c_uint)>,
    /// The host function that was launched.
    pub(crate) launched: Option<(CUhostFn, *mut c_void)>,
}

thread_local! {
    static STATE: RefCell<State> = const {
        RefCell::new(State {
            devices: 2,
            sick: None,
            current: 0,
            looked: 0,
            gone: None,
            insists: false,
            capture_mode: 0,
            retained: 0,
            result: 0,
            seen: Vec::new(),
            launched: None,
        })
    };
}

/// Reads or changes the state.
pub(crate) fn with<T>(look: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(look)
}

/// Returns the calls seen since the last time, and forgets them.
pub(crate) fn seen() -> Vec<(&'static str, usize, c_uint)> {
    with(|state| std::mem::take(&mut state.seen))
}

/// Returns the primary context of the device with this ordinal.
pub(crate) const fn primary(ordinal: usize) -> usize {
    0x1000 + ordinal
}

fn note(call: &'static str) -> c_int {
    with(|state| {
        state.seen.push((call, state.current, state.capture_mode));
        state.result
    })
}

/// Writes an output of a call.
fn write<T>(place: *mut T, value: T) -> c_int {
    // SAFETY: the callers are wrappers that pass a place for one output.
    unsafe { place.write(value) };
    0
}

extern "C" fn error_name(code: c_int, name: *mut *const c_char) -> c_int {
    match code {
        719 => write(name, c"CUDA_ERROR_LAUNCH_FAILED".as_ptr()),
        999 => write(name, c"CUDA_ERROR_UNKNOWN".as_ptr()),
        _ => 1,
    }
}

extern "C" fn init(_: c_uint) -> c_int {
    with(|state| state.result)
}

extern "C" fn device_count(count: *mut c_int) -> c_int {
    write(count, with(|state| state.devices))
}

extern "C" fn device(device: *mut CUdevice, ordinal: c_int) -> c_int {
    match with(|state| state.sick) {
        Some(sick) if sick == ordinal => 999,
        _ => write(device, ordinal),
    }
}

extern "C" fn device_name(name: *mut c_char, _: c_int, _: CUdevice) -> c_int {
    write(name, b'G' as c_char)
}

extern "C" fn device_uuid(uuid: *mut CUuuid, device: CUdevice) -> c_int {
    let bytes = [device as u8; 16];
    write(uuid, CUuuid { bytes })
}

extern "C" fn device_total(bytes: *mut usize, _: CUdevice) -> c_int {
    write(bytes, 80 << 30)
}

extern "C" fn device_attribute(value: *mut c_int, attribute: CUdevice_attribute, _: CUdevice) -> c_int {
    let bus = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID;
    let pci =
        [CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID];
    let result = match attribute {
        attribute if attribute == bus => 0x4e,
        attribute if pci.contains(&attribute) => 0,
        _ => 1,
    };
    write(value, result)
}

extern "C" fn retain(context: *mut CUcontext, device: CUdevice) -> c_int {
    with(|state| state.retained += 1);
    write(context, primary(device as usize) as CUcontext)
}

extern "C" fn release(_: CUdevice) -> c_int {
    with(|state| state.retained -= 1);
    0
}

extern "C" fn get_current(context: *mut CUcontext) -> c_int {
    with(|state| state.looked += 1);
    write(context, with(|state| state.current) as CUcontext)
}

extern "C" fn set_current(context: CUcontext) -> c_int {
    note("cuCtxSetCurrent");
    with(|state| {
        if state.gone == Some(context as usize) {
            return 709;
        }
        state.current = context as usize;
        0
    })
}

extern "C" fn priorities(least: *mut c_int, greatest: *mut c_int) -> c_int {
    note("cuCtxGetStreamPriorityRange");
    write(least, 0);
    write(greatest, -5)
}

extern "C" fn exchange(mode: *mut CUstreamCaptureMode) -> c_int {
    let place = mode.cast::<c_uint>();
    // SAFETY: the wrapper passes a place with a mode in it.
    let wanted = unsafe { place.read() };
    write(place, with(|state| std::mem::replace(&mut state.capture_mode, wanted)))
}

extern "C" fn granularity(
    bytes: *mut usize,
    _: *const CUmemAllocationProp,
    _: CUmemAllocationGranularity_flags,
) -> c_int {
    write(bytes, 2 << 20)
}

extern "C" fn memory_info(free: *mut usize, total: *mut usize) -> c_int {
    write(free, 70 << 30);
    write(total, 80 << 30);
    note("cuMemGetInfo")
}

extern "C" fn allocate(ptr: *mut CUdeviceptr, _: usize) -> c_int {
    write(ptr, 0x7000);
    note("cuMemAlloc")
}

/// Records a call on a stream.
fn note_on_stream(call: &'static str) -> c_int {
    let result = note(call);
    with(|state| if state.insists && state.current == 0 { 201 } else { result })
}

extern "C" fn allocate_async(ptr: *mut CUdeviceptr, _: usize, _: CUstream) -> c_int {
    write(ptr, 0x7000);
    note_on_stream("cuMemAllocAsync")
}

extern "C" fn free_async(_: CUdeviceptr, _: CUstream) -> c_int {
    note_on_stream("cuMemFreeAsync")
}

extern "C" fn stream_query(_: CUstream) -> c_int {
    note_on_stream("cuStreamQuery")
}

extern "C" fn stream_wait(_: CUstream, _: CUevent, _: c_uint) -> c_int {
    note_on_stream("cuStreamWaitEvent")
}

extern "C" fn is_capturing(_: CUstream, status: *mut CUstreamCaptureStatus) -> c_int {
    write(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    note_on_stream("cuStreamIsCapturing")
}

extern "C" fn event_record(_: CUevent, _: CUstream) -> c_int {
    note_on_stream("cuEventRecord")
}

extern "C" fn event_query(_: CUevent) -> c_int {
    note("cuEventQuery")
}

extern "C" fn launch(_: CUstream, function: CUhostFn, data: *mut c_void) -> c_int {
    with(|state| state.launched = Some((function, data)));
    note("cuLaunchHostFunc")
}

/// Returns the table; every function that is not here returns `CUDA_ERROR_NOT_SUPPORTED`.
pub(crate) fn api(exiting: &'static AtomicBool) -> Api {
    Api {
        cuInit: init,
        cuDeviceGetCount: device_count,
        cuDeviceGet: device,
        cuDeviceGetName: device_name,
        cuDeviceGetUuid: device_uuid,
        cuDeviceTotalMem: device_total,
        cuDeviceGetAttribute: device_attribute,
        cuDevicePrimaryCtxRetain: retain,
        cuDevicePrimaryCtxRelease: release,
        cuCtxGetCurrent: get_current,
        cuCtxSetCurrent: set_current,
        cuCtxGetStreamPriorityRange: priorities,
        cuThreadExchangeStreamCaptureMode: exchange,
        cuMemGetAllocationGranularity: granularity,
        cuMemGetInfo: memory_info,
        cuMemAlloc: allocate,
        cuMemAllocAsync: allocate_async,
        cuMemFreeAsync: free_async,
        cuStreamQuery: stream_query,
        cuStreamWaitEvent: stream_wait,
        cuStreamIsCapturing: is_capturing,
        cuEventRecord: event_record,
        cuEventQuery: event_query,
        cuLaunchHostFunc: launch,
        ..Api::unsupported(exiting, error_name)
    }
}
