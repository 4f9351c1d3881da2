//! Copies of linear memory. Those without a stream run on a default stream, and wait where the driver waits.

use crate::arguments::{Host, HostSource};
use crate::host_functions;
use crate::port::{self, StreamOn};
use crate::process::Process;
use crate::resolve::DefaultStream;
use crate::state::State;
use crate::status::{CUresult, CallResult};
use crate::types::{CUcontext, CUdeviceptr, CUstream};

/// One side of a copy, as the program names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Host memory, pinned or not.
    Host(u64),
    /// Memory that devices reach: their own, and host memory that is pinned or managed.
    Device(u64),
    /// Memory of any kind.
    Unified(u64),
}

/// The place of the bytes of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Device,
    /// Host memory that devices reach too.
    Reached,
    /// Host memory that is the program's alone.
    Pageable,
}

impl Side {
    /// Returns the side `bytes` further on.
    pub(crate) fn offset(self, bytes: u64) -> CallResult<Self> {
        let moved = |at: u64| at.checked_add(bytes).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE);
        Ok(match self {
            Self::Host(at) => Self::Host(moved(at)?),
            Self::Device(at) => Self::Device(moved(at)?),
            Self::Unified(at) => Self::Unified(moved(at)?),
        })
    }

    pub(crate) fn address(self) -> u64 {
        let (Self::Host(at) | Self::Device(at) | Self::Unified(at)) = self;
        at
    }

    /// Finds the bytes, all of which must be in one piece of memory that the program may name so. What is said to be a
    /// device's and is not known here is left to the simulator, which refuses and reports it.
    fn place(self, state: &State, bytes: u64) -> CallResult<Place> {
        let at = self.address();
        match (state.reached_at(at), self) {
            (Some((start, size)), _) if bytes <= start + size - at => Ok(Place::Reached),
            (Some(_), _) => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            (None, Self::Device(_)) => Ok(Place::Device),
            (None, Self::Unified(_)) if state.is_device_address(at) => Ok(Place::Device),
            (None, Self::Host(_)) if state.is_device_address(at) && bytes > 0 => {
                Err(CUresult::CUDA_ERROR_INVALID_VALUE)
            }
            (None, _) if at == 0 => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            (None, _) => Ok(Place::Pageable),
        }
    }
}

/// Copies between two sides. Returns whether the host takes part.
pub(crate) fn between(process: &Process, on: StreamOn, to: Side, from: Side, bytes: u64) -> CallResult<bool> {
    let (into, out_of) = {
        let state = process.state();
        (to.place(&state, bytes)?, from.place(&state, bytes)?)
    };
    let (sim, dst, src) = (process.sim(), to.address(), from.address());
    match (into, out_of) {
        (Place::Device, Place::Device) => port::copy_on_device(sim, on, dst, src, bytes)?,
        (Place::Device, _) => port::copy_to_device(sim, on, dst, HostSource::unified(src), bytes)?,
        (_, Place::Device) => port::copy_to_host(sim, on, Host::unified(dst), src, bytes)?,
        (_, Place::Reached) => {
            host_functions::copy_on_host(process, on, Host::unified(dst), HostSource::unified(src), bytes)?;
        }
        // The program may change what only it reaches as soon as the call returns.
        (_, Place::Pageable) => {
            host_functions::copy_staged(process, on, Host::unified(dst), HostSource::unified(src), bytes)?;
        }
    }
    if into == Place::Pageable && out_of != Place::Device {
        process.wait(on)?;
    }
    Ok(into != Place::Device || out_of != Place::Device)
}

pub(crate) fn to_device(
    process: &Process,
    default: DefaultStream,
    dst: CUdeviceptr,
    src: HostSource,
    bytes: usize,
) -> CallResult {
    let on = process.default_stream(default)?.on;
    between(process, on, Side::Device(dst), Side::Host(src.address()), bytes as u64)?;
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
    between(process, on, Side::Device(dst), Side::Host(src.address()), bytes as u64).map(drop)
}

pub(crate) fn to_host(
    process: &Process,
    default: DefaultStream,
    dst: Host,
    src: CUdeviceptr,
    bytes: usize,
) -> CallResult {
    let on = process.default_stream(default)?.on;
    between(process, on, Side::Host(dst.address()), Side::Device(src), bytes as u64)?;
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
    between(process, on, Side::Host(dst.address()), Side::Device(src), bytes as u64).map(drop)
}

pub(crate) fn on_device(
    process: &Process,
    default: DefaultStream,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
) -> CallResult {
    let on = process.default_stream(default)?.on;
    between(process, on, Side::Device(dst), Side::Device(src), bytes as u64).map(drop)
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
    between(process, on, Side::Device(dst), Side::Device(src), bytes as u64).map(drop)
}

pub(crate) fn any(
    process: &Process,
    default: DefaultStream,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
) -> CallResult {
    let on = process.default_stream(default)?.on;
    match between(process, on, Side::Unified(dst), Side::Unified(src), bytes as u64)? {
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
    between(process, on, Side::Unified(dst), Side::Unified(src), bytes as u64).map(drop)
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
    between(process, on, Side::Device(dst), Side::Device(src), bytes as u64).map(drop)
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
    between(process, on, Side::Device(dst), Side::Device(src), bytes as u64).map(drop)
}
