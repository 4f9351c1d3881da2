//! Devices and their properties.

use crate::arguments::{In, Out};
use crate::process::Process;
use crate::status::{CUresult, CallResult};
use crate::types::{CUdevice, CUdevice_attribute as Attribute, CUuuid};
use bursar_core::PciAddress;
use std::ffi::{c_char, c_int};

/// The compute capability that devices report: that of the hardware that Bursar is measured on.
const CAPABILITY: (c_int, c_int) = (9, 0);

pub(crate) fn count(process: &Process, count: Out<c_int>) -> CallResult {
    count.set(process.devices.len() as c_int)
}

pub(crate) fn get(process: &Process, device: Out<CUdevice>, ordinal: c_int) -> CallResult {
    device.required()?;
    process.device(ordinal)?;
    device.set(ordinal)
}

pub(crate) fn name(process: &Process, name: Out<c_char>, length: c_int, device: CUdevice) -> CallResult {
    name.set_text(&process.device(device)?.facts.name, length)
}

pub(crate) fn uuid(process: &Process, uuid: Out<CUuuid>, device: CUdevice) -> CallResult {
    uuid.set(CUuuid { bytes: process.device(device)?.facts.uuid.0 })
}

pub(crate) fn total_memory(process: &Process, bytes: Out<usize>, device: CUdevice) -> CallResult {
    bytes.set(process.device(device)?.facts.total.get() as usize)
}

pub(crate) fn compute_capability(
    process: &Process,
    major: Out<c_int>,
    minor: Out<c_int>,
    device: CUdevice,
) -> CallResult {
    minor.required()?;
    process.device(device)?;
    major.set(CAPABILITY.0)?;
    minor.set(CAPABILITY.1)
}

fn pci(address: Option<PciAddress>) -> (c_int, c_int, c_int) {
    address.map_or((0, 0, 0), |pci| (pci.domain as c_int, c_int::from(pci.bus), c_int::from(pci.device)))
}

pub(crate) fn pci_bus_id(process: &Process, id: Out<c_char>, length: c_int, device: CUdevice) -> CallResult {
    let (domain, bus, device) = pci(process.device(device)?.facts.pci);
    let text = format!("{domain:04x}:{bus:02x}:{device:02x}.0");
    match usize::try_from(length) {
        Ok(length) if length > text.len() => id.set_text(&text, length as c_int),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) fn by_pci_bus_id(process: &Process, device: Out<CUdevice>, id: In<c_char>) -> CallResult {
    device.required()?;
    let text = id.text()?.to_string_lossy().to_ascii_lowercase();
    let is_named = |ordinal: &usize| {
        let (domain, bus, device) = pci(process.devices[*ordinal].facts.pci);
        let long = format!("{domain:04x}:{bus:02x}:{device:02x}");
        let short = format!("{bus:02x}:{device:02x}");
        [long.clone(), format!("{long}.0"), short.clone(), format!("{short}.0")].contains(&text)
    };
    let ordinal = (0..process.devices.len()).find(is_named).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
    device.set(ordinal as CUdevice)
}

pub(crate) fn can_access_peer(process: &Process, can: Out<c_int>, device: CUdevice, peer: CUdevice) -> CallResult {
    can.required()?;
    process.device(device)?;
    process.device(peer)?;
    can.set(c_int::from(device != peer))
}

pub(crate) fn attribute(process: &Process, value: Out<c_int>, attribute: Attribute, device: CUdevice) -> CallResult {
    value.required()?;
    let facts = &process.device(device)?.facts;
    let (domain, bus, slot) = pci(facts.pci);
    value.set(match attribute {
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID => domain,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => bus,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID => slot,
        attribute => fixed_attribute(attribute).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?,
    })
}

/// The attributes that all devices have in common and that are not zero: their shape is that of an H200, and the simulator
/// maps host memory, overlaps copies, has one address space, managed memory, pools and mapped pages.
const FIXED: [(Attribute, c_int); 38] = [
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, c_int::MAX),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65_535),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65_535),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10),
    (Attribute::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 << 10),
    (Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH, c_int::MAX),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 64 << 10),
    (Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1_980_000),
    (Attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512),
    (Attribute::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3_201_000),
    (Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144),
    (Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 60 << 20),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048),
    (Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3),
    (Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32),
    (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CAPABILITY.0),
    (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, CAPABILITY.1),
    (Attribute::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 << 10),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 64 << 10),
    (Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 << 10),
    (Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32),
    (Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
];

/// The highest number that CUDA 12.8 has given to an attribute.
const LAST: u32 = 143;

/// Returns an attribute that all devices have in common; `None` for a number that belongs to no attribute.
fn fixed_attribute(attribute: Attribute) -> Option<c_int> {
    let fixed = FIXED.iter().find(|(fixed, _)| *fixed == attribute).map(|(_, value)| *value);
    fixed.or_else(|| (1..=LAST).contains(&attribute.0).then_some(0))
}
