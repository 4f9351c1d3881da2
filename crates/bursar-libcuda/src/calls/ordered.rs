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

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

fn allocate_from(
    process: &Process,
    pointer: Out<CUdeviceptr>,
    bytes: usize,
    pool: Handle,
    target: Target,
) -> CallResult {
    let sim_pool = process.state().pools.get(&pool).ok_or(INVALID)?.sim;
    let at = process.sim().allocate_from_pool(target.on.device, target.on.raw, sim_pool, bytes as u64)?.0;
    record(process, at, bytes as u64, Taken::StreamOrdered { pool }, target.on.device, target.context);
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

/// Frees memory at this point of a stream. Only memory that was allocated in stream order can be freed so.
pub(crate) fn free(process: &Process, default: DefaultStream, pointer: CUdeviceptr, stream: CUstream) -> CallResult {
    let target = process.stream(default, stream)?;
    let mut state = process.state();
    let found = state.allocations.get(&pointer).copied().ok_or(INVALID)?;
    if !matches!(found.taken, Taken::StreamOrdered { .. }) {
        return Err(INVALID);
    }
    state.allocations.remove(&pointer);
    drop(state);
    port::free_async(process.sim(), target.on, pointer).inspect_err(|_| {
        process.state().allocations.insert(pointer, found);
    })
}
