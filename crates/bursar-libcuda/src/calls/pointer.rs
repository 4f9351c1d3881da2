//! Questions about addresses.

use crate::arguments::{In, Out};
use crate::handle::{Handle, pointer};
use crate::process::Process;
use crate::state::{State, Taken};
use crate::status::{CUresult, CallResult};
use crate::types::{CUcontext, CUdeviceptr, CUmemoryPool, CUmemorytype, CUpointer_attribute};
use bursar_core::DeviceId;
use std::ffi::{c_int, c_uint, c_void};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

pub(crate) fn address_range(
    process: &Process,
    base: Out<CUdeviceptr>,
    bytes: Out<usize>,
    pointer: CUdeviceptr,
) -> CallResult {
    process.current()?;
    let found = find(&process.state(), pointer).filter(|found| !found.is_pinned);
    let found = found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    base.set_if_wanted(found.start);
    bytes.set_if_wanted(found.bytes as usize);
    Ok(())
}

/// The memory at an address.
#[derive(Clone, Copy, Debug)]
struct Found {
    start: u64,
    bytes: u64,
    /// The device of the memory; none for pinned memory, which all of them reach.
    device: Option<DeviceId>,
    context: Option<Handle>,
    number: u64,
    pool: Option<Handle>,
    is_managed: bool,
    /// True if other processes can open it.
    is_linear: bool,
    is_pinned: bool,
    handle_types: c_uint,
    access: c_uint,
}

fn find(state: &State, at: u64) -> Option<Found> {
    if let Some((start, allocation)) = state.allocation_at(at) {
        let pool = match allocation.taken {
            Taken::StreamOrdered { pool } => Some(pool),
            _ => None,
        };
        return Some(Found {
            start,
            bytes: allocation.bytes,
            device: Some(allocation.device),
            context: Some(allocation.context).filter(|_| pool.is_none()),
            number: allocation.number,
            pool,
            is_managed: matches!(allocation.taken, Taken::Managed { .. }),
            is_linear: allocation.taken == Taken::Linear,
            is_pinned: false,
            handle_types: 0,
            access: 3,
        });
    }
    if let Some((start, mapping)) = state.mapping_at(at) {
        let pages = state.pages.get(&mapping.pages)?;
        return Some(Found {
            start,
            bytes: mapping.bytes,
            device: Some(pages.device),
            context: None,
            number: mapping.pages,
            pool: None,
            is_managed: false,
            is_linear: false,
            is_pinned: false,
            handle_types: pages.properties.handle_types,
            access: mapping.access,
        });
    }
    let (start, bytes, _) = state.pinned_at(at)?;
    Some(Found {
        start,
        bytes,
        device: None,
        context: None,
        number: start,
        pool: None,
        is_managed: false,
        is_linear: false,
        is_pinned: true,
        handle_types: 0,
        access: 3,
    })
}

/// Stores an attribute, in the type that it has in CUDA's manual.
fn store(process: &Process, found: &Found, attribute: CUpointer_attribute, at: u64, data: Out<c_void>) -> CallResult {
    let ordinal = found.device.and_then(|id| process.devices.iter().position(|device| device.id == id)).unwrap_or(0);
    let is_host = found.is_pinned || found.is_managed;
    match attribute {
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT => {
            let context = found.context.map_or(std::ptr::null_mut(), pointer);
            data.typed::<CUcontext>().set(context)
        }
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => data.typed::<CUmemorytype>().set(if found.is_pinned {
            CUmemorytype::CU_MEMORYTYPE_HOST
        } else {
            CUmemorytype::CU_MEMORYTYPE_DEVICE
        }),
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => data.typed::<CUdeviceptr>().set(at),
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER if is_host => data.typed::<u64>().set(at),
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => data.typed::<c_uint>().set(0),
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID => data.typed::<u64>().set(found.number),
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED => data.typed::<bool>().set(found.is_managed),
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => data.typed::<c_int>().set(ordinal as c_int),
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            data.typed::<bool>().set(found.is_linear)
        }
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => data.typed::<u64>().set(found.start),
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE => data.typed::<usize>().set(found.bytes as usize),
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_MAPPED => data.typed::<bool>().set(true),
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => {
            data.typed::<u64>().set(u64::from(found.handle_types))
        }
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => data.typed::<bool>().set(false),
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => data.typed::<c_uint>().set(found.access),
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => {
            let pool = found.pool.map_or(std::ptr::null_mut(), pointer);
            data.typed::<CUmemoryPool>().set(pool)
        }
        _ => Err(INVALID),
    }
}

pub(crate) fn attribute(
    process: &Process,
    data: Out<c_void>,
    attribute: CUpointer_attribute,
    pointer: CUdeviceptr,
) -> CallResult {
    process.current()?;
    let found = find(&process.state(), pointer).ok_or(INVALID)?;
    store(process, &found, attribute, pointer, data)
}

/// Stores several attributes. Those of an address that is not the driver's are zero.
pub(crate) fn attributes(
    process: &Process,
    count: c_uint,
    attributes: Out<CUpointer_attribute>,
    data: Out<Out<c_void>>,
    pointer: CUdeviceptr,
) -> CallResult {
    process.current()?;
    let found = find(&process.state(), pointer);
    for index in 0..count as usize {
        let (attribute, data) = (attributes.at(index)?.get()?, data.at(index)?.get()?);
        match &found {
            // An attribute that this memory has not is zero as well.
            Some(found) => match store(process, found, attribute, pointer, data) {
                Err(INVALID) => clear(attribute, data)?,
                stored => stored?,
            },
            None => clear(attribute, data)?,
        }
    }
    Ok(())
}

/// Stores the zero of an attribute's type.
fn clear(attribute: CUpointer_attribute, data: Out<c_void>) -> CallResult {
    match attribute.0 {
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17 => data.typed::<u64>().set(0),
        2 | 6 | 16 => data.typed::<c_uint>().set(0),
        9 => data.typed::<c_int>().set(-2),
        8 | 10 | 13 | 15 => data.typed::<bool>().set(false),
        _ => Err(INVALID),
    }
}

/// Accepts the wish that calls on memory wait for earlier work: everything here is complete or ordered already.
pub(crate) fn set_attribute(
    process: &Process,
    value: In<c_void>,
    attribute: CUpointer_attribute,
    pointer: CUdeviceptr,
) -> CallResult {
    process.current()?;
    find(&process.state(), pointer).ok_or(INVALID)?;
    if attribute != CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
        return Err(INVALID);
    }
    value.typed::<c_uint>().get().map(drop)
}
