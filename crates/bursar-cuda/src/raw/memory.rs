//! Calls about memory: device memory, host memory, and pages.
#![allow(unsafe_code)]

use super::sys::{
    CUdevice, CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemPool_attribute, CUstream,
};
use super::{Api, CallResult, output, outputs};
use std::ffi::{c_uint, c_void};
use std::ptr;

/// Device memory and host memory.
impl Api {
    pub(crate) fn memory_info(&self) -> CallResult<(usize, usize)> {
        // SAFETY: the driver writes two numbers.
        outputs(0, |free, total| unsafe { self.cuMemGetInfo(free, total) })
    }

    pub(crate) fn allocate(&self, bytes: usize) -> CallResult<CUdeviceptr> {
        // SAFETY: the driver writes one address.
        output(0, |ptr| unsafe { self.cuMemAlloc(ptr, bytes) })
    }

    /// # Safety
    /// `ptr` came from [`allocate`](Self::allocate), and nothing uses it any more.
    pub(crate) unsafe fn free(&self, ptr: CUdeviceptr) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemFree(ptr) }
    }

    /// # Safety
    /// `stream` is live.
    pub(crate) unsafe fn allocate_async(&self, bytes: usize, stream: CUstream) -> CallResult<CUdeviceptr> {
        // SAFETY: the driver writes one address; for the rest, the caller's own promise.
        output(0, |ptr| unsafe { self.cuMemAllocAsync(ptr, bytes, stream) })
    }

    /// # Safety
    /// `ptr` came from [`allocate_async`](Self::allocate_async); `stream` is live and ordered after every use of it.
    pub(crate) unsafe fn free_async(&self, ptr: CUdeviceptr, stream: CUstream) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemFreeAsync(ptr, stream) }
    }

    /// Has a device's current pool give back what it has reserved and does not use, but for what it is set to keep.
    pub(crate) fn trim_pool(&self, device: CUdevice) -> CallResult<()> {
        // SAFETY: the driver writes one handle.
        let pool = output(ptr::null_mut(), |pool| unsafe { self.cuDeviceGetMemPool(pool, device) })?;
        let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the value of this attribute is a number of 64 bits.
        let keep = output(0_u64, |keep| unsafe { self.cuMemPoolGetAttribute(pool, threshold, keep.cast()) })?;
        // SAFETY: a pool that the driver has just returned.
        unsafe { self.cuMemPoolTrimTo(pool, usize::try_from(keep).unwrap_or(usize::MAX)) }
    }

    pub(crate) fn host_allocate(&self, bytes: usize, flags: c_uint) -> CallResult<*mut c_void> {
        // SAFETY: the driver writes one address.
        output(ptr::null_mut(), |ptr| unsafe { self.cuMemHostAlloc(ptr, bytes, flags) })
    }

    /// # Safety
    /// `ptr` came from [`host_allocate`](Self::host_allocate), and nothing uses it any more.
    pub(crate) unsafe fn host_free(&self, ptr: *mut c_void) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemFreeHost(ptr) }
    }

    /// # Safety
    /// The range is mapped, and stays so until [`host_unregister`](Self::host_unregister).
    pub(crate) unsafe fn host_register(&self, ptr: *mut c_void, bytes: usize, flags: c_uint) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemHostRegister(ptr, bytes, flags) }
    }

    /// # Safety
    /// `ptr` was registered, and the device no longer uses it.
    pub(crate) unsafe fn host_unregister(&self, ptr: *mut c_void) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemHostUnregister(ptr) }
    }

    pub(crate) fn host_device_pointer(&self, host: *mut c_void) -> CallResult<CUdeviceptr> {
        // SAFETY: the driver writes one address, and looks `host` up among those that are pinned.
        output(0, |ptr| unsafe { self.cuMemHostGetDevicePointer(ptr, host, 0) })
    }
}

/// Pages: physical memory, and the addresses it is mapped at.
impl Api {
    /// Returns the least size of pages of this kind.
    pub(crate) fn page_granularity(&self, kind: &CUmemAllocationProp) -> CallResult<usize> {
        let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: the driver reads one structure and writes one number.
        output(0, |bytes| unsafe { self.cuMemGetAllocationGranularity(bytes, kind, minimum) })
    }

    pub(crate) fn address_reserve(&self, bytes: usize, align: usize) -> CallResult<CUdeviceptr> {
        // SAFETY: the driver writes one address.
        output(0, |ptr| unsafe { self.cuMemAddressReserve(ptr, bytes, align, 0, 0) })
    }

    /// # Safety
    /// Exactly the range that [`address_reserve`](Self::address_reserve) returned, with nothing mapped in it.
    pub(crate) unsafe fn address_free(&self, ptr: CUdeviceptr, bytes: usize) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemAddressFree(ptr, bytes) }
    }

    pub(crate) fn pages_create(
        &self,
        bytes: usize,
        kind: &CUmemAllocationProp,
    ) -> CallResult<CUmemGenericAllocationHandle> {
        // SAFETY: the driver reads one structure and writes one handle.
        output(0, |pages| unsafe { self.cuMemCreate(pages, bytes, kind, 0) })
    }

    /// # Safety
    /// `pages` came from [`pages_create`](Self::pages_create) and is released once.
    pub(crate) unsafe fn pages_release(&self, pages: CUmemGenericAllocationHandle) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemRelease(pages) }
    }

    /// # Safety
    /// The range is reserved, nothing is mapped in it, and it is as long as `pages`.
    pub(crate) unsafe fn pages_map(
        &self,
        ptr: CUdeviceptr,
        bytes: usize,
        pages: CUmemGenericAllocationHandle,
    ) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemMap(ptr, bytes, 0, pages, 0) }
    }

    /// # Safety
    /// Pages are mapped in all of the range.
    pub(crate) unsafe fn pages_allow(
        &self,
        ptr: CUdeviceptr,
        bytes: usize,
        access: &CUmemAccessDesc,
    ) -> CallResult<()> {
        // SAFETY: the driver reads one structure; for the rest, the caller's own promise.
        unsafe { self.cuMemSetAccess(ptr, bytes, access, 1) }
    }

    /// # Safety
    /// Pages are mapped in all of the range, and nothing uses it any more.
    pub(crate) unsafe fn pages_unmap(&self, ptr: CUdeviceptr, bytes: usize) -> CallResult<()> {
        // SAFETY: the caller's own promise.
        unsafe { self.cuMemUnmap(ptr, bytes) }
    }
}
