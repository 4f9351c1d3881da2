//! The calls of the CUDA driver, one thin method each. No other module makes them.
//!
//! A method adds nothing to its call but a variable for the output. Calls that need a current context do not choose one;
//! [`device`](crate::device) does.
#![allow(unsafe_code)]

pub(crate) mod enforced;
#[cfg(test)]
pub(crate) mod fake;
mod graphs;
mod memory;
mod streams;
pub(crate) mod sys;
mod table;

pub(crate) use table::{Api, Failure};

use libloading::Library;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use sys::{CUcontext, CUdevice, CUdevice_attribute, CUstreamCaptureMode, CUuuid};

type CallResult<T> = Result<T, Failure>;

/// Returns the version of the library, as 1000 × major + 10 × minor, or `None` where the call fails. Every driver has this
/// call, and it works before `cuInit` too.
pub(crate) fn driver_version(library: &Library) -> Result<Option<c_int>, &'static str> {
    const SYMBOL: &str = "cuDriverGetVersion";
    // SAFETY: the type is the driver's own.
    let found = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(SYMBOL) };
    let call = found.map_err(|_| SYMBOL)?;
    let mut version = 0;
    // SAFETY: the driver writes one number.
    let output = unsafe { call(&raw mut version) };
    Ok((output == 0).then_some(version))
}

/// Returns the value that a call writes to its output.
fn output<T>(empty: T, call: impl FnOnce(*mut T) -> CallResult<()>) -> CallResult<T> {
    let mut place = empty;
    call(&raw mut place)?;
    Ok(place)
}

/// Returns the values that a call writes to its two outputs.
fn outputs<T: Copy>(empty: T, call: impl FnOnce(*mut T, *mut T) -> CallResult<()>) -> CallResult<(T, T)> {
    let (mut first, mut second) = (empty, empty);
    call(&raw mut first, &raw mut second)?;
    Ok((first, second))
}

/// The driver itself, devices, contexts.
impl Api {
    /// Returns whether the process is exiting, so that every call is refused.
    pub(crate) fn is_exiting(&self) -> bool {
        self.exiting.load(Relaxed)
    }

    pub(crate) fn init(&self) -> CallResult<()> {
        // SAFETY: the call has no conditions.
        unsafe { self.cuInit(0) }
    }

    /// Returns the driver's name for a status code. It stays valid while the library is loaded, which is never unloaded.
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
        // SAFETY: the driver's name for a code is a terminated string in its own read-only data.
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
    /// The context was retained here, and nothing of it is used any more unless another library retains it.
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

    /// Returns the least and the most urgent priority of streams of the current context.
    pub(crate) fn stream_priorities(&self) -> CallResult<(c_int, c_int)> {
        // SAFETY: the driver writes two numbers.
        outputs(0, |least, greatest| unsafe { self.cuCtxGetStreamPriorityRange(least, greatest) })
    }

    /// Sets the capture mode of the thread, and returns the previous one.
    pub(crate) fn exchange_capture_mode(&self, mode: CUstreamCaptureMode) -> CallResult<CUstreamCaptureMode> {
        // SAFETY: the driver reads and writes one number.
        output(mode, |mode| unsafe { self.cuThreadExchangeStreamCaptureMode(mode) })
    }
}
