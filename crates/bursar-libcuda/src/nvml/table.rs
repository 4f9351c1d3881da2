//! The entry points of NVML: every name and signature, written once.
#![allow(unsafe_code)]
#![allow(non_snake_case, reason = "the names of NVML's manual")]

use super::devices::{self, Device, Memory, MemoryV2, Pci, ProcessV1, ProcessV2};
use super::{NvmlResult, NvmlReturn};
use crate::arguments::{In, Out};
use std::ffi::{c_char, c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes a call, out of which nothing unwinds.
fn call(body: impl FnOnce() -> NvmlResult) -> NvmlReturn {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => NvmlReturn::SUCCESS,
        Ok(Err(status)) => status,
        Err(payload) => {
            // Dropping the payload may panic too.
            std::mem::forget(payload);
            NvmlReturn::UNKNOWN
        }
    }
}

macro_rules! entry_points {
    ($($symbol:ident($($arg:ident: $type:ty),*) = $body:path;)*) => { $(
        /// # Safety
        /// As NVML's manual says.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $symbol($($arg: $type),*) -> NvmlReturn {
            call(|| $body($($arg),*))
        }
    )* };
}

entry_points! {
    nvmlInit() = devices::init;
    nvmlInit_v2() = devices::init;
    nvmlInitWithFlags(flags: c_uint) = devices::init_with_flags;
    nvmlShutdown() = devices::shutdown;
    nvmlSystemGetDriverVersion(version: Out<c_char>, length: c_uint) = devices::driver_version;
    nvmlSystemGetNVMLVersion(version: Out<c_char>, length: c_uint) = devices::nvml_version;
    nvmlSystemGetCudaDriverVersion(version: Out<c_int>) = devices::cuda_version;
    nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) = devices::cuda_version;
    nvmlDeviceGetCount(count: Out<c_uint>) = devices::count;
    nvmlDeviceGetCount_v2(count: Out<c_uint>) = devices::count;
    nvmlDeviceGetHandleByIndex(index: c_uint, device: Out<Device>) = devices::by_index;
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Device>) = devices::by_index;
    nvmlDeviceGetHandleByUUID(uuid: In<c_char>, device: Out<Device>) = devices::by_uuid;
    nvmlDeviceGetHandleByPciBusId(id: In<c_char>, device: Out<Device>) = devices::by_pci_bus_id;
    nvmlDeviceGetHandleByPciBusId_v2(id: In<c_char>, device: Out<Device>) = devices::by_pci_bus_id;
    nvmlDeviceGetIndex(device: Device, index: Out<c_uint>) = devices::index;
    nvmlDeviceGetName(device: Device, name: Out<c_char>, length: c_uint) = devices::name;
    nvmlDeviceGetUUID(device: Device, uuid: Out<c_char>, length: c_uint) = devices::uuid;
    nvmlDeviceGetPciInfo_v3(device: Device, info: Out<Pci>) = devices::pci_info;
    nvmlDeviceGetMemoryInfo(device: Device, memory: Out<Memory>) = devices::memory;
    nvmlDeviceGetMemoryInfo_v2(device: Device, memory: Out<MemoryV2>) = devices::memory_v2;
    nvmlDeviceGetComputeRunningProcesses(device: Device, count: Out<c_uint>, places: Out<ProcessV1>) =
        devices::processes_v1;
    nvmlDeviceGetComputeRunningProcesses_v2(device: Device, count: Out<c_uint>, places: Out<ProcessV2>) =
        devices::processes_v2;
    nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: Out<c_uint>, places: Out<ProcessV2>) =
        devices::processes_v2;
    nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device, count: Out<c_uint>, places: Out<ProcessV2>) =
        devices::no_processes;
}

/// # Safety
/// As NVML's manual says.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlErrorString(status: NvmlReturn) -> *const c_char {
    status.text().as_ptr()
}
