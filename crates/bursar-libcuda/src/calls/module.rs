//! Device code, which cannot run here: every call that loads or launches it is refused, and the reason is written once.

use crate::message;
use crate::process::Process;
use crate::resolve::DefaultStream;
use crate::status::{CUresult, CallResult};
use std::ffi::c_void;

fn refuse() -> CallResult {
    message::once(
        "device code cannot be loaded or launched: memory, streams and copies are simulated, kernels are not",
    );
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

/// A pointer that is never followed.
type Pointer = *mut c_void;

/// Refuses to load device code into a module, whether or not it makes sense.
pub(crate) fn load(process: &Process, module: Pointer, code: Pointer) -> CallResult {
    process.current()?;
    if module.is_null() || code.is_null() { Err(CUresult::CUDA_ERROR_INVALID_VALUE) } else { refuse() }
}

pub(crate) fn load_with_options(
    process: &Process,
    module: Pointer,
    code: Pointer,
    _: u32,
    _: Pointer,
    _: Pointer,
) -> CallResult {
    load(process, module, code)
}

/// Refuses to load device code into a library, which belongs to no context.
#[allow(clippy::too_many_arguments, reason = "the parameters of CUDA's manual")]
pub(crate) fn load_library(
    _: &Process,
    library: Pointer,
    code: Pointer,
    _: Pointer,
    _: Pointer,
    _: u32,
    _: Pointer,
    _: Pointer,
    _: u32,
) -> CallResult {
    if library.is_null() || code.is_null() { Err(CUresult::CUDA_ERROR_INVALID_VALUE) } else { refuse() }
}

#[allow(clippy::too_many_arguments, reason = "the parameters of CUDA's manual")]
pub(crate) fn launch(
    process: &Process,
    _: DefaultStream,
    function: Pointer,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: Pointer,
    _: Pointer,
    _: Pointer,
) -> CallResult {
    process.current()?;
    if function.is_null() { Err(CUresult::CUDA_ERROR_INVALID_HANDLE) } else { refuse() }
}

pub(crate) fn launch_with_config(
    process: &Process,
    _: DefaultStream,
    config: Pointer,
    function: Pointer,
    _: Pointer,
    _: Pointer,
) -> CallResult {
    process.current()?;
    match (config.is_null(), function.is_null()) {
        (true, _) => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        (_, true) => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
        _ => refuse(),
    }
}
