//! Pools of stream-ordered memory.

use crate::arguments::{In, Out};
use crate::handle::{Handle, Kind, of, pointer};
use crate::process::Process;
use crate::state::Pool;
use crate::status::{CUresult, CallResult};
use crate::types::{
    CUdevice, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUmemPool_attribute, CUmemPoolProps, CUmemoryPool,
};
use bursar_core::Bytes;
use std::ffi::{c_int, c_void};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

impl Process {
    /// Returns a pool by its handle.
    pub(crate) fn pool(&self, pool: CUmemoryPool) -> CallResult<Pool> {
        self.state().pools.get(&of(pool)).copied().ok_or(INVALID)
    }

    /// Returns the pool that a device had first, which is made when it is first needed.
    fn default_pool(&self, ordinal: usize) -> CallResult<Handle> {
        if let Some(pool) = self.state().default_pools.get(&ordinal) {
            return Ok(*pool);
        }
        let device = self.devices[ordinal].id;
        let sim = self.sim().pool_create(device)?;
        let mut state = self.state();
        let made = state.default_pools.get(&ordinal).copied();
        match made {
            // Another thread was faster.
            Some(pool) => {
                drop(state);
                self.sim().pool_destroy(sim)?;
                Ok(pool)
            }
            None => {
                let handle = state.new_handle(Kind::Pool);
                state.pools.insert(handle, Pool { sim, device, is_default: true, reuse: [1; 3] });
                state.default_pools.insert(ordinal, handle);
                Ok(handle)
            }
        }
    }

    /// Returns the pool that allocations on a device come from.
    pub(crate) fn current_pool(&self, ordinal: usize) -> CallResult<Handle> {
        let current = self.state().current_pools.get(&ordinal).copied();
        current.map_or_else(|| self.default_pool(ordinal), Ok)
    }
}

pub(crate) fn create(process: &Process, pool: Out<CUmemoryPool>, properties: In<CUmemPoolProps>) -> CallResult {
    pool.required()?;
    let properties = properties.get()?;
    let location = properties.location;
    if properties.allocType != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED
        || location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE
    {
        return Err(INVALID);
    }
    if properties.handleTypes != 0 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let device = process.device(location.id).map_err(|_| INVALID)?.id;
    let sim = process.sim().pool_create(device)?;
    if properties.maxSize > 0 {
        // In pages, of which a pool takes whole ones.
        let limit = (properties.maxSize as u64).checked_next_multiple_of(2 << 20).unwrap_or(u64::MAX);
        process.sim().pool_set_limit(sim, Bytes(limit))?;
    }
    let mut state = process.state();
    let handle = state.new_handle(Kind::Pool);
    state.pools.insert(handle, Pool { sim, device, is_default: false, reuse: [1; 3] });
    drop(state);
    pool.set(pointer(handle))
}

/// Destroys a pool, which ends with its last allocation. The device that has it now gets back the one it had first.
pub(crate) fn destroy(process: &Process, pool: CUmemoryPool) -> CallResult {
    let mut state = process.state();
    let found = state.pools.get(&of(pool)).filter(|pool| !pool.is_default).copied().ok_or(INVALID)?;
    state.pools.remove(&of(pool));
    state.current_pools.retain(|_, current| *current != of(pool));
    drop(state);
    Ok(process.sim().pool_destroy(found.sim)?)
}

pub(crate) fn trim(process: &Process, pool: CUmemoryPool, keep: usize) -> CallResult {
    let pool = process.pool(pool)?;
    Ok(process.sim().pool_trim(pool.sim, Bytes(keep as u64))?)
}

pub(crate) fn get_attribute(
    process: &Process,
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: Out<c_void>,
) -> CallResult {
    let found = process.pool(pool)?;
    let usage = process.sim().pool_usage(found.sim)?;
    let bytes = match attribute {
        CUmemPool_attribute(1..=3) => {
            return value.typed::<c_int>().set(found.reuse[attribute.0 as usize - 1]);
        }
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => usage.threshold,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => usage.reserved,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => usage.reserved_high,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => usage.used,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH => usage.used_high,
        _ => return Err(INVALID),
    };
    value.typed::<u64>().set(bytes.get())
}

pub(crate) fn set_attribute(
    process: &Process,
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: Out<c_void>,
) -> CallResult {
    let found = process.pool(pool)?;
    match attribute {
        CUmemPool_attribute(1..=3) => {
            let is_allowed = value.typed::<c_int>().get()?;
            if let Some(pool) = process.state().pools.get_mut(&of(pool)) {
                pool.reuse[attribute.0 as usize - 1] = c_int::from(is_allowed != 0);
            }
            Ok(())
        }
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => {
            let keep = value.typed::<u64>().get()?;
            Ok(process.sim().pool_set_threshold(found.sim, Bytes(keep))?)
        }
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH => {
            match value.typed::<u64>().get()? {
                0 => Ok(process.sim().pool_reset_high(found.sim)?),
                _ => Err(INVALID),
            }
        }
        _ => Err(INVALID),
    }
}

/// Checks the devices that may reach a pool. All of them reach each other, so there is nothing to grant.
pub(crate) fn set_access(
    process: &Process,
    pool: CUmemoryPool,
    access: In<CUmemAccessDesc>,
    count: usize,
) -> CallResult {
    let pool = process.pool(pool)?;
    for index in 0..count {
        let wanted = access.at(index)?;
        if wanted.location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(INVALID);
        }
        let is_own = process.device(wanted.location.id)?.id == pool.device;
        let takes_away = wanted.flags != CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        if is_own && takes_away {
            return Err(INVALID);
        }
    }
    Ok(())
}

pub(crate) fn get_access(
    process: &Process,
    flags: Out<CUmemAccess_flags>,
    pool: CUmemoryPool,
    location: Out<CUmemLocation>,
) -> CallResult {
    flags.required()?;
    process.pool(pool)?;
    let location = location.get()?;
    if location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(INVALID);
    }
    process.device(location.id)?;
    flags.set(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
}

pub(crate) fn get_default(process: &Process, pool: Out<CUmemoryPool>, device: CUdevice) -> CallResult {
    pool.required()?;
    process.device(device)?;
    pool.set(pointer(process.default_pool(device as usize)?))
}

pub(crate) fn get_current(process: &Process, pool: Out<CUmemoryPool>, device: CUdevice) -> CallResult {
    pool.required()?;
    process.device(device)?;
    pool.set(pointer(process.current_pool(device as usize)?))
}

pub(crate) fn set_current(process: &Process, device: CUdevice, pool: CUmemoryPool) -> CallResult {
    let id = process.device(device)?.id;
    if process.pool(pool)?.device != id {
        return Err(INVALID);
    }
    process.state().current_pools.insert(device as usize, of(pool));
    Ok(())
}
