//! Memory that processes share: physical memory by file descriptors, and linear memory by handles that any process can open.
//!
//! The devices need a name, since others are not the same in two processes. Memory counts for the process that made it, and
//! for as long as that process holds it.

use crate::arguments::{Host, Out};
use crate::handle::Kind;
use crate::memory_file::{self, Description};
use crate::port;
use crate::process::{Process, VisibleDevice};
use crate::state::{Allocation, Opened, Pages, Properties, Taken};
use crate::status::{CUresult, CallResult};
use crate::types::{
    CUdeviceptr, CUipcMemHandle, CUmemAllocationFlags, CUmemAllocationHandleType, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemLocationType,
};
use bursar_core::{DevicePtr, DeviceUuid, Driver};
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::fs::File;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The kind of shareable handle that there is: a POSIX file descriptor.
const DESCRIPTOR: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Returns the visible device with an identity, and its ordinal.
fn identified(process: &Process, uuid: DeviceUuid) -> CallResult<(usize, &VisibleDevice)> {
    let mut devices = process.devices.iter().enumerate();
    devices.find(|(_, device)| device.facts.uuid == uuid).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
}

fn check_kind(kind: CUmemAllocationHandleType) -> CallResult {
    match kind {
        DESCRIPTOR => Ok(()),
        CUmemAllocationHandleType(0) => Err(INVALID),
        _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
    }
}

/// Stores a file descriptor of physical memory that was created to be shared.
pub(crate) fn export(
    process: &Process,
    shareable: Out<c_void>,
    pages: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> CallResult {
    let place = shareable.typed::<c_int>().required()?;
    let state = process.state();
    let found = state.pages(pages)?;
    check_kind(kind)?;
    if flags != 0 || found.properties.handle_types & kind.0 == 0 {
        return Err(INVALID);
    }
    let file = state.files.get(&pages).ok_or(INVALID)?;
    place.set(memory_file::export(file)?)
}

/// Returns the physical memory of a file descriptor, which is the value of the pointer and stays the program's. Memory that
/// this process has already is the same, once more retained. Memory that it made and has released counts again.
pub(crate) fn import(
    process: &Process,
    pages: Out<CUmemGenericAllocationHandle>,
    shareable: Host,
    kind: CUmemAllocationHandleType,
) -> CallResult {
    pages.required()?;
    check_kind(kind)?;
    let descriptor = c_int::try_from(shareable.address()).map_err(|_| INVALID)?;
    let file = memory_file::import(descriptor)?;
    let (description, identity) = (memory_file::describe(&file)?, memory_file::identity(&file)?);
    let (ordinal, device) = identified(process, description.device)?;
    let is_own = {
        let mut state = process.state();
        let had = state.pages_of_files.get(&identity).copied();
        if let Some((handle, had)) = had.and_then(|handle| Some((handle, state.pages.get_mut(&handle)?))) {
            had.references += 1;
            return pages.set(handle);
        }
        state.own_files.contains(&identity)
    };
    let own = file.try_clone().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
    let raw = match is_own {
        true => process.sim().pages_create_in_file(device.id, description.bytes, own)?,
        false => process.sim().pages_import(device.id, description.bytes, own)?,
    };
    let properties = Properties {
        handle_types: kind.0,
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal as c_int },
        flags: CUmemAllocationFlags { compressionType: 0, gpuDirectRDMACapable: 0, usage: 0, reserved: [0; 4] },
    };
    let mut state = process.state();
    let handle = state.new_handle(Kind::Pages);
    state.pages.insert(handle, Pages { device: device.id, raw, references: 1, mappings: 0, properties });
    state.pages_of_files.insert(identity, handle);
    state.files.insert(handle, file);
    drop(state);
    pages.set(handle)
}

/// Stores a handle of linear memory that another process can open while this one holds the memory.
pub(crate) fn ipc_get(process: &Process, handle: Out<CUipcMemHandle>, pointer: CUdeviceptr) -> CallResult {
    process.current()?;
    handle.required()?;
    let (start, found) = {
        let state = process.state();
        let (start, found) = state.allocation_at(pointer).ok_or(INVALID)?;
        (start, *found)
    };
    if found.taken != Taken::Linear {
        return Err(INVALID);
    }
    let device = process.devices.iter().find(|device| device.id == found.device).ok_or(INVALID)?;
    if !device.facts.shared {
        crate::message::once("only devices with a name (BURSAR_SIM_DEVICES=1x80GiB@name) are shared by processes");
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let description = Description { device: device.facts.uuid, bytes: found.bytes.next_multiple_of(2 << 20) };
    let mut state = process.state();
    let descriptor = match state.shared.get(&start) {
        Some(file) => memory_file::descriptor(file),
        None => {
            let file = memory_file::create(description)?;
            let own = file.try_clone().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
            process.sim().share_allocation(found.device, DevicePtr(start), found.bytes, own)?;
            let descriptor = memory_file::descriptor(&file);
            state.shared.insert(start, file);
            descriptor
        }
    };
    let mut reserved = [0; 64];
    reserved[..32].copy_from_slice(&description.to_bytes());
    reserved[32..36].copy_from_slice(&std::process::id().to_le_bytes());
    reserved[36..40].copy_from_slice(&descriptor.to_le_bytes());
    reserved[40..48].copy_from_slice(&found.number.to_le_bytes());
    handle.set(CUipcMemHandle { reserved })
}

/// Returns the process and the descriptor that a handle names.
fn parsed(handle: &CUipcMemHandle) -> CallResult<(Description, u32, c_int)> {
    let description = handle.reserved.first_chunk().and_then(Description::from_bytes).ok_or(INVALID)?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| handle.reserved[at + index]));
    Ok((description, word(32), word(36).cast_signed()))
}

/// Maps the memory of a handle of another process. The same handle has the same address, until it was closed as often.
pub(crate) fn ipc_open(
    process: &Process,
    pointer: Out<CUdeviceptr>,
    handle: CUipcMemHandle,
    flags: c_uint,
) -> CallResult {
    let current = process.current()?;
    pointer.required()?;
    let (description, owner, descriptor) = parsed(&handle)?;
    if flags > 1 {
        return Err(INVALID);
    }
    if owner == std::process::id() {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    let again = process.state().opened.iter_mut().find(|(_, opened)| opened.handle == handle.reserved).map(
        |(start, opened)| {
            opened.count += 1;
            *start
        },
    );
    if let Some(start) = again {
        return pointer.set(start);
    }
    let (_, device) = identified(process, description.device)?;
    let file = memory_file::open(owner, descriptor)?;
    if memory_file::describe(&file)? != description {
        return Err(INVALID);
    }
    let (sim, bytes) = (process.sim(), description.bytes);
    let start = sim.address_reserve(device.id, bytes, 0)?.0;
    let raw = map_file(process, device, start, bytes, file).inspect_err(|_| {
        // The failure that counts is the first.
        let _ = port::address_release(sim, device.id, start, bytes);
    })?;
    let mut state = process.state();
    let number = state.new_number();
    state.give_out(start, bytes);
    let (id, context) = (device.id, current.context);
    state.allocations.insert(start, Allocation { bytes, taken: Taken::Imported, device: id, context, number });
    state.opened.insert(start, Opened { handle: handle.reserved, device: id, raw, bytes, count: 1 });
    drop(state);
    pointer.set(start)
}

/// Maps the bytes of a file at addresses that are reserved.
fn map_file(
    process: &Process,
    device: &VisibleDevice,
    start: u64,
    bytes: u64,
    file: File,
) -> CallResult<bursar_core::RawPages> {
    let sim = process.sim();
    let raw = sim.pages_import(device.id, bytes, file)?;
    port::pages_map(sim, device.id, start, bytes, raw)?;
    port::pages_allow(sim, device.id, start, bytes)?;
    Ok(raw)
}

pub(crate) fn ipc_close(process: &Process, pointer: CUdeviceptr) -> CallResult {
    process.current()?;
    let mut state = process.state();
    let opened = state.opened.get_mut(&pointer).ok_or(INVALID)?;
    opened.count -= 1;
    if opened.count > 0 {
        return Ok(());
    }
    let opened = state.opened.remove(&pointer).ok_or(INVALID)?;
    state.allocations.remove(&pointer);
    drop(state);
    unmap(process, pointer, &opened)
}

/// Takes away the memory of a handle that nobody has opened any more.
pub(crate) fn unmap(process: &Process, start: u64, opened: &Opened) -> CallResult {
    let (sim, device) = (process.sim(), opened.device);
    port::pages_unmap(sim, device, start, opened.bytes)?;
    port::pages_release(sim, device, opened.raw)?;
    port::address_release(sim, device, start, opened.bytes)
}
