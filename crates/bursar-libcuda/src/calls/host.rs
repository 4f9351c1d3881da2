//! Pinned host memory.

use crate::arguments::{Host, Out};
use crate::port::{self, is_mapped};
use crate::process::Process;
use crate::status::{CUresult, CallResult};
use crate::types::CUdeviceptr;
use bursar_core::{Driver, HostFlags};
use std::ffi::{c_uint, c_void};

/// The flags of `cuMemHostAlloc`: portable, mapped, write-combined.
const ALLOC_FLAGS: c_uint = 7;
/// The flags of `cuMemHostRegister`: portable, mapped, I/O memory, read-only.
const REGISTER_FLAGS: c_uint = 15;

pub(crate) fn allocate(process: &Process, pointer: Out<*mut c_void>, bytes: usize) -> CallResult {
    allocate_with_flags(process, pointer, bytes, 0)
}

pub(crate) fn allocate_with_flags(
    process: &Process,
    pointer: Out<*mut c_void>,
    bytes: usize,
    flags: c_uint,
) -> CallResult {
    let current = process.current()?;
    process.check_captures()?;
    pointer.required()?;
    if flags & !ALLOC_FLAGS != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let kind = HostFlags { write_combined: flags & 4 != 0 };
    let host = process.sim().host_allocate(current.device, bytes, kind)?;
    process.state().pinned.insert(host.addr() as u64, (bytes as u64, flags));
    pointer.set(host.cast())
}

pub(crate) fn free(process: &Process, host: Host) -> CallResult {
    let current = process.current()?;
    process.check_captures()?;
    port::host_free(process.sim(), current.device, host)?;
    process.state().pinned.remove(&host.address());
    Ok(())
}

pub(crate) fn register(process: &Process, host: Host, bytes: usize, flags: c_uint) -> CallResult {
    let current = process.current()?;
    process.check_captures()?;
    if flags & !REGISTER_FLAGS != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if process.state().is_device_address(host.address()) || !is_mapped(host, bytes) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    port::host_register(process.sim(), current.device, host, bytes)?;
    process.state().pinned.insert(host.address(), (bytes as u64, flags));
    Ok(())
}

pub(crate) fn unregister(process: &Process, host: Host) -> CallResult {
    let current = process.current()?;
    process.check_captures()?;
    if host.as_ptr().is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    port::host_unregister(process.sim(), current.device, host)?;
    process.state().pinned.remove(&host.address());
    Ok(())
}

pub(crate) fn device_pointer(process: &Process, pointer: Out<CUdeviceptr>, host: Host, flags: c_uint) -> CallResult {
    let current = process.current()?;
    pointer.required()?;
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    pointer.set(process.sim().host_device_pointer(current.device, host.as_ptr())?.0)
}

pub(crate) fn flags(process: &Process, flags: Out<c_uint>, host: Host) -> CallResult {
    process.current()?;
    flags.required()?;
    let found = process.state().pinned_at(host.address()).map(|(_, _, flags)| flags);
    // Memory is always mapped and portable where addresses are unified.
    flags.set(found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)? | 3)
}
