//! Linear, pitched and managed memory, and how much there is.

use crate::arguments::{Host, Out};
use crate::handle::Handle;
use crate::port::{self, StreamOn};
use crate::process::Process;
use crate::resolve::DefaultStream;
use crate::state::{Allocation, Taken};
use crate::status::{CUresult, CallResult};
use crate::types::{CUdevice, CUdeviceptr, CUmem_advise, CUstream};
use bursar_core::{DeviceId, Driver, HostFlags, RawStream};
use std::ffi::c_uint;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The multiple of bytes by which the rows of pitched memory begin, as on the hardware that Bursar is measured on.
const PITCH: usize = 512;

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
    if !matches!(taken, Taken::Managed { .. }) {
        state.give_out(at, bytes);
    }
    state.allocations.insert(at, Allocation { bytes, taken, device, context, number });
}

pub(crate) fn allocate(process: &Process, pointer: Out<CUdeviceptr>, bytes: usize) -> CallResult {
    let current = process.current()?;
    process.check_captures()?;
    pointer.required()?;
    let at = process.sim().allocate(current.device, bytes as u64)?.0;
    record(process, at, bytes as u64, Taken::Linear, current.device, current.context);
    pointer.set(at)
}

pub(crate) fn allocate_pitch(
    process: &Process,
    pointer: Out<CUdeviceptr>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: c_uint,
) -> CallResult {
    process.current()?;
    pointer.required()?;
    pitch.required()?;
    if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
        return Err(INVALID);
    }
    let row = width.checked_next_multiple_of(PITCH).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let bytes = row.checked_mul(height).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    allocate(process, pointer, bytes)?;
    pitch.set(row)
}

/// Allocates memory that the host and every device reach. It counts as memory of the device at once, where hardware counts
/// the pages that the device has touched.
pub(crate) fn allocate_managed(
    process: &Process,
    pointer: Out<CUdeviceptr>,
    bytes: usize,
    flags: c_uint,
) -> CallResult {
    let current = process.current()?;
    process.check_captures()?;
    pointer.required()?;
    // Attached to all devices, or to the host.
    if !matches!(flags, 1 | 2) {
        return Err(INVALID);
    }
    let counted = process.sim().allocate(current.device, bytes as u64)?.0;
    let host = process.sim().host_allocate(current.device, bytes, HostFlags::default());
    let at = match host {
        Ok(host) => host.expose_provenance() as u64,
        Err(error) => {
            port::free(process.sim(), current.device, counted)?;
            return Err(error.into());
        }
    };
    record(process, at, bytes as u64, Taken::Managed { counted }, current.device, current.context);
    pointer.set(at)
}

/// Checks that a range lies in managed memory, and that a device exists; the host is -1.
fn check_managed(process: &Process, pointer: CUdeviceptr, bytes: usize, device: CUdevice) -> CallResult {
    if device != -1 {
        process.device(device)?;
    }
    let managed = process.state().managed_at(pointer);
    let is_inside = managed.is_some_and(|(start, size)| bytes as u64 <= start + size - pointer);
    if is_inside && bytes > 0 { Ok(()) } else { Err(INVALID) }
}

/// Accepts advice about managed memory, which is in one place here.
pub(crate) fn advise(
    process: &Process,
    pointer: CUdeviceptr,
    bytes: usize,
    advice: CUmem_advise,
    device: CUdevice,
) -> CallResult {
    process.current()?;
    let is_known = (CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY.0..=CUmem_advise::CU_MEM_ADVISE_UNSET_ACCESSED_BY.0)
        .contains(&advice.0);
    if is_known { check_managed(process, pointer, bytes, device) } else { Err(INVALID) }
}

/// Accepts that managed memory is moved in stream order; it is in one place here.
pub(crate) fn prefetch(
    process: &Process,
    default: DefaultStream,
    pointer: CUdeviceptr,
    bytes: usize,
    device: CUdevice,
    stream: CUstream,
) -> CallResult {
    process.stream(default, stream)?;
    check_managed(process, pointer, bytes, device)
}

/// Frees memory, whichever call took it, after waiting for the device. A null is freed at once.
pub(crate) fn free(process: &Process, pointer: CUdeviceptr) -> CallResult {
    process.current()?;
    process.check_captures()?;
    if pointer == 0 {
        return Ok(());
    }
    // Forgotten first: the address may be another thread's as soon as it is free.
    let (freed, file) = {
        let mut state = process.state();
        let freed = state.allocations.remove(&pointer).ok_or(INVALID)?;
        (freed, state.shared.remove(&pointer))
    };
    let done = give_back(process, pointer, &freed);
    if done.is_err() {
        let mut state = process.state();
        state.allocations.insert(pointer, freed);
        state.shared.extend(file.map(|file| (pointer, file)));
    }
    done
}

/// Gives back memory that nobody is told about any more.
pub(crate) fn give_back(process: &Process, at: u64, freed: &Allocation) -> CallResult {
    let (sim, device) = (process.sim(), freed.device);
    match freed.taken {
        Taken::Linear => port::free(sim, device, at),
        Taken::StreamOrdered { .. } => {
            let legacy = StreamOn { device, raw: RawStream::LEGACY };
            process.wait_for_device(device)?;
            // It may be in use where it was allocated from another device's pool.
            let ordinal = process.state().contexts.get(&freed.context).map(|context| context.ordinal);
            if let Some(other) = ordinal.map(|ordinal| process.devices[ordinal].id).filter(|other| *other != device) {
                process.wait_for_device(other)?;
            }
            port::free_async(sim, legacy, at)?;
            process.wait(legacy)
        }
        Taken::Imported => Err(INVALID),
        Taken::Managed { counted } => {
            port::free(sim, device, counted)?;
            port::host_free(sim, device, Host::unified(at))
        }
    }
}
