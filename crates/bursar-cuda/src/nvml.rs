//! The facts that only NVML reports, or reports without a context: the links between devices, and the memory of devices and processes.
//!
//! NVML is loaded when it is first needed. Where it is missing, those facts are unknown, and nothing else.

use crate::raw::Api;
use bursar_core::{Bytes, DeviceId, DeviceUuid, Link, LinkKind, PciAddress};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::struct_wrappers::device::{PciInfo, ProcessInfo};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::OnceLock;

/// More NVLinks than any device has; a device returns an error for those beyond its own.
const LINKS_MAX: u32 = 64;

/// The memory that one process holds of a device.
///
/// ```
/// use bursar::Bytes;
/// use bursar::cuda::ProcessMemory;
///
/// let held = ProcessMemory { pid: 1234, bytes: Some(Bytes::gib(2)) };
/// assert_eq!(held.bytes, Some(Bytes::gib(2)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// The process id, as the system that runs the driver numbers it.
    pub pid: u32,
    /// The bytes it holds, including its context; `None` where the driver may not tell.
    pub bytes: Option<Bytes>,
}

/// Returns the NVML of this process. It is never shut down, so that nothing is left to do when the process exits.
pub(crate) fn shared(api: &Api) -> Option<&'static Nvml> {
    static SHARED: OnceLock<Option<Nvml>> = OnceLock::new();
    if api.is_exiting() {
        return None;
    }
    let load = || Nvml::init().or_else(|_| Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so")).init());
    SHARED.get_or_init(|| load().ok()).as_ref()
}

/// Finds a device in NVML. A part of a device (MIG) has a UUID of its own with another prefix.
fn find(nvml: &Nvml, uuid: DeviceUuid) -> Option<nvml_wrapper::Device<'_>> {
    let whole = uuid.to_string();
    let part = whole.replacen("GPU-", "MIG-", 1);
    nvml.device_by_uuid(whole).or_else(|_| nvml.device_by_uuid(part)).ok()
}

/// Returns the memory of a device that is free.
pub(crate) fn free(nvml: &Nvml, uuid: DeviceUuid) -> Option<Bytes> {
    find(nvml, uuid)?.memory_info().ok().map(|memory| Bytes(memory.free))
}

/// Returns the memory that each process holds of a device, ordered by process.
pub(crate) fn processes(nvml: &Nvml, uuid: DeviceUuid) -> Option<Vec<ProcessMemory>> {
    let device = find(nvml, uuid)?;
    let compute = device.running_compute_processes().ok()?;
    // A device without a display may refuse this query, and then no process draws on it.
    let graphics = device.running_graphics_processes().unwrap_or_default();
    Some(merge(compute.into_iter().chain(graphics)))
}

/// Merges the lists: a process that computes and draws is listed twice, with all its memory each time.
fn merge(listed: impl Iterator<Item = ProcessInfo>) -> Vec<ProcessMemory> {
    let mut held: BTreeMap<u32, Option<Bytes>> = BTreeMap::new();
    for process in listed {
        let bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
            UsedGpuMemory::Unavailable => None,
        };
        let entry = held.entry(process.pid).or_default();
        *entry = (*entry).max(bytes);
    }
    let memory = |(pid, bytes)| ProcessMemory { pid, bytes };
    held.into_iter().map(memory).collect()
}

/// Returns the links that are reported from a device to each of `peers`: NVLinks, and the path over PCIe.
pub(crate) fn links(
    nvml: &Nvml,
    from: DeviceUuid,
    peers: impl Iterator<Item = (DeviceId, (DeviceUuid, Option<PciAddress>))>,
) -> Vec<Link> {
    let Some(from) = find(nvml, from) else {
        return Vec::new();
    };
    let ends = nvlink_ends(&from);
    let mut links = Vec::new();
    for (to, (uuid, pci)) in peers {
        let Some(peer) = find(nvml, uuid) else { continue };
        let lanes = match direct_lanes(&ends, pci) {
            0 => switched_lanes(nvml, &from, &ends, &peer),
            lanes => lanes,
        };
        if lanes > 0 {
            let kind = LinkKind::NvLink { lanes };
            links.push(Link { to, kind });
        }
        if let Some(kind) = pcie(nvml, &from, &peer) {
            links.push(Link { to, kind });
        }
    }
    links
}

/// Returns the other end of each active NVLink of a device; `None` where it is not reported.
fn nvlink_ends(device: &nvml_wrapper::Device<'_>) -> Vec<Option<PciInfo>> {
    (0..LINKS_MAX)
        .map(|link| device.link_wrapper_for(link))
        .map_while(|link| Some((link.is_active().ok()?, link)))
        .filter(|(active, _)| *active)
        .map(|(_, link)| link.remote_pci_info().ok())
        .collect()
}

/// Returns the number of NVLinks that end at the device with this address.
fn direct_lanes(ends: &[Option<PciInfo>], peer: Option<PciAddress>) -> u32 {
    let Some(peer) = peer else { return 0 };
    let at_peer = |end: &&PciInfo| {
        (end.domain, end.bus, end.device) == (peer.domain, u32::from(peer.bus), u32::from(peer.device))
    };
    ends.iter().flatten().filter(at_peer).count() as u32
}

/// Returns the number of NVLinks that lead to another device through switches: the smaller count of the two ends, if NVML
/// reports a path over NVLink at all.
fn switched_lanes(
    nvml: &Nvml,
    from: &nvml_wrapper::Device<'_>,
    ends: &[Option<PciInfo>],
    to: &nvml_wrapper::Device<'_>,
) -> u32 {
    if !matches!(from.p2p_status(to, P2pCapabilitiesIndex::NvLink), Ok(P2pStatus::Ok)) {
        return 0;
    }
    let is_device = |end: &PciInfo| nvml.device_by_pci_bus_id(end.bus_id.as_str()).is_ok();
    let to_switches = |ends: &[Option<PciInfo>]| {
        let switches = ends.iter().filter(|end| !end.as_ref().is_some_and(is_device));
        switches.count() as u32
    };
    to_switches(ends).min(to_switches(&nvlink_ends(to)))
}

#[cfg(target_os = "linux")]
fn pcie(nvml: &Nvml, a: &nvml_wrapper::Device<'_>, b: &nvml_wrapper::Device<'_>) -> Option<LinkKind> {
    nvml.topology_common_ancestor(a, b).ok().map(kind)
}

/// NVML reports the topology on Linux only.
#[cfg(not(target_os = "linux"))]
fn pcie(_: &Nvml, _: &nvml_wrapper::Device<'_>, _: &nvml_wrapper::Device<'_>) -> Option<LinkKind> {
    None
}

/// Returns the kind of link between two devices with this nearest common ancestor.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn kind(ancestor: TopologyLevel) -> LinkKind {
    match ancestor {
        TopologyLevel::Internal | TopologyLevel::Single | TopologyLevel::Multiple | TopologyLevel::HostBridge => {
            LinkKind::Pcie
        }
        TopologyLevel::Node => LinkKind::SameNode,
        TopologyLevel::System => LinkKind::SameHost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, used_gpu_memory: UsedGpuMemory) -> ProcessInfo {
        ProcessInfo { pid, used_gpu_memory, gpu_instance_id: None, compute_instance_id: None }
    }

    fn end(domain: u32, bus: u32, device: u32) -> Option<PciInfo> {
        Some(PciInfo { bus, bus_id: String::new(), device, domain, pci_device_id: 0, pci_sub_system_id: None })
    }

    #[test]
    fn a_process_that_is_listed_twice_is_counted_once() {
        let listed = [
            process(9, UsedGpuMemory::Used(100)),
            process(3, UsedGpuMemory::Unavailable),
            process(9, UsedGpuMemory::Used(100)),
        ];
        let expected = [ProcessMemory { pid: 3, bytes: None }, ProcessMemory { pid: 9, bytes: Some(Bytes(100)) }];
        assert_eq!(merge(listed.into_iter()), expected);
    }

    #[test]
    fn d5_a_direct_link_ends_at_the_address_of_the_peer() {
        let ends = [end(0, 0x4e, 0), end(0, 0x4e, 0), end(0, 0x4f, 0), end(1, 0x4e, 0), None];
        let peer = PciAddress { domain: 0, bus: 0x4e, device: 0 };
        assert_eq!(direct_lanes(&ends, Some(peer)), 2);
        assert_eq!(direct_lanes(&ends, None), 0);
    }

    #[test]
    fn d5_the_way_over_pcie_is_named_after_its_highest_point() {
        for (ancestor, expected) in [
            (TopologyLevel::Single, LinkKind::Pcie),
            (TopologyLevel::HostBridge, LinkKind::Pcie),
            (TopologyLevel::Node, LinkKind::SameNode),
            (TopologyLevel::System, LinkKind::SameHost),
        ] {
            assert_eq!(kind(ancestor), expected);
        }
    }
}
