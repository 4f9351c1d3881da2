//! Devices, their memory, and who holds it.

use super::{NvmlResult, NvmlReturn};
use crate::arguments::{In, Out};
use crate::calls::version::VERSION;
use crate::handle::{Kind, handle, pointer};
use crate::machine::{Machine, machine};
use crate::process::is_forked;
use bursar_core::{Bytes, DeviceFacts, DeviceId, Driver, MemoryInfo};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A handle of a device, which points at nothing.
pub(crate) type Device = *mut crate::types::NvmlDevice;

/// The version of the driver that NVML reports.
const DRIVER: &str = "570.00";

/// The number of initialisations that have not been undone.
static INITIALISED: AtomicUsize = AtomicUsize::new(0);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// The version that a program writes into the structure: its number, above its size.
const MEMORY_V2: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessV1 {
    pid: c_uint,
    used: c_ulonglong,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessV2 {
    pid: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// The number of an instance where a device is not partitioned.
const NO_INSTANCE: c_uint = c_uint::MAX;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pci {
    bus_id_legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
    bus_id: [u8; 32],
}

pub(crate) fn init() -> NvmlResult {
    if is_forked() {
        return Err(NvmlReturn::DRIVER_NOT_LOADED);
    }
    machine().map_err(|_| NvmlReturn::DRIVER_NOT_LOADED)?;
    INITIALISED.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn init_with_flags(_flags: c_uint) -> NvmlResult {
    init()
}

pub(crate) fn shutdown() -> NvmlResult {
    let undone = INITIALISED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
    undone.map(drop).map_err(|_| NvmlReturn::UNINITIALIZED)
}

/// Returns the machine of an NVML that is initialised.
fn initialised() -> NvmlResult<&'static Machine> {
    match INITIALISED.load(Ordering::Relaxed) {
        0 => Err(NvmlReturn::UNINITIALIZED),
        _ if is_forked() => Err(NvmlReturn::UNINITIALIZED),
        _ => machine().map_err(|_| NvmlReturn::DRIVER_NOT_LOADED),
    }
}

fn pointer_of(device: DeviceId) -> Device {
    pointer(handle(Kind::NvmlDevice, u64::from(device.0)))
}

/// Returns a device by its handle.
fn found(device: Device) -> NvmlResult<(&'static Machine, DeviceId)> {
    let machine = initialised()?;
    let mut ids = (0..machine.sim.device_count()).map(DeviceId);
    let id = ids.find(|id| pointer_of(*id) == device).ok_or(NvmlReturn::INVALID_ARGUMENT)?;
    Ok((machine, id))
}

fn facts(device: Device) -> NvmlResult<DeviceFacts> {
    let (machine, id) = found(device)?;
    machine.sim.facts(id).map_err(|_| NvmlReturn::UNKNOWN)
}

/// Stores the handle of the device whose facts fit.
fn find(device: Out<Device>, fits: impl Fn(&DeviceFacts) -> bool) -> NvmlResult {
    let machine = initialised()?;
    device.required().map_err(|_| NvmlReturn::INVALID_ARGUMENT)?;
    let mut ids = (0..machine.sim.device_count()).map(DeviceId);
    let id = ids.find(|id| machine.sim.facts(*id).is_ok_and(|facts| fits(&facts)));
    store(device, pointer_of(id.ok_or(NvmlReturn::NOT_FOUND)?))
}

fn store<T: Copy>(place: Out<T>, value: T) -> NvmlResult {
    place.set(value).map_err(|_| NvmlReturn::INVALID_ARGUMENT)
}

/// Stores a text that must fit.
fn store_text(place: Out<c_char>, text: &str, length: c_uint) -> NvmlResult {
    if text.len() >= length as usize {
        return Err(NvmlReturn::INSUFFICIENT_SIZE);
    }
    let length = c_int::try_from(length).unwrap_or(c_int::MAX);
    place.set_text(text, length).map_err(|_| NvmlReturn::INVALID_ARGUMENT)
}

pub(crate) fn count(count: Out<c_uint>) -> NvmlResult {
    store(count, initialised()?.sim.device_count())
}

pub(crate) fn by_index(index: c_uint, device: Out<Device>) -> NvmlResult {
    let machine = initialised()?;
    if index >= machine.sim.device_count() {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    store(device, pointer_of(DeviceId(index)))
}

pub(crate) fn by_uuid(uuid: In<c_char>, device: Out<Device>) -> NvmlResult {
    let text = uuid.text().map_err(|_| NvmlReturn::INVALID_ARGUMENT)?.to_string_lossy();
    find(device, |facts| facts.uuid.to_string().eq_ignore_ascii_case(&text))
}

pub(crate) fn by_pci_bus_id(id: In<c_char>, device: Out<Device>) -> NvmlResult {
    let text = id.text().map_err(|_| NvmlReturn::INVALID_ARGUMENT)?.to_string_lossy().to_ascii_lowercase();
    let parts = |text: &str| text.split([':', '.']).map(|part| u64::from_str_radix(part, 16).ok()).collect::<Vec<_>>();
    let wanted = parts(&text);
    find(device, |facts| facts.pci.is_some_and(|pci| parts(&pci.to_string()) == wanted))
}

pub(crate) fn index(device: Device, index: Out<c_uint>) -> NvmlResult {
    store(index, found(device)?.1.0)
}

pub(crate) fn name(device: Device, name: Out<c_char>, length: c_uint) -> NvmlResult {
    store_text(name, &facts(device)?.name, length)
}

pub(crate) fn uuid(device: Device, uuid: Out<c_char>, length: c_uint) -> NvmlResult {
    store_text(uuid, &facts(device)?.uuid.to_string(), length)
}

pub(crate) fn pci_info(device: Device, info: Out<Pci>) -> NvmlResult {
    let pci = facts(device)?.pci.ok_or(NvmlReturn::UNKNOWN)?;
    let (mut bus_id, mut bus_id_legacy) = ([0; 32], [0; 16]);
    let long = format!("{:08X}:{:02X}:{:02X}.0", pci.domain, pci.bus, pci.device);
    let short = format!("{:04X}:{:02X}:{:02X}.0", pci.domain & 0xffff, pci.bus, pci.device);
    bus_id[..long.len()].copy_from_slice(long.as_bytes());
    bus_id_legacy[..short.len()].copy_from_slice(short.as_bytes());
    store(
        info,
        Pci {
            bus_id_legacy,
            domain: pci.domain,
            bus: u32::from(pci.bus),
            device: u32::from(pci.device),
            pci_device_id: 0,
            pci_subsystem_id: 0,
            bus_id,
        },
    )
}

fn memory_of(device: Device) -> NvmlResult<MemoryInfo> {
    let (machine, id) = found(device)?;
    machine.sim.memory(id).map_err(|_| NvmlReturn::UNKNOWN)
}

pub(crate) fn memory(device: Device, memory: Out<Memory>) -> NvmlResult {
    let info = memory_of(device)?;
    let (total, free) = (info.total.get(), info.free.get());
    store(memory, Memory { total, free, used: total - free })
}

pub(crate) fn memory_v2(device: Device, memory: Out<MemoryV2>) -> NvmlResult {
    let info = memory_of(device)?;
    let version = memory.get().map_err(|_| NvmlReturn::INVALID_ARGUMENT)?.version;
    if version != MEMORY_V2 {
        return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
    }
    let (total, free) = (info.total.get(), info.free.get());
    store(memory, MemoryV2 { version, total, reserved: 0, free, used: total - free })
}

/// Stores the processes that hold memory, or their number where there is no room for them.
fn store_processes<T: Copy>(
    device: Device,
    count: Out<c_uint>,
    places: Out<T>,
    make: impl Fn(u32, Bytes) -> T,
) -> NvmlResult {
    let (machine, id) = found(device)?;
    let room = count.get().map_err(|_| NvmlReturn::INVALID_ARGUMENT)? as usize;
    let holders = machine.sim.holders(id).map_err(|_| NvmlReturn::UNKNOWN)?;
    store(count, holders.len() as c_uint)?;
    if holders.len() > room {
        return Err(NvmlReturn::INSUFFICIENT_SIZE);
    }
    for (index, (process, bytes)) in holders.into_iter().enumerate() {
        let place = places.at(index).map_err(|_| NvmlReturn::INVALID_ARGUMENT)?;
        store(place, make(process, bytes))?;
    }
    Ok(())
}

pub(crate) fn processes_v1(device: Device, count: Out<c_uint>, places: Out<ProcessV1>) -> NvmlResult {
    store_processes(device, count, places, |pid, bytes| ProcessV1 { pid, used: bytes.get() })
}

pub(crate) fn processes_v2(device: Device, count: Out<c_uint>, places: Out<ProcessV2>) -> NvmlResult {
    store_processes(device, count, places, |pid, bytes| ProcessV2 {
        pid,
        used: bytes.get(),
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
    })
}

/// Nothing draws on a simulated device.
pub(crate) fn no_processes(device: Device, count: Out<c_uint>, _: Out<ProcessV2>) -> NvmlResult {
    found(device)?;
    store(count, 0)
}

pub(crate) fn driver_version(version: Out<c_char>, length: c_uint) -> NvmlResult {
    initialised()?;
    store_text(version, DRIVER, length)
}

pub(crate) fn nvml_version(version: Out<c_char>, length: c_uint) -> NvmlResult {
    initialised()?;
    store_text(version, &format!("12.{DRIVER}"), length)
}

pub(crate) fn cuda_version(version: Out<c_int>) -> NvmlResult {
    store(version, VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k1_the_structures_of_nvml_have_the_layout_of_its_header() {
        assert_eq!((size_of::<Memory>(), size_of::<MemoryV2>()), (24, 40));
        assert_eq!((size_of::<ProcessV1>(), size_of::<ProcessV2>()), (16, 24));
        assert_eq!(size_of::<Pci>(), 68);
        assert_eq!(MEMORY_V2, 0x200_0028);
    }
}
