//! The identity of a device, and the facts a driver reports about it.

use crate::Bytes;
use std::fmt;

/// The ordinal of a device on its driver.
///
/// ```
/// assert_eq!(bursar::DeviceId(1).to_string(), "gpu1");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("gpu{}", self.0))
    }
}

/// The identity of a physical device: the same in every process, whatever its ordinal there.
///
/// ```
/// use bursar::device::DeviceUuid;
///
/// let uuid = DeviceUuid([0xab; 16]);
/// assert_eq!(uuid.to_string(), "GPU-abababab-abab-abab-abab-abababababab");
/// assert_eq!(uuid.to_string().parse(), Ok(uuid));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceUuid(pub [u8; 16]);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error of parsing a text that is not a device UUID.
///
/// ```
/// let error = "GPU-12".parse::<bursar::device::DeviceUuid>().unwrap_err();
/// assert_eq!(error.to_string(), r#""GPU-12" is not a device UUID"#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a device UUID")]
pub struct ParseUuidError {
    text: String,
}

impl std::str::FromStr for DeviceUuid {
    type Err = ParseUuidError;

    fn from_str(text: &str) -> Result<Self, ParseUuidError> {
        let wrong = || ParseUuidError { text: text.to_owned() };
        let digits: String = text.strip_prefix("GPU-").unwrap_or(text).split('-').collect();
        let value = u128::from_str_radix(&digits, 16).map_err(|_| wrong())?;
        (digits.len() == 32).then_some(Self(value.to_be_bytes())).ok_or_else(wrong)
    }
}

/// The address of a device on the PCI bus.
///
/// ```
/// use bursar::device::PciAddress;
///
/// let address = PciAddress { domain: 0, bus: 0x4e, device: 0 };
/// assert_eq!(address.to_string(), "0000:4e:00.0");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// The PCI domain.
    pub domain: u32,
    /// The bus within the domain.
    pub bus: u8,
    /// The device on the bus.
    pub device: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device))
    }
}

/// A NUMA node, or [`NumaNode::UNKNOWN`] where nobody reported one.
///
/// ```
/// use bursar::device::NumaNode;
///
/// assert_eq!(NumaNode::new(1).to_string(), "1");
/// assert_eq!(NumaNode::UNKNOWN.to_string(), "unknown");
/// assert_eq!(NumaNode::UNKNOWN.index(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumaNode(Option<u32>);

impl NumaNode {
    /// No node was reported.
    pub const UNKNOWN: Self = Self(None);

    /// Returns the node the kernel calls `index`.
    pub const fn new(index: u32) -> Self {
        Self(Some(index))
    }

    /// Returns the kernel's number, if one was reported.
    pub const fn index(self) -> Option<u32> {
        self.0
    }
}

impl fmt::Display for NumaNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(index) => fmt::Display::fmt(&index, f),
            None => f.pad("unknown"),
        }
    }
}

/// The facts about one device that cannot change while it is open.
///
/// ```
/// use bursar::Bytes;
/// use bursar::device::{Capabilities, DeviceFacts, DeviceUuid, NumaNode};
///
/// let facts = DeviceFacts {
///     name: "Simulated".into(),
///     uuid: DeviceUuid([7; 16]),
///     pci: None,
///     numa_node: NumaNode::UNKNOWN,
///     total: Bytes::gib(80),
///     shared: false,
///     stream_priorities: 0..=0,
///     capabilities: Capabilities { stream_ordered: true, page_granularity: None },
/// };
/// assert!(facts.capabilities.stream_ordered);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// The product name.
    pub name: String,
    /// The identity of the physical device.
    pub uuid: DeviceUuid,
    /// Its PCI address, where it has one.
    pub pci: Option<PciAddress>,
    /// The node its PCI address reports.
    pub numa_node: NumaNode,
    /// The size of its memory.
    pub total: Bytes,
    /// True if other processes can open the same device, as they can every physical one.
    pub shared: bool,
    /// Priorities a stream may have, the most urgent first: lower numbers are more urgent.
    pub stream_priorities: std::ops::RangeInclusive<i32>,
    /// The capabilities of the device.
    pub capabilities: Capabilities,
}

/// The capabilities of a device.
///
/// ```
/// use bursar::Bytes;
/// use bursar::device::Capabilities;
///
/// let hopper = Capabilities { stream_ordered: true, page_granularity: Some(Bytes::mib(2)) };
/// assert!(hopper.page_granularity.is_some());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// True if memory can be allocated and freed in stream order.
    pub stream_ordered: bool,
    /// The size pages come in, where physical memory can be mapped into an address range.
    pub page_granularity: Option<Bytes>,
}

/// The free and total memory of a device at one moment, whoever holds the rest.
///
/// ```
/// use bursar::Bytes;
/// use bursar::device::MemoryInfo;
///
/// let info = MemoryInfo { free: Bytes::gib(1), total: Bytes::gib(2) };
/// assert_eq!(info.used(), Bytes::gib(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// The bytes that the driver could still allocate.
    pub free: Bytes,
    /// All memory of the device.
    pub total: Bytes,
}

impl MemoryInfo {
    /// Returns the bytes that are held, by anybody.
    pub const fn used(self) -> Bytes {
        self.total.saturating_sub(self.free)
    }
}

/// A connection between two devices, as reported by the machine. A link that was not reported is absent, not guessed.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::device::{Link, LinkKind};
///
/// let link = Link { to: DeviceId(1), kind: LinkKind::NvLink { lanes: 18 } };
/// assert_eq!(link.kind.to_string(), "NVLink ×18");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The device at the other end.
    pub to: DeviceId,
    /// The kind of connection.
    pub kind: LinkKind,
}

/// A kind of connection between two devices.
///
/// ```
/// assert_eq!(bursar::device::LinkKind::SameHost.to_string(), "same host");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkKind {
    /// Direct NVLink connections.
    NvLink {
        /// The number of connections.
        lanes: u32,
    },
    /// One PCIe switch, or several under one host bridge.
    Pcie,
    /// Host bridges of one NUMA node.
    SameNode,
    /// Across the interconnect between NUMA nodes.
    SameHost,
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NvLink { lanes } => write!(f, "NVLink ×{lanes}"),
            Self::Pcie => f.write_str("PCIe"),
            Self::SameNode => f.write_str("same node"),
            Self::SameHost => f.write_str("same host"),
        }
    }
}
