//! The loaded driver: its devices, and their facts.

use crate::device::Device;
use crate::load::{self, LoadError};
use crate::nvml::{self, ProcessMemory};
use crate::raw::Api;
use crate::raw::sys::CUdevice_attribute as Attribute;
use crate::{Version, conv, exit};
use bursar_core::{
    Bytes, Capabilities, DeviceFacts, DeviceId, DeviceUuid, DriverError, DriverResult, Link, MemoryInfo, PciAddress,
    Status,
};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The CUDA driver of this machine.
///
/// Devices are those that `CUDA_VISIBLE_DEVICES` leaves, in its order. Handles are the driver's own values, so that they can
/// be exchanged with any other library in the process: a [`RawStream`](bursar_core::RawStream) is the value of a `CUstream`,
/// a [`RawContext`](bursar_core::RawContext) that of the device's primary `CUcontext`.
///
/// ```
/// use bursar::cuda::Cuda;
/// use bursar::driver::Driver;
///
/// match Cuda::load() {
///     Ok(cuda) => println!("{}, {} devices", cuda.describe(), cuda.device_count()),
///     Err(error) => println!("{error}"),
/// }
/// ```
pub struct Cuda {
    pub(crate) api: Api,
    pub(crate) devices: Box<[Device]>,
    version: Version,
}

impl Cuda {
    /// Loads the driver and counts its devices. No context is created.
    pub fn load() -> Result<Arc<Self>, LoadError> {
        Self::load_for(false)
    }

    /// Loads the driver for a program that looks at devices and takes none of their memory: opening a device creates no context, which
    /// would take half a gigabyte of it, and [`memory`](bursar_core::Driver::memory) asks NVML. What needs a context fails.
    ///
    /// A library that keeps the program inside a share (`bursar run`) lets it pass: it is told about whole devices.
    ///
    /// ```
    /// use bursar::cuda::Cuda;
    /// use bursar::device::DeviceId;
    /// use bursar::driver::Driver;
    ///
    /// match Cuda::observe() {
    ///     Ok(cuda) => println!("{} free", cuda.memory(DeviceId(0))?.free),
    ///     Err(error) => println!("{error}"),
    /// }
    /// # Ok::<(), bursar::driver::DriverError>(())
    /// ```
    pub fn observe() -> Result<Arc<Self>, LoadError> {
        crate::raw::enforced::observe_only();
        Self::load_for(true)
    }

    fn load_for(observing: bool) -> Result<Arc<Self>, LoadError> {
        let (api, version) = load::load(&exit::EXITING)?;
        let cuda = Self::start(api, version, observing)?;
        exit::register_handler();
        Ok(Arc::new(cuda))
    }

    /// Initialises a driver that has been loaded.
    pub(crate) fn start(api: Api, version: Version, observing: bool) -> Result<Self, LoadError> {
        let failed = |failure| load::init_failed(&api, failure);
        api.init().map_err(failed)?;
        let count = api.device_count().map_err(failed)?;
        let count = u32::try_from(count).unwrap_or(0);
        if count == 0 {
            return Err(load::no_device());
        }
        let devices = (0..count).map(|ordinal| Device::find(&api, DeviceId(ordinal), observing)).collect();
        Ok(Self { api, devices, version })
    }

    /// Returns the newest version of CUDA that the driver supports.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Returns the memory that each process holds of a device, or `None` where NVML cannot tell: it is missing, access is
    /// denied, or it does not know the device. Inside a container, process ids may be those of the host.
    pub fn processes(&self, device: DeviceId) -> Option<Vec<ProcessMemory>> {
        let nvml = nvml::shared(&self.api)?;
        let (uuid, _) = self.identity(self.device(device).ok()?).ok()?;
        nvml::processes(nvml, uuid)
    }

    /// Returns the memory of a device as NVML reports it, which needs no context; `None` where it cannot tell.
    pub(crate) fn memory_by_nvml(&self, device: &Device) -> Option<MemoryInfo> {
        let (uuid, _) = self.identity(device).ok()?;
        let total = self.api.device_total(device.handle().ok()?).ok()?;
        let free = nvml::free(nvml::shared(&self.api)?, uuid)?;
        // NVML counts what the driver keeps for itself into the total, and CUDA does not.
        Some(MemoryInfo { free: free.min(Bytes(total as u64)), total: Bytes(total as u64) })
    }

    pub(crate) fn device(&self, id: DeviceId) -> DriverResult<&Device> {
        let found = self.devices.get(id.0 as usize);
        found.ok_or_else(|| DriverError::new("cuDeviceGet", id, Status::InvalidDevice))
    }

    fn attribute(&self, device: &Device, attribute: Attribute) -> DriverResult<i32> {
        device.checked(&self.api, self.api.device_attribute(attribute, device.handle()?))
    }

    /// Returns the identity of a device, which is the same in every process.
    fn identity(&self, device: &Device) -> DriverResult<(DeviceUuid, Option<PciAddress>)> {
        let uuid = device.checked(&self.api, self.api.device_uuid(device.handle()?))?;
        let pci = conv::pci(
            self.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            self.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            self.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        );
        Ok((conv::uuid(uuid), pci))
    }

    pub(crate) fn describe_device(&self, device: &Device, sysfs: &Path) -> DriverResult<DeviceFacts> {
        let (api, handle) = (&self.api, device.handle()?);
        let (uuid, pci) = self.identity(device)?;
        let numa = pci.and_then(|pci| std::fs::read_to_string(conv::numa_path(sysfs, pci)).ok());
        let (least, most) = device.stream_priorities(api)?;
        Ok(DeviceFacts {
            name: conv::text(&device.checked(api, api.device_name(handle))?),
            uuid,
            pci,
            numa_node: conv::numa_node(&numa.unwrap_or_default()),
            total: Bytes(device.checked(api, api.device_total(handle))? as u64),
            shared: true,
            stream_priorities: most..=least,
            capabilities: self.capabilities(device)?,
        })
    }

    fn capabilities(&self, device: &Device) -> DriverResult<Capabilities> {
        let pools = Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        let pages = Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        let page_granularity = if self.attribute(device, pages)? == 0 {
            None
        } else {
            let bytes = self.api.page_granularity(&device.page_kind(&self.api)?);
            Some(Bytes(device.checked(&self.api, bytes)? as u64))
        };
        Ok(Capabilities { stream_ordered: self.attribute(device, pools)? != 0, page_granularity })
    }

    /// Returns the links that NVML reports from a device to the other devices that it can identify.
    pub(crate) fn links_from(&self, from: &Device) -> DriverResult<Vec<Link>> {
        let Some(nvml) = nvml::shared(&self.api) else {
            return Ok(Vec::new());
        };
        let (uuid, _) = self.identity(from)?;
        let others = self.devices.iter().filter(|device| device.id() != from.id());
        let peers = others.filter_map(|device| Some((device.id(), self.identity(device).ok()?)));
        Ok(nvml::links(nvml, uuid, peers))
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda")
            .field("version", &self.version)
            .field("devices", &self.devices.len())
            .finish_non_exhaustive()
    }
}
