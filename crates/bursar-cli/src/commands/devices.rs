//! `bursar devices`: the devices of the driver.

use super::ledger;
use crate::output::{BAD, FAINT, HEADING, Show};
use bursar::device::{DeviceContext, DeviceFacts, NumaNode};
use bursar::driver::OpenedDriver;
use bursar::{Bytes, DeviceId};
use serde::Serialize;
use std::io::{Result, Write};

/// Every device of a driver.
#[derive(Debug, Serialize)]
pub(crate) struct Devices {
    pub(crate) driver: String,
    /// True if the devices are simulated.
    pub(crate) simulated: bool,
    /// The reason that the devices are simulated, if nobody asked for that.
    pub(crate) instead_of_cuda: Option<String>,
    pub(crate) devices: Vec<DeviceEntry>,
}

/// A device, or the error that makes it unusable.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum DeviceEntry {
    Usable(Device),
    Unusable { ordinal: u32, error: String },
}

#[derive(Debug, Serialize)]
pub(crate) struct Device {
    ordinal: u32,
    uuid: String,
    pci: Option<String>,
    name: String,
    total: u64,
    free: u64,
    /// The bytes that programs hold through the device's ledger; none if that cannot be read, and if no other process can open
    /// the device.
    held: Option<u64>,
    /// The bytes that they have reserved there and do not hold.
    undrawn: Option<u64>,
    /// The bytes that are used outside the ledger.
    unmanaged: Option<u64>,
    /// The error of a ledger that cannot be read.
    ledger_error: Option<String>,
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

/// Lists every device. One that fails does not hide the others.
pub(crate) fn list(opened: &OpenedDriver) -> Devices {
    let entry = |ordinal| match describe(opened, DeviceId(ordinal)) {
        Ok(device) => DeviceEntry::Usable(device),
        Err(error) => DeviceEntry::Unusable { ordinal, error: error.to_string() },
    };
    Devices {
        driver: opened.driver.describe(),
        simulated: opened.is_simulated,
        instead_of_cuda: opened.instead_of_cuda.clone(),
        devices: (0..opened.driver.device_count()).map(entry).collect(),
    }
}

fn describe(opened: &OpenedDriver, device: DeviceId) -> bursar::Result<Device> {
    let context = DeviceContext::open(opened.driver.clone(), device)?;
    let memory = opened.driver.memory(device)?;
    let links = opened.driver.links(device)?;
    let DeviceFacts { name, uuid, pci, numa_node, capabilities, .. } = context.facts();
    let (accounts, ledger_error) = match ledger::reading_for(context.facts()) {
        Ok(_) if !context.facts().shared => (None, None),
        Ok(Some(reading)) => (Some((reading.held, reading.undrawn)), None),
        Ok(None) => (Some((Bytes::ZERO, Bytes::ZERO)), None),
        Err(error) => (None, Some(error.to_string())),
    };
    Ok(Device {
        ordinal: device.0,
        uuid: uuid.to_string(),
        pci: pci.map(|address| address.to_string()),
        name: name.clone(),
        total: memory.total.get(),
        free: memory.free.get(),
        held: accounts.map(|(held, _)| held.get()),
        undrawn: accounts.map(|(_, undrawn)| undrawn.get()),
        unmanaged: accounts.map(|(held, _)| memory.used().saturating_sub(held).get()),
        ledger_error,
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

impl Show for DeviceEntry {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        match self {
            Self::Usable(device) => device.show(out),
            Self::Unusable { ordinal, error } => writeln!(out, "gpu{ordinal}  {BAD}cannot be used: {error}{BAD:#}"),
        }
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
        match (self.held, self.undrawn, self.unmanaged) {
            (Some(held), Some(undrawn), Some(unmanaged)) => {
                let [held, undrawn, unmanaged] = [held, undrawn, unmanaged].map(Bytes);
                writeln!(out, "      {held} held, {undrawn} set aside, {unmanaged} unmanaged")?;
            }
            _ => match &self.ledger_error {
                Some(error) => writeln!(out, "      {BAD}{error}{BAD:#}")?,
                None => writeln!(out, "      {FAINT}no ledger: no other process can open it{FAINT:#}")?,
            },
        }
        writeln!(out, "      PCI {}, NUMA node {node}", self.pci.clone().unwrap_or_else(unknown))?;
        writeln!(out, "      links: {}", if links.is_empty() { unknown() } else { links.join(", ") })?;
        let pools = if self.stream_ordered_pools { "yes" } else { "no" };
        writeln!(out, "      stream-ordered pools: {pools}, pages: {pages}")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bursar::sim::{Faults, Sim};

    /// Returns a driver of three devices, the second of which is lost.
    pub(crate) fn with_a_lost_device() -> OpenedDriver {
        let faults = Faults::new(Sim::builder().immediate().devices(3, Bytes::gib(1)).build());
        faults.lose(DeviceId(1));
        OpenedDriver { driver: faults, is_simulated: true, instead_of_cuda: None }
    }

    #[test]
    fn d1_a_lost_device_is_listed_with_its_error_and_hides_no_other() {
        let listed = list(&with_a_lost_device());
        let json = serde_json::to_value(&listed).expect("plain data");
        let devices = json["devices"].as_array().expect("a list");
        assert_eq!(devices.iter().map(|device| device["ordinal"].as_u64()).collect::<Vec<_>>(), [0, 1, 2].map(Some));
        assert_eq!(devices.iter().filter_map(|device| device["free"].as_u64()).sum::<u64>(), 2 << 30);
        assert_eq!((&devices[0]["error"], &devices[2]["error"]), (&().into(), &().into()));
        assert!(devices[1]["error"].as_str().is_some_and(|error| error.contains("DEVICE_LOST")), "{json}");
        let mut shown = Vec::new();
        listed.show(&mut shown).expect("memory");
        let shown = String::from_utf8(shown).expect("text");
        for figure in ["held", "undrawn", "unmanaged", "ledger_error"] {
            assert_eq!(
                devices[0][figure],
                serde_json::Value::Null,
                "{figure} of a device that no other process can open"
            );
        }
        assert!(shown.contains("no ledger: no other process can open it"), "{shown}");
        assert!(shown.contains("cannot be used") && shown.contains("gpu2  Simulated GPU"), "{shown}");
    }
}
