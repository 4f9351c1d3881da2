//! Memory that is allocated and freed in stream order. It comes from pools.

use crate::arguments::Out;
use crate::calls::memory::record;
use crate::handle::{Handle, of};
use crate::port;
use crate::process::Process;
use crate::resolve::{DefaultStream, Target};
use crate::state::Taken;
use crate::status::{CUresult, CallResult};
use crate::types::{CUdeviceptr, CUmemoryPool, CUstream};
use bursar_core::DevicePtr;
use bursar_sim::CaptureStatus;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

fn allocate_from(
    process: &Process,
    pointer: Out<CUdeviceptr>,
    bytes: usize,
    pool: Handle,
    target: Target,
) -> CallResult {
    let found = *process.state().pools.get(&pool).ok_or(INVALID)?;
    let device = found.device;
    // Memory for another stream may have to be made, which captures forbid: so it was on an H200 with driver 580.
    if process.sim().capture_status(target.on.device, target.on.raw)? == CaptureStatus::None {
        process.check_captures()?;
    }
    let at = process.on_device(target.on, device, |on| {
        Ok(process.sim().allocate_from_pool(device, on.raw, found.sim, bytes as u64)?.0)
    })?;
    record(process, at, bytes as u64, Taken::StreamOrdered { pool }, device, target.context);
    pointer.set(at)
}

pub(crate) fn allocate(
    process: &Process,
    default: DefaultStream,
    pointer: Out<CUdeviceptr>,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    let target = process.stream(default, stream)?;
    pointer.required()?;
    let ordinal = process.state().context(target.context)?.ordinal;
    let pool = process.current_pool(ordinal)?;
    allocate_from(process, pointer, bytes, pool, target)
}

pub(crate) fn allocate_from_pool(
    process: &Process,
    default: DefaultStream,
    pointer: Out<CUdeviceptr>,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CallResult {
    let target = process.stream(default, stream)?;
    pointer.required()?;
    allocate_from(process, pointer, bytes, of(pool), target)
}

/// Frees memory at this point of a stream: memory that was allocated in stream order, or linear memory.
pub(crate) fn free(process: &Process, default: DefaultStream, pointer: CUdeviceptr, stream: CUstream) -> CallResult {
    let target = process.stream(default, stream)?;
    let mut state = process.state();
    let found = state.allocations.get(&pointer).copied().ok_or(INVALID)?;
    if !matches!(found.taken, Taken::StreamOrdered { .. } | Taken::Linear) {
        return Err(INVALID);
    }
    state.allocations.remove(&pointer);
    let file = state.shared.remove(&pointer);
    drop(state);
    let freed = process.on_device(target.on, found.device, |on| match found.taken {
        Taken::Linear => Ok(process.sim().free_direct_async(on.device, on.raw, DevicePtr(pointer))?),
        _ => port::free_async(process.sim(), on, pointer),
    });
    freed.inspect_err(|_| {
        let mut state = process.state();
        state.allocations.insert(pointer, found);
        state.shared.extend(file.map(|file| (pointer, file)));
    })
}
