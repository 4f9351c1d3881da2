//! `bursar devices`: what the driver knows.

use crate::output::{FAINT, Failure, HEADING, Show};
use bursar::driver::OpenedDriver;
use bursar::{Bytes, DeviceFacts, DeviceId, Driver, NumaNode};
use serde::Serialize;
use std::io::{Result, Write};

#[derive(Debug, Serialize)]
pub(crate) struct Devices {
    pub(crate) driver: String,
    /// Why the devices are simulated, where nobody asked for that.
    pub(crate) instead_of_cuda: Option<String>,
    pub(crate) devices: Vec<Device>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Device {
    ordinal: u32,
    uuid: String,
    pci: Option<String>,
    name: String,
    total: u64,
    free: u64,
    numa_node: Option<u32>,
    links: Vec<Link>,
    stream_ordered_pools: bool,
    page_granularity: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Link {
    to: u32,
    kind: String,
}

pub(crate) fn list(opened: &OpenedDriver) -> std::result::Result<Devices, Failure> {
    let driver = &*opened.driver;
    let devices = (0..driver.device_count()).map(|ordinal| describe(driver, DeviceId(ordinal)));
    Ok(Devices {
        driver: driver.describe(),
        instead_of_cuda: opened.instead_of_cuda.clone(),
        devices: devices.collect::<std::result::Result<_, _>>()?,
    })
}

fn describe(driver: &dyn Driver, device: DeviceId) -> std::result::Result<Device, Failure> {
    driver.open(device)?;
    let described = describe_open(driver, device);
    driver.close(device)?;
    described
}

fn describe_open(driver: &dyn Driver, device: DeviceId) -> std::result::Result<Device, Failure> {
    let DeviceFacts { name, uuid, pci, numa_node, capabilities, .. } = driver.facts(device)?;
    let memory = driver.memory(device)?;
    let links = driver.links(device)?;
    Ok(Device {
        ordinal: device.0,
        uuid: uuid.to_string(),
        pci: pci.map(|address| address.to_string()),
        name,
        total: memory.total.get(),
        free: memory.free.get(),
        numa_node: numa_node.index(),
        links: links.iter().map(|link| Link { to: link.to.0, kind: link.kind.to_string() }).collect(),
        stream_ordered_pools: capabilities.stream_ordered,
        page_granularity: capabilities.page_granularity.map(Bytes::get),
    })
}

impl Show for Devices {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        write!(out, "{HEADING}{}{HEADING:#}", self.driver)?;
        match &self.instead_of_cuda {
            Some(why) => writeln!(out, " {FAINT}({why}){FAINT:#}")?,
            None => writeln!(out)?,
        }
        self.devices.iter().try_for_each(|device| device.show(out))
    }
}

impl Show for Device {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        let unknown = || "unknown".to_owned();
        let node = self.numa_node.map_or(NumaNode::UNKNOWN, NumaNode::new);
        let links: Vec<_> = self.links.iter().map(|link| format!("{} to gpu{}", link.kind, link.to)).collect();
        let pages = self.page_granularity.map_or("no".to_owned(), |bytes| Bytes(bytes).to_string());
        writeln!(out, "gpu{}  {}  {} free of {}", self.ordinal, self.name, Bytes(self.free), Bytes(self.total))?;
        writeln!(out, "      {}", self.uuid)?;
        writeln!(out, "      PCI {}, NUMA node {node}", self.pci.clone().unwrap_or_else(unknown))?;
        writeln!(out, "      links: {}", if links.is_empty() { unknown() } else { links.join(", ") })?;
        let pools = if self.stream_ordered_pools { "yes" } else { "no" };
        writeln!(out, "      stream-ordered pools: {pools}, pages: {pages}")
    }
}
