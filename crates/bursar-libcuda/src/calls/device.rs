//! Devices and their properties.

use crate::arguments::{In, Out};
use crate::process::Process;
use crate::status::{CUresult, CallResult};
use crate::types::{CUdevice, CUdevice_attribute, CUuuid};
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

pub(crate) fn attribute(
    process: &Process,
    value: Out<c_int>,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> CallResult {
    value.required()?;
    let (domain, bus, slot) = pci(process.device(device)?.facts.pci);
    value.set(match attribute.0 {
        33 => bus,
        34 => slot,
        50 => domain,
        75 => CAPABILITY.0,
        76 => CAPABILITY.1,
        number => fixed_attribute(number).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?,
    })
}

/// Returns an attribute that all devices have in common; `None` for a number that CUDA has given to no attribute.
fn fixed_attribute(number: u32) -> Option<c_int> {
    Some(match number {
        // The shape of launches, as large as that of real devices.
        1 | 2 | 3 => [1024, 1024, 64][number as usize - 1],
        4 => 1024,
        5 => c_int::MAX,
        6 | 7 => 65_535,
        8 | 97 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => c_int::MAX,
        12 | 82 => 64 << 10,
        13 | 36 => 1_980_000,
        14 => 512,
        16 => 132,
        39 => 2048,
        81 => 228 << 10,
        38 => 50 << 20,
        37 => 6144,
        51 => 32,
        106 => 32,
        // What the simulator can do: map host memory, overlap copies, unified addresses, managed memory, pools, mapped pages
        // and shared handles.
        15 | 19 | 31 | 40 | 41 | 78 | 79 | 83 | 90 | 91 | 99 | 102 | 103 | 115 | 116 => 1,
        // Every other attribute is a feature or a number that devices without it report as zero.
        1..=145 => 0,
        _ => return None,
    })
}
