//! Questions about addresses.

use crate::arguments::Out;
use crate::process::Process;
use crate::status::{CUresult, CallResult};
use crate::types::CUdeviceptr;

pub(crate) fn address_range(
    process: &Process,
    base: Out<CUdeviceptr>,
    bytes: Out<usize>,
    pointer: CUdeviceptr,
) -> CallResult {
    process.current()?;
    let state = process.state();
    let allocation = state.allocation_at(pointer).map(|(start, allocation)| (start, allocation.bytes));
    let found = allocation.or_else(|| state.mapping_at(pointer).map(|(start, mapping)| (start, mapping.bytes)));
    let (start, size) = found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    base.set_if_wanted(start);
    bytes.set_if_wanted(size as usize);
    Ok(())
}
