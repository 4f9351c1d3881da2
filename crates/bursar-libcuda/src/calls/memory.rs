//! Linear memory, and how much there is.

use crate::arguments::Out;
use crate::handle::Handle;
use crate::port;
use crate::process::Process;
use crate::state::{Allocation, Taken};
use crate::status::{CUresult, CallResult};
use crate::types::CUdeviceptr;
use bursar_core::{DeviceId, Driver};

pub(crate) fn info(process: &Process, free: Out<usize>, total: Out<usize>) -> CallResult {
    let current = process.current()?;
    let memory = process.sim().memory(current.device)?;
    free.set_if_wanted(memory.free.get() as usize);
    total.set_if_wanted(memory.total.get() as usize);
    Ok(())
}

/// Records memory that was taken.
pub(crate) fn record(process: &Process, at: u64, bytes: u64, taken: Taken, device: DeviceId, context: Handle) {
    let mut state = process.state();
    let number = state.new_number();
    state.give_out(at, bytes);
    state.allocations.insert(at, Allocation { bytes, taken, device, context, number });
}

pub(crate) fn allocate(process: &Process, pointer: Out<CUdeviceptr>, bytes: usize) -> CallResult {
    let current = process.current()?;
    pointer.required()?;
    let at = process.sim().allocate(current.device, bytes as u64)?.0;
    record(process, at, bytes as u64, Taken::Linear, current.device, current.context);
    pointer.set(at)
}

/// Frees memory, whichever call took it, after waiting for the device. A null is freed at once.
pub(crate) fn free(process: &Process, pointer: CUdeviceptr) -> CallResult {
    let current = process.current()?;
    if pointer == 0 {
        return Ok(());
    }
    let freed = process.state().allocations.remove(&pointer).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let done = match freed.taken {
        Taken::Linear => port::free(process.sim(), freed.device, pointer),
        Taken::StreamOrdered => {
            let legacy = crate::process::Current { device: freed.device, ..current }.legacy();
            port::free_async(process.sim(), legacy, pointer).and_then(|()| process.wait(legacy))
        }
    };
    done.inspect_err(|_| {
        process.state().allocations.insert(pointer, freed);
    })
}
