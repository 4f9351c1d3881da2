//! Questions to the driver itself: which device is current, how much of it is free, what a pool has reserved.
#![allow(unsafe_code)]

use crate::entry::SUCCESS;
use crate::loader;
use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

pub(crate) type Device = c_int;

/// A function of the driver that is called here and not wrapped.
pub(crate) struct Function {
    symbols: &'static [&'static CStr],
    found: AtomicPtr<c_void>,
}

impl Function {
    pub(crate) const fn new(symbols: &'static [&'static CStr]) -> Self {
        Self { symbols, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the first of the symbols that the driver has. One that is not there is looked for each time: there may be no driver
    /// yet.
    pub(crate) fn get(&self) -> Option<*mut c_void> {
        let known = self.found.load(Acquire);
        if !known.is_null() {
            return Some(known);
        }
        let found = self.symbols.iter().map(|symbol| loader::driver_symbol(symbol)).find(|found| !found.is_null())?;
        self.found.store(found, Release);
        Some(found)
    }
}

/// Defines questions to the driver. Each returns what the call says in its first argument, or none where the call fails or is not
/// there.
macro_rules! questions {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty = $($symbol:literal)|+;
    )*) => {$(
        $(#[$attribute])*
        pub(crate) fn $name($($arg: $type),*) -> Option<$out> {
            static FUNCTION: Function = Function::new(&[$($symbol),+]);
            // SAFETY: the driver's function of this name has this signature.
            let function = unsafe {
                transmute::<*mut c_void, unsafe extern "C" fn(*mut $out $(, $type)*) -> c_int>(FUNCTION.get()?)
            };
            let mut out = <$out>::default();
            // SAFETY: the driver writes its answer to a variable of ours, and keeps none of the arguments.
            let status = unsafe { function(&raw mut out $(, $arg)*) };
            (status == SUCCESS).then_some(out)
        }
    )*};
}

/// The mode of captures in which a thread may make any call.
const RELAXED: c_int = 2;

/// Makes calls of our own that a capture of a stream, in any thread, might forbid: in the mode that allows them, which ends before the
/// program's own call.
pub(crate) fn beside_captures<T>(calls: impl FnOnce() -> T) -> T {
    let before = exchange_capture_mode(RELAXED);
    let answer = calls();
    if let Some(before) = before {
        exchange_capture_mode(before);
    }
    answer
}

fn exchange_capture_mode(mode: c_int) -> Option<c_int> {
    static FUNCTION: Function = Function::new(&[c"cuThreadExchangeStreamCaptureMode"]);
    // SAFETY: the driver's function of this name has this signature.
    let exchange = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(FUNCTION.get()?) };
    let mut mode = mode;
    // SAFETY: a variable of ours, which the driver reads and writes.
    let status = unsafe { exchange(&raw mut mode) };
    (status == SUCCESS).then_some(mode)
}

/// Returns whether a stream is being captured, or may be: then what is asked of it becomes a part of a graph.
pub(crate) fn is_capturing(stream: *mut c_void, per_thread: bool) -> bool {
    static LEGACY: Function = Function::new(&[c"cuStreamIsCapturing"]);
    static PER_THREAD: Function = Function::new(&[c"cuStreamIsCapturing_ptsz", c"cuStreamIsCapturing"]);
    let Some(found) = (if per_thread { &PER_THREAD } else { &LEGACY }).get() else { return false };
    // SAFETY: the driver's function of this name has this signature.
    let ask = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int>(found) };
    let mut capture = 0;
    // SAFETY: the program's stream, which the driver checks, and a variable of ours for the answer.
    let status = unsafe { ask(stream, &raw mut capture) };
    status != SUCCESS || capture != 0
}

/// A pointer that the driver gives out; null by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Handle(pub(crate) *mut c_void);

impl Default for Handle {
    fn default() -> Self {
        Self(ptr::null_mut())
    }
}

questions! {
    fn device_count() -> c_int = c"cuDeviceGetCount";
    fn device_at(ordinal: c_int) -> Device = c"cuDeviceGet";
    fn device_uuid(device: Device) -> [u8; 16] = c"cuDeviceGetUuid_v2" | c"cuDeviceGetUuid";
    fn current_context() -> Handle = c"cuCtxGetCurrent";
    /// Returns the device of the current context.
    fn current_device() -> Device = c"cuCtxGetDevice";
    /// Returns the pool that `cuMemAllocAsync` uses on a device.
    fn pool_of(device: Device) -> Handle = c"cuDeviceGetMemPool";
}

/// Returns the bytes of the current device that are free, whoever holds the rest, and all of its bytes.
pub(crate) fn memory() -> Option<(u64, u64)> {
    static FUNCTION: Function = Function::new(&[c"cuMemGetInfo_v2"]);
    // SAFETY: the driver's function of this name has this signature.
    let function =
        unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut usize, *mut usize) -> c_int>(FUNCTION.get()?) };
    let (mut free, mut total) = (0, 0);
    // SAFETY: the driver writes its answers to variables of ours.
    let status = beside_captures(|| unsafe { function(&raw mut free, &raw mut total) });
    (status == SUCCESS).then_some((free as u64, total as u64))
}

/// Returns whether a device's primary context exists.
pub(crate) fn is_primary_active(device: Device) -> Option<bool> {
    static FUNCTION: Function = Function::new(&[c"cuDevicePrimaryCtxGetState"]);
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe {
        transmute::<*mut c_void, unsafe extern "C" fn(Device, *mut u32, *mut c_int) -> c_int>(FUNCTION.get()?)
    };
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the driver writes its answers to variables of ours.
    let status = unsafe { function(device, &raw mut flags, &raw mut active) };
    (status == SUCCESS).then_some(active != 0)
}

/// Returns a number that the driver keeps about a pool.
pub(crate) fn pool_attribute(pool: Handle, attribute: c_int) -> Option<u64> {
    static FUNCTION: Function = Function::new(&[c"cuMemPoolGetAttribute"]);
    // SAFETY: the driver's function of this name has this signature.
    let function =
        unsafe { transmute::<*mut c_void, unsafe extern "C" fn(Handle, c_int, *mut u64) -> c_int>(FUNCTION.get()?) };
    let mut value = 0;
    // SAFETY: the attributes asked for here are numbers of 64 bits.
    let status = beside_captures(|| unsafe { function(pool, attribute, &raw mut value) });
    (status == SUCCESS).then_some(value)
}

/// Sets an attribute of a pool that is a number of 64 bits.
pub(crate) fn set_pool_attribute(pool: Handle, attribute: c_int, mut value: u64) -> bool {
    static FUNCTION: Function = Function::new(&[c"cuMemPoolSetAttribute"]);
    let Some(found) = FUNCTION.get() else { return false };
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(Handle, c_int, *mut u64) -> c_int>(found) };
    // SAFETY: the attributes set here are numbers of 64 bits.
    beside_captures(|| unsafe { function(pool, attribute, &raw mut value) == SUCCESS })
}

/// Gives linear memory back.
pub(crate) fn free(start: u64) {
    static FUNCTION: Function = Function::new(&[c"cuMemFree_v2"]);
    let Some(found) = FUNCTION.get() else { return };
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(u64) -> c_int>(found) };
    // SAFETY: the memory was given out by a call that the program has not heard of yet.
    beside_captures(|| unsafe { function(start) });
}

/// Gives back what a pool has and does not use. Returns whether it could be asked.
pub(crate) fn trim_pool(pool: Handle) -> bool {
    static FUNCTION: Function = Function::new(&[c"cuMemPoolTrimTo"]);
    let Some(found) = FUNCTION.get() else { return false };
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(Handle, usize) -> c_int>(found) };
    // SAFETY: a pool that the program has used; one that is gone is refused by the driver.
    beside_captures(|| unsafe { function(pool, 0) == SUCCESS })
}

/// Reads what the driver wrote for the program.
pub(crate) fn read<T: Copy + Default>(out: *const T) -> T {
    if out.is_null() {
        return T::default();
    }
    // SAFETY: a call that went well has written to where its argument points.
    unsafe { out.read() }
}

/// Replaces what the driver wrote for the program.
pub(crate) fn write<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: a call that went well has written to where its argument points.
        unsafe { out.write(value) };
    }
}

/// Frees memory of a pool, ordered behind the work of a stream.
pub(crate) fn free_async(start: u64, stream: *mut c_void) {
    static FUNCTION: Function = Function::new(&[c"cuMemFreeAsync"]);
    let Some(found) = FUNCTION.get() else { return };
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(u64, *mut c_void) -> c_int>(found) };
    // SAFETY: the memory was given out by a call that the program has not heard of yet, on this stream.
    beside_captures(|| unsafe { function(start, stream) });
}

/// Returns a number that the driver keeps about the graph memory of a device.
pub(crate) fn graph_attribute(device: Device, attribute: c_int) -> Option<u64> {
    static FUNCTION: Function = Function::new(&[c"cuDeviceGetGraphMemAttribute"]);
    // SAFETY: the driver's function of this name has this signature.
    let function =
        unsafe { transmute::<*mut c_void, unsafe extern "C" fn(Device, c_int, *mut u64) -> c_int>(FUNCTION.get()?) };
    let mut value = 0;
    // SAFETY: the attributes are numbers of 64 bits.
    let status = beside_captures(|| unsafe { function(device, attribute, &raw mut value) });
    (status == SUCCESS).then_some(value)
}

/// Gives back the graph memory of a device that no graph uses. Returns whether it could be asked.
pub(crate) fn trim_graphs(device: Device) -> bool {
    static FUNCTION: Function = Function::new(&[c"cuDeviceGraphMemTrim"]);
    let Some(found) = FUNCTION.get() else { return false };
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(Device) -> c_int>(found) };
    // SAFETY: a device of the driver.
    beside_captures(|| unsafe { function(device) == SUCCESS })
}

/// Destroys an array.
pub(crate) fn destroy_array(array: Handle) {
    static FUNCTION: Function = Function::new(&[c"cuArrayDestroy"]);
    destroy(&FUNCTION, array);
}

/// Destroys a mipmapped array.
pub(crate) fn destroy_mipmap(array: Handle) {
    static FUNCTION: Function = Function::new(&[c"cuMipmappedArrayDestroy"]);
    destroy(&FUNCTION, array);
}

fn destroy(function: &Function, thing: Handle) {
    let Some(found) = function.get() else { return };
    // SAFETY: the functions that this is called with have this signature.
    let function = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(Handle) -> c_int>(found) };
    // SAFETY: it was made by a call that the program has not heard of yet.
    beside_captures(|| unsafe { function(thing) });
}

/// Destroys a context.
pub(crate) fn destroy_context(context: Handle) {
    static FUNCTION: Function = Function::new(&[c"cuCtxDestroy_v2", c"cuCtxDestroy"]);
    destroy(&FUNCTION, context);
}

/// Gives up the primary context of a device.
pub(crate) fn release_primary(device: Device) {
    static FUNCTION: Function = Function::new(&[c"cuDevicePrimaryCtxRelease_v2", c"cuDevicePrimaryCtxRelease"]);
    let Some(found) = FUNCTION.get() else { return };
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(Device) -> c_int>(found) };
    // SAFETY: the context was retained by a call that the program has not heard of yet.
    unsafe { function(device) };
}

/// Returns by how much less is free while a byte is allocated; none where the driver does not tell.
pub(crate) fn memory_of_a_byte() -> Option<u64> {
    static FUNCTION: Function = Function::new(&[c"cuMemAlloc_v2"]);
    // SAFETY: the driver's function of this name has this signature.
    let allocate = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut u64, usize) -> c_int>(FUNCTION.get()?) };
    let before = memory()?.0;
    let mut start = 0;
    // SAFETY: a variable of ours for the answer.
    let status = beside_captures(|| unsafe { allocate(&raw mut start, 1) });
    if status != SUCCESS {
        return None;
    }
    let after = memory();
    free(start);
    Some(before.saturating_sub(after?.0))
}

/// Returns the multiple that the driver pads rows of linear memory to; none where it does not tell.
pub(crate) fn pitch() -> Option<u64> {
    static FUNCTION: Function = Function::new(&[c"cuMemAllocPitch_v2"]);
    type Allocate = unsafe extern "C" fn(*mut u64, *mut usize, usize, usize, u32) -> c_int;
    // SAFETY: the driver's function of this name has this signature.
    let allocate = unsafe { transmute::<*mut c_void, Allocate>(FUNCTION.get()?) };
    let (mut start, mut pitch) = (0, 0);
    // SAFETY: variables of ours for the answers; a row of one byte.
    let status = beside_captures(|| unsafe { allocate(&raw mut start, &raw mut pitch, 1, 1, 4) });
    if status != SUCCESS {
        return None;
    }
    free(start);
    Some(pitch as u64)
}
