//! Initialisation, versions and errors.

use crate::arguments::Out;
use crate::process;
use crate::status::{CUresult, CallResult};
use std::ffi::{c_char, c_int, c_uint};

/// The version of CUDA whose driver this is.
pub(crate) const VERSION: c_int = 12080;

pub(crate) fn init(flags: c_uint) -> CallResult {
    match flags {
        0 => process::initialise(),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) fn driver_version(version: Out<c_int>) -> CallResult {
    version.set(VERSION)
}

pub(crate) fn error_name(error: CUresult, name: Out<*const c_char>) -> CallResult {
    let found = error.texts().map(|(name, _)| name.as_ptr());
    name.set(found.unwrap_or(std::ptr::null()))?;
    found.map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

pub(crate) fn error_string(error: CUresult, text: Out<*const c_char>) -> CallResult {
    let found = error.texts().map(|(_, text)| text.as_ptr());
    text.set(found.unwrap_or(std::ptr::null()))?;
    found.map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}
