//! The calls of the CUDA driver, one thin method each, and the only module that makes them.
//!
//! A method adds nothing to its call but a place for the answer. Those that need a current context say nothing about
//! which; [`device`](crate::device) sees to that.
#![allow(unsafe_code)]

#[cfg(test)]
pub(crate) mod fake;
mod layout;
mod memory;
mod streams;
mod table;

pub(crate) use layout::{PageAccess, PageKind};
pub(crate) use table::{Api, Failure};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUuuid};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

type CallResult<T> = Result<T, Failure>;

/// The version the library calls itself, as 1000 × major + 10 × minor, or `None` where it will not say. Every driver has
/// this call, and answers before `cuInit` too.
pub(crate) fn driver_version(library: &Library) -> Result<Option<c_int>, &'static str> {
    const SYMBOL: &str = "cuDriverGetVersion";
    // SAFETY: the type is the driver's own, but for a number in the place of the enumeration.
    let found = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(SYMBOL) };
    let call = found.map_err(|_| SYMBOL)?;
    let mut version = 0;
    // SAFETY: the driver writes one number.
    let output = unsafe { call(&raw mut version) };
    Ok((output == 0).then_some(version))
}

/// What a call writes into the place it is given.
fn output<T>(empty: T, call: impl FnOnce(*mut T) -> CallResult<()>) -> CallResult<T> {
    let mut place = empty;
    call(&raw mut place)?;
    Ok(place)
}

/// What a call writes into two places.
fn outputs<T: Copy>(empty: T, call: impl FnOnce(*mut T, *mut T) -> CallResult<()>) -> CallResult<(T, T)> {
    let (mut first, mut second) = (empty, empty);
    call(&raw mut first, &raw mut second)?;
    Ok((first, second))
}

/// The driver itself, devices, contexts.
impl Api {
    /// Whether the process exits, so that every call is refused.
    pub(crate) fn is_exiting(&self) -> bool {
        self.exiting.load(Relaxed)
    }

    pub(crate) fn init(&self) -> CallResult<()> {
        // SAFETY: without conditions.
        unsafe { self.cuInit(0) }
    }

    /// The driver's name for an answer; it stays where it is for as long as the library is loaded, which is for good.
    pub(crate) fn error_name(&self, code: c_int) -> Option<&'static str> {
        if self.is_exiting() {
            return None;
        }
        let mut name: *const c_char = ptr::null();
        // SAFETY: the driver writes one pointer, and knows what to do with a number it does not know.
        let known = unsafe { (self.error_name)(code, &raw mut name) } == 0 && !name.is_null();
        if !known {
            return None;
        }
        // SAFETY: what the driver names a code with is a terminated string in its own read-only data.
        unsafe { CStr::from_ptr(name) }.to_str().ok()
    }

    pub(crate) fn device_count(&self) -> CallResult<c_int> {
        // SAFETY: the driver writes one number.
        output(0, |count| unsafe { self.cuDeviceGetCount(count) })
    }

    pub(crate) fn device(&self, ordinal: c_int) -> CallResult<CUdevice> {
        // SAFETY: the driver writes one handle.
        output(0, |device| unsafe { self.cuDeviceGet(device, ordinal) })
    }

    pub(crate) fn device_name(&self, device: CUdevice) -> CallResult<[c_char; 256]> {
        // SAFETY: the driver writes at most 256 characters, the last of them zero.
        output([0; 256], |name| unsafe { self.cuDeviceGetName(name.cast(), 256, device) })
    }

    pub(crate) fn device_uuid(&self, device: CUdevice) -> CallResult<CUuuid> {
        // SAFETY: the driver writes 16 bytes.
        output(CUuuid { bytes: [0; 16] }, |uuid| unsafe { self.cuDeviceGetUuid(uuid, device) })
    }

    pub(crate) fn device_total(&self, device: CUdevice) -> CallResult<usize> {
        // SAFETY: the driver writes one number.
        output(0, |bytes| unsafe { self.cuDeviceTotalMem(bytes, device) })
    }

    pub(crate) fn device_attribute(&self, attribute: CUdevice_attribute, device: CUdevice) -> CallResult<c_int> {
        // SAFETY: the driver writes one number.
        output(0, |value| unsafe { self.cuDeviceGetAttribute(value, attribute, device) })
    }

    pub(crate) fn primary_retain(&self, device: CUdevice) -> CallResult<CUcontext> {
        // SAFETY: the driver writes one handle.
        output(ptr::null_mut(), |context| unsafe { self.cuDevicePrimaryCtxRetain(context, device) })
    }

    /// # Safety
    /// The context was retained here, and nothing of it is used any more unless somebody else retains it.
    pub(crate) unsafe fn primary_release(&self, device: CUdevice) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuDevicePrimaryCtxRelease(device) }
    }

    pub(crate) fn current(&self) -> CallResult<CUcontext> {
        // SAFETY: the driver writes one handle.
        output(ptr::null_mut(), |context| unsafe { self.cuCtxGetCurrent(context) })
    }

    /// # Safety
    /// `context` is null or a live context.
    pub(crate) unsafe fn set_current(&self, context: CUcontext) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuCtxSetCurrent(context) }
    }

    /// The least and the most urgent priority a stream of the current context may have.
    pub(crate) fn stream_priorities(&self) -> CallResult<(c_int, c_int)> {
        // SAFETY: the driver writes two numbers.
        outputs(0, |least, greatest| unsafe { self.cuCtxGetStreamPriorityRange(least, greatest) })
    }

    /// Puts the thread into a capture mode and answers the one it was in.
    pub(crate) fn exchange_capture_mode(&self, mode: c_uint) -> CallResult<c_uint> {
        // SAFETY: the driver reads and writes one number, which is as wide as the enumeration.
        output(mode, |mode| unsafe { self.cuThreadExchangeStreamCaptureMode(mode.cast()) })
    }
}
