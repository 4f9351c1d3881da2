//! The table of entry points that programs get a wrapper for.
//!
//! What is not listed is the driver's own function, at no cost.

use crate::entry::Entry;
use crate::{arrays, contexts, graphs, handles, info, linear, nvml, pools};
use std::ffi::{CStr, c_int};

/// A version of a function.
#[derive(Debug)]
pub(crate) struct Row {
    /// The name that `cuGetProcAddress` knows it by; the driver exports it under the symbol of its entry.
    pub(crate) name: &'static CStr,
    /// The version of CUDA that it came with, as 1000 times the major and 10 times the minor number.
    pub(crate) since: c_int,
    /// True for the form whose default stream is the thread's own.
    pub(crate) per_thread: bool,
    pub(crate) entry: &'static Entry,
}

impl Row {
    const fn new(name: &'static CStr, since: c_int, entry: &'static Entry) -> Self {
        Self { name, since, per_thread: false, entry }
    }

    const fn per_thread(name: &'static CStr, since: c_int, entry: &'static Entry) -> Self {
        Self { name, since, per_thread: true, entry }
    }
}

/// Every version of every function that is wrapped.
#[rustfmt::skip]
pub(crate) static ROWS: &[Row] = &[
    Row::new(c"cuMemAlloc", 2_000, &linear::cuMemAlloc::ENTRY),
    Row::new(c"cuMemAlloc", 3_020, &linear::cuMemAlloc_v2::ENTRY),
    Row::new(c"cuMemAllocPitch", 2_000, &linear::cuMemAllocPitch::ENTRY),
    Row::new(c"cuMemAllocPitch", 3_020, &linear::cuMemAllocPitch_v2::ENTRY),
    Row::new(c"cuMemAllocManaged", 6_000, &linear::cuMemAllocManaged::ENTRY),
    Row::new(c"cuMemFree", 2_000, &linear::cuMemFree::ENTRY),
    Row::new(c"cuMemFree", 3_020, &linear::cuMemFree_v2::ENTRY),
    Row::new(c"cuMemCreate", 10_020, &handles::cuMemCreate::ENTRY),
    Row::new(c"cuMemRelease", 10_020, &handles::cuMemRelease::ENTRY),
    Row::new(c"cuMemMap", 10_020, &handles::cuMemMap::ENTRY),
    Row::new(c"cuMemUnmap", 10_020, &handles::cuMemUnmap::ENTRY),
    Row::new(c"cuMemImportFromShareableHandle", 10_020, &handles::cuMemImportFromShareableHandle::ENTRY),
    Row::new(c"cuMemRetainAllocationHandle", 11_000, &handles::cuMemRetainAllocationHandle::ENTRY),
    Row::new(c"cuMemAllocAsync", 11_020, &pools::cuMemAllocAsync::ENTRY),
    Row::per_thread(c"cuMemAllocAsync", 11_020, &pools::cuMemAllocAsync_ptsz::ENTRY),
    Row::new(c"cuMemAllocFromPoolAsync", 11_020, &pools::cuMemAllocFromPoolAsync::ENTRY),
    Row::per_thread(c"cuMemAllocFromPoolAsync", 11_020, &pools::cuMemAllocFromPoolAsync_ptsz::ENTRY),
    Row::new(c"cuMemFreeAsync", 11_020, &pools::cuMemFreeAsync::ENTRY),
    Row::per_thread(c"cuMemFreeAsync", 11_020, &pools::cuMemFreeAsync_ptsz::ENTRY),
    Row::new(c"cuMemPoolCreate", 11_020, &pools::cuMemPoolCreate::ENTRY),
    Row::new(c"cuMemPoolDestroy", 11_020, &pools::cuMemPoolDestroy::ENTRY),
    Row::new(c"cuMemPoolTrimTo", 11_020, &pools::cuMemPoolTrimTo::ENTRY),
    Row::new(c"cuMemPoolImportFromShareableHandle", 11_020, &pools::cuMemPoolImportFromShareableHandle::ENTRY),
    Row::new(c"cuStreamSynchronize", 2_000, &pools::cuStreamSynchronize::ENTRY),
    Row::per_thread(c"cuStreamSynchronize", 7_000, &pools::cuStreamSynchronize_ptsz::ENTRY),
    Row::new(c"cuEventSynchronize", 2_000, &pools::cuEventSynchronize::ENTRY),
    Row::new(c"cuCtxSynchronize", 2_000, &pools::cuCtxSynchronize::ENTRY),
    Row::new(c"cuArrayCreate", 2_000, &arrays::cuArrayCreate::ENTRY),
    Row::new(c"cuArrayCreate", 3_020, &arrays::cuArrayCreate_v2::ENTRY),
    Row::new(c"cuArray3DCreate", 2_000, &arrays::cuArray3DCreate::ENTRY),
    Row::new(c"cuArray3DCreate", 3_020, &arrays::cuArray3DCreate_v2::ENTRY),
    Row::new(c"cuArrayDestroy", 2_000, &arrays::cuArrayDestroy::ENTRY),
    Row::new(c"cuMipmappedArrayCreate", 5_000, &arrays::cuMipmappedArrayCreate::ENTRY),
    Row::new(c"cuMipmappedArrayDestroy", 5_000, &arrays::cuMipmappedArrayDestroy::ENTRY),
    Row::new(c"cuGraphInstantiate", 10_000, &graphs::cuGraphInstantiate::ENTRY),
    Row::new(c"cuGraphInstantiate", 11_000, &graphs::cuGraphInstantiate_v2::ENTRY),
    Row::new(c"cuGraphInstantiate", 12_000, &graphs::cuGraphInstantiateWithFlags::ENTRY),
    Row::new(c"cuGraphInstantiateWithFlags", 11_040, &graphs::cuGraphInstantiateWithFlags::ENTRY),
    Row::new(c"cuGraphInstantiateWithParams", 12_000, &graphs::cuGraphInstantiateWithParams::ENTRY),
    Row::per_thread(c"cuGraphInstantiateWithParams", 12_000, &graphs::cuGraphInstantiateWithParams_ptsz::ENTRY),
    Row::new(c"cuGraphUpload", 11_010, &graphs::cuGraphUpload::ENTRY),
    Row::per_thread(c"cuGraphUpload", 11_010, &graphs::cuGraphUpload_ptsz::ENTRY),
    Row::new(c"cuGraphLaunch", 10_000, &graphs::cuGraphLaunch::ENTRY),
    Row::per_thread(c"cuGraphLaunch", 10_000, &graphs::cuGraphLaunch_ptsz::ENTRY),
    Row::new(c"cuGraphExecDestroy", 10_000, &graphs::cuGraphExecDestroy::ENTRY),
    Row::new(c"cuDeviceGraphMemTrim", 11_040, &graphs::cuDeviceGraphMemTrim::ENTRY),
    Row::new(c"cuDevicePrimaryCtxRetain", 7_000, &contexts::cuDevicePrimaryCtxRetain::ENTRY),
    Row::new(c"cuDevicePrimaryCtxRelease", 7_000, &contexts::cuDevicePrimaryCtxRelease::ENTRY),
    Row::new(c"cuDevicePrimaryCtxRelease", 11_000, &contexts::cuDevicePrimaryCtxRelease_v2::ENTRY),
    Row::new(c"cuDevicePrimaryCtxReset", 7_000, &contexts::cuDevicePrimaryCtxReset::ENTRY),
    Row::new(c"cuDevicePrimaryCtxReset", 11_000, &contexts::cuDevicePrimaryCtxReset_v2::ENTRY),
    Row::new(c"cuCtxCreate", 2_000, &contexts::cuCtxCreate::ENTRY),
    Row::new(c"cuCtxCreate", 3_020, &contexts::cuCtxCreate_v2::ENTRY),
    Row::new(c"cuCtxCreate", 11_040, &contexts::cuCtxCreate_v3::ENTRY),
    Row::new(c"cuCtxCreate", 12_050, &contexts::cuCtxCreate_v4::ENTRY),
    Row::new(c"cuCtxDestroy", 2_000, &contexts::cuCtxDestroy::ENTRY),
    Row::new(c"cuCtxDestroy", 4_000, &contexts::cuCtxDestroy_v2::ENTRY),
    Row::new(c"cuMemGetInfo", 2_000, &info::cuMemGetInfo::ENTRY),
    Row::new(c"cuMemGetInfo", 3_020, &info::cuMemGetInfo_v2::ENTRY),
    Row::new(c"cuDeviceTotalMem", 2_000, &info::cuDeviceTotalMem::ENTRY),
    Row::new(c"cuDeviceTotalMem", 3_020, &info::cuDeviceTotalMem_v2::ENTRY),
    Row::new(c"nvmlDeviceGetMemoryInfo", 0, &nvml::nvmlDeviceGetMemoryInfo::ENTRY),
    Row::new(c"nvmlDeviceGetMemoryInfo_v2", 0, &nvml::nvmlDeviceGetMemoryInfo_v2::ENTRY),
    Row::new(c"nvmlDeviceGetComputeRunningProcesses", 0, &nvml::nvmlDeviceGetComputeRunningProcesses::ENTRY),
    Row::new(c"nvmlDeviceGetComputeRunningProcesses_v2", 0, &nvml::nvmlDeviceGetComputeRunningProcesses_v2::ENTRY),
    Row::new(c"nvmlDeviceGetComputeRunningProcesses_v3", 0, &nvml::nvmlDeviceGetComputeRunningProcesses_v3::ENTRY),
];

/// Returns the entry that the driver exports under a symbol.
pub(crate) fn by_symbol(symbol: &CStr) -> Option<&'static Entry> {
    ROWS.iter().map(|row| row.entry).find(|entry| entry.symbol == symbol)
}

/// Returns whether an entry tells the program how much memory there is.
pub(crate) fn answers_about_memory(entry: &Entry) -> bool {
    let answers = [
        &info::cuMemGetInfo::ENTRY,
        &info::cuMemGetInfo_v2::ENTRY,
        &info::cuDeviceTotalMem::ENTRY,
        &info::cuDeviceTotalMem_v2::ENTRY,
    ];
    answers.iter().any(|answer| std::ptr::eq(*answer, entry))
}
