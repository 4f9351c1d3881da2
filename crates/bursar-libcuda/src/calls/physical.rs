//! Physical memory, reserved addresses, and mapping the one into the other.

use crate::arguments::{Host, In, Out};
use crate::handle::Kind;
use crate::memory_file::{self, Description};
use crate::message;
use crate::port;
use crate::process::Process;
use crate::process::VisibleDevice;
use crate::state::{Mapping, Pages, Properties, Reservation, State};
use crate::status::{CUresult, CallResult};
use crate::types::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationFlags, CUmemAllocationGranularity_flags,
    CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};
use bursar_core::{DeviceId, DeviceUuid, Driver, RawPages};
use std::ffi::{c_uint, c_ulonglong};
use std::fs::File;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The kinds of shareable handles: none, and POSIX file descriptors.
const HANDLE_TYPES: [c_uint; 2] = [0, 1];

/// Returns the device of a location.
fn located(process: &Process, location: CUmemLocation) -> CallResult<&VisibleDevice> {
    match location.type_ {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => process.device(location.id),
        _ => Err(INVALID),
    }
}

/// Returns the device of properties that make sense, and the size of its pages.
fn checked(process: &Process, properties: CUmemAllocationProp) -> CallResult<(&VisibleDevice, u64)> {
    if properties.type_ != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(INVALID);
    }
    if !HANDLE_TYPES.contains(&properties.requestedHandleTypes) {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let device = located(process, properties.location)?;
    let granularity = device.facts.capabilities.page_granularity.ok_or(CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
    Ok((device, granularity.get()))
}

pub(crate) fn granularity(
    process: &Process,
    bytes: Out<usize>,
    properties: In<CUmemAllocationProp>,
    option: CUmemAllocationGranularity_flags,
) -> CallResult {
    bytes.required()?;
    if option.0 > CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED.0 {
        return Err(INVALID);
    }
    let (_, granularity) = checked(process, properties.get()?)?;
    bytes.set(granularity as usize)
}

pub(crate) fn create(
    process: &Process,
    pages: Out<CUmemGenericAllocationHandle>,
    bytes: usize,
    properties: In<CUmemAllocationProp>,
    flags: c_ulonglong,
) -> CallResult {
    pages.required()?;
    let wanted = properties.get()?;
    let (device, _) = checked(process, wanted)?;
    if flags != 0 {
        return Err(INVALID);
    }
    let (bytes, device, uuid) = (bytes as u64, device.id, device.facts.uuid);
    let (raw, file) = match wanted.requestedHandleTypes {
        0 => (process.sim().pages_create(device, bytes)?, None),
        _ => create_in_file(process, device, uuid, bytes)?,
    };
    let properties = Properties {
        handle_types: wanted.requestedHandleTypes,
        location: wanted.location,
        flags: CUmemAllocationFlags { reserved: [0; 4], ..wanted.allocFlags },
    };
    let mut state = process.state();
    let handle = state.new_handle(Kind::Pages);
    state.pages.insert(handle, Pages { device, raw, references: 1, mappings: 0, properties });
    if let Some(file) = file {
        let identity = memory_file::identity(&file)?;
        state.pages_of_files.insert(identity, handle);
        state.own_files.insert(identity);
        state.files.insert(handle, file);
    }
    drop(state);
    pages.set(handle)
}

/// Creates physical memory that can be shared with other processes.
fn create_in_file(
    process: &Process,
    device: DeviceId,
    uuid: DeviceUuid,
    bytes: u64,
) -> CallResult<(RawPages, Option<File>)> {
    if bytes > process.sim().memory(device)?.total.get() {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    let file = memory_file::create(Description { device: uuid, bytes })?;
    let own = file.try_clone().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
    Ok((process.sim().pages_create_in_file(device, bytes, own)?, Some(file)))
}

/// Forgets physical memory that is released and mapped nowhere, and gives it back.
fn give_back_if_unused(process: &Process, mut state: std::sync::MutexGuard<'_, State>, handle: u64) -> CallResult {
    let is_unused = state.pages.get(&handle).is_some_and(|pages| pages.references == 0 && pages.mappings == 0);
    let unused = if is_unused { state.pages.remove(&handle) } else { None };
    if is_unused {
        state.files.remove(&handle);
        state.pages_of_files.retain(|_, pages| *pages != handle);
    }
    drop(state);
    match unused {
        Some(pages) => port::pages_release(process.sim(), pages.device, pages.raw),
        None => Ok(()),
    }
}

pub(crate) fn release(process: &Process, pages: CUmemGenericAllocationHandle) -> CallResult {
    let mut state = process.state();
    let found = state.pages.get_mut(&pages).filter(|pages| pages.references > 0).ok_or(INVALID)?;
    found.references -= 1;
    give_back_if_unused(process, state, pages)
}

pub(crate) fn reserve(
    process: &Process,
    pointer: Out<CUdeviceptr>,
    bytes: usize,
    align: usize,
    _wish: CUdeviceptr,
    flags: c_ulonglong,
) -> CallResult {
    pointer.required()?;
    if flags != 0 {
        return Err(INVALID);
    }
    // Addresses belong to a device here. Where none is current, they are those of the first.
    let device = process.current().map_or(process.devices[0].id, |current| current.device);
    let at = process.sim().address_reserve(device, bytes as u64, align as u64)?.0;
    let mut state = process.state();
    state.give_out(at, bytes as u64);
    state.reservations.insert(at, Reservation { bytes: bytes as u64, device });
    drop(state);
    pointer.set(at)
}

pub(crate) fn address_free(process: &Process, pointer: CUdeviceptr, bytes: usize) -> CallResult {
    let mut state = process.state();
    let found = state.reservations.get(&pointer).copied().filter(|found| found.bytes == bytes as u64);
    let found = found.ok_or(INVALID)?;
    port::address_release(process.sim(), found.device, pointer, bytes as u64)?;
    state.reservations.remove(&pointer);
    Ok(())
}

pub(crate) fn map(
    process: &Process,
    pointer: CUdeviceptr,
    bytes: usize,
    offset: usize,
    pages: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> CallResult {
    let bytes = bytes as u64;
    if offset != 0 || flags != 0 {
        return Err(INVALID);
    }
    let mut state = process.state();
    let found = *state.pages(pages)?;
    let (_, reservation) = state.reservation_at(pointer).ok_or(INVALID)?;
    if reservation.device != found.device {
        message::once("memory is mapped only at addresses that were reserved while its own device was current");
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    port::pages_map(process.sim(), found.device, pointer, bytes, found.raw)?;
    let access = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE.0;
    state.mappings.insert(pointer, Mapping { bytes, pages, access });
    if let Some(pages) = state.pages.get_mut(&pages) {
        pages.mappings += 1;
    }
    Ok(())
}

pub(crate) fn unmap(process: &Process, pointer: CUdeviceptr, bytes: usize) -> CallResult {
    let bytes = bytes as u64;
    let mut state = process.state();
    let (_, reservation) = state.reservation_at(pointer).ok_or(INVALID)?;
    port::pages_unmap(process.sim(), reservation.device, pointer, bytes)?;
    let starts: Vec<u64> = state.mappings.range(pointer..pointer + bytes).map(|(start, _)| *start).collect();
    let unmapped: Vec<Mapping> = starts.iter().filter_map(|start| state.mappings.remove(start)).collect();
    for mapping in &unmapped {
        if let Some(pages) = state.pages.get_mut(&mapping.pages) {
            pages.mappings -= 1;
        }
    }
    drop(state);
    unmapped.into_iter().try_for_each(|mapping| give_back_if_unused(process, process.state(), mapping.pages))
}

pub(crate) fn set_access(
    process: &Process,
    pointer: CUdeviceptr,
    bytes: usize,
    access: In<CUmemAccessDesc>,
    count: usize,
) -> CallResult {
    let bytes = bytes as u64;
    if count == 0 {
        return Err(INVALID);
    }
    for index in 0..count {
        let wanted = access.at(index)?;
        let device = located(process, wanted.location)?.id;
        if !matches!(wanted.flags.0, 0 | 1 | 3) {
            return Err(INVALID);
        }
        let mut state = process.state();
        let (_, reservation) = state.reservation_at(pointer).ok_or(INVALID)?;
        let owner = reservation.device;
        if device != owner {
            // All devices reach each other, so that there is nothing to grant.
            continue;
        }
        if wanted.flags == CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE {
            port::pages_allow(process.sim(), owner, pointer, bytes)?;
        } else {
            message::once("access for reading alone, and access taken back, are not simulated");
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let end = pointer.checked_add(bytes).ok_or(INVALID)?;
        state.mappings.range_mut(pointer..end).for_each(|(_, mapping)| mapping.access = wanted.flags.0);
    }
    Ok(())
}

pub(crate) fn get_access(
    process: &Process,
    flags: Out<c_ulonglong>,
    location: In<CUmemLocation>,
    pointer: CUdeviceptr,
) -> CallResult {
    flags.required()?;
    let device = located(process, location.get()?)?.id;
    let state = process.state();
    let (_, mapping) = state.mapping_at(pointer).ok_or(INVALID)?;
    let is_owner = state.pages.get(&mapping.pages).is_some_and(|pages| pages.device == device);
    flags.set(if is_owner { c_ulonglong::from(mapping.access) } else { 0 })
}

/// Finds the memory that is mapped at an address, and retains it.
pub(crate) fn retain(process: &Process, pages: Out<CUmemGenericAllocationHandle>, address: Host) -> CallResult {
    pages.required()?;
    let mut state = process.state();
    let (_, mapping) = state.mapping_at(address.address()).ok_or(INVALID)?;
    let handle = mapping.pages;
    state.pages.get_mut(&handle).ok_or(INVALID)?.references += 1;
    pages.set(handle)
}

pub(crate) fn properties(
    process: &Process,
    properties: Out<CUmemAllocationProp>,
    pages: CUmemGenericAllocationHandle,
) -> CallResult {
    properties.required()?;
    let found = process.state().pages(pages)?.properties;
    properties.set(CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: found.handle_types,
        location: found.location,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: found.flags,
    })
}
