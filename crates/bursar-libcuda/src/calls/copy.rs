//! Copies of linear memory. Those without a stream run on a default stream, and wait where the driver waits.

use crate::arguments::{Host, HostSource};
use crate::host_functions;
use crate::port::{self, StreamOn};
use crate::process::Process;
use crate::resolve::DefaultStream;
use crate::status::{CUresult, CallResult};
use crate::types::{CUcontext, CUdeviceptr, CUstream};

/// Copies host memory to memory that devices reach: their own, and host memory that is pinned or managed.
fn upload(process: &Process, on: StreamOn, dst: CUdeviceptr, src: HostSource, bytes: u64) -> CallResult {
    let is_host = process.state().is_host_address(dst);
    match is_host {
        true if src.as_ptr().is_null() => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        true => host_functions::copy_on_host(process, on, Host::unified(dst), src, bytes),
        false => port::copy_to_device(process.sim(), on, dst, src, bytes),
    }
}

/// Copies memory that devices reach to the host.
fn download(process: &Process, on: StreamOn, dst: Host, src: CUdeviceptr, bytes: u64) -> CallResult {
    let is_host = process.state().is_host_address(src);
    match is_host {
        true if dst.as_ptr().is_null() => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        true => host_functions::copy_on_host(process, on, dst, HostSource::unified(src), bytes),
        false => port::copy_to_host(process.sim(), on, dst, src, bytes),
    }
}

pub(crate) fn to_device(
    process: &Process,
    default: DefaultStream,
    dst: CUdeviceptr,
    src: HostSource,
    bytes: usize,
) -> CallResult {
    let on = process.default_stream(default)?.on;
    upload(process, on, dst, src, bytes as u64)?;
    process.wait(on)
}

pub(crate) fn to_device_async(
    process: &Process,
    default: DefaultStream,
    dst: CUdeviceptr,
    src: HostSource,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    let on = process.stream(default, stream)?.on;
    upload(process, on, dst, src, bytes as u64)
}

pub(crate) fn to_host(
    process: &Process,
    default: DefaultStream,
    dst: Host,
    src: CUdeviceptr,
    bytes: usize,
) -> CallResult {
    let on = process.default_stream(default)?.on;
    download(process, on, dst, src, bytes as u64)?;
    process.wait(on)
}

pub(crate) fn to_host_async(
    process: &Process,
    default: DefaultStream,
    dst: Host,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    let on = process.stream(default, stream)?.on;
    download(process, on, dst, src, bytes as u64)
}

pub(crate) fn on_device(
    process: &Process,
    default: DefaultStream,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
) -> CallResult {
    let on = process.default_stream(default)?.on;
    between_devices(process, on, dst, src, bytes as u64)
}

/// Copies between addresses that devices reach: their own memory, and host memory that is pinned or managed.
fn between_devices(process: &Process, on: StreamOn, dst: CUdeviceptr, src: CUdeviceptr, bytes: u64) -> CallResult {
    let is_host = {
        let state = process.state();
        state.is_host_address(dst) || state.is_host_address(src)
    };
    match is_host {
        true => unified(process, on, dst, src, bytes).map(drop),
        false => port::copy_on_device(process.sim(), on, dst, src, bytes),
    }
}

pub(crate) fn on_device_async(
    process: &Process,
    default: DefaultStream,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    let on = process.stream(default, stream)?.on;
    between_devices(process, on, dst, src, bytes as u64)
}

/// Copies between addresses of any kind. Returns whether the host takes part.
pub(crate) fn unified(
    process: &Process,
    on: StreamOn,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: u64,
) -> CallResult<bool> {
    let (is_to_device, is_from_device) = {
        let state = process.state();
        (state.is_device_address(dst), state.is_device_address(src))
    };
    match (is_to_device, is_from_device) {
        (true, true) => port::copy_on_device(process.sim(), on, dst, src, bytes).map(|()| false),
        (true, false) => port::copy_to_device(process.sim(), on, dst, HostSource::unified(src), bytes).map(|()| true),
        (false, true) => port::copy_to_host(process.sim(), on, Host::unified(dst), src, bytes).map(|()| true),
        (false, false) if dst == 0 || src == 0 => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        (false, false) => {
            let (dst, src) = (Host::unified(dst), HostSource::unified(src));
            host_functions::copy_on_host(process, on, dst, src, bytes).map(|()| true)
        }
    }
}

pub(crate) fn any(
    process: &Process,
    default: DefaultStream,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
) -> CallResult {
    let on = process.default_stream(default)?.on;
    match unified(process, on, dst, src, bytes as u64)? {
        true => process.wait(on),
        false => Ok(()),
    }
}

pub(crate) fn any_async(
    process: &Process,
    default: DefaultStream,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    let on = process.stream(default, stream)?.on;
    unified(process, on, dst, src, bytes as u64).map(drop)
}

/// Checks that both contexts of a copy between devices exist.
fn check_peers(process: &Process, to: CUcontext, from: CUcontext) -> CallResult {
    process.context_or_current(to)?;
    process.context_or_current(from).map(drop)
}

pub(crate) fn peer(
    process: &Process,
    default: DefaultStream,
    dst: CUdeviceptr,
    to: CUcontext,
    src: CUdeviceptr,
    from: CUcontext,
    bytes: usize,
) -> CallResult {
    let on = process.default_stream(default)?.on;
    check_peers(process, to, from)?;
    port::copy_on_device(process.sim(), on, dst, src, bytes as u64)
}

#[allow(clippy::too_many_arguments, reason = "the parameters of CUDA's manual")]
pub(crate) fn peer_async(
    process: &Process,
    default: DefaultStream,
    dst: CUdeviceptr,
    to: CUcontext,
    src: CUdeviceptr,
    from: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    let on = process.stream(default, stream)?.on;
    check_peers(process, to, from)?;
    port::copy_on_device(process.sim(), on, dst, src, bytes as u64)
}
