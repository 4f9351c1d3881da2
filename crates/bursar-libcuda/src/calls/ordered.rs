//! Memory that is allocated and freed in stream order.

use crate::arguments::Out;
use crate::calls::memory::record;
use crate::port;
use crate::process::Process;
use crate::resolve::DefaultStream;
use crate::state::Taken;
use crate::status::{CUresult, CallResult};
use crate::types::{CUdeviceptr, CUstream};

pub(crate) fn allocate(
    process: &Process,
    default: DefaultStream,
    pointer: Out<CUdeviceptr>,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    let target = process.stream(default, stream)?;
    pointer.required()?;
    let at = port::allocate_async(process.sim(), target.on, bytes as u64)?.0;
    record(process, at, bytes as u64, Taken::StreamOrdered, target.on.device, target.context);
    pointer.set(at)
}

pub(crate) fn free(process: &Process, default: DefaultStream, pointer: CUdeviceptr, stream: CUstream) -> CallResult {
    let target = process.stream(default, stream)?;
    if pointer == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let freed = process.state().allocations.remove(&pointer).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let done = match freed.taken {
        Taken::StreamOrdered => port::free_async(process.sim(), target.on, pointer),
        Taken::Linear => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    done.inspect_err(|_| {
        process.state().allocations.insert(pointer, freed);
    })
}
