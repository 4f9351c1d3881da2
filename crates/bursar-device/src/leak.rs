//! Reports of memory that is still held when a device is closed.

use bursar_core::{AllocTag, Bytes, DeviceId, Holding};
use std::cmp::Reverse;
use std::fmt;
use std::panic::Location;

/// The memory that was allocated at one place in the program and is still held.
///
/// ```
/// use bursar_core::{Bytes, tag};
/// use bursar_device::Site;
///
/// let site = Site { location: None, tag: tag!("weights"), bytes: Bytes::mib(1), blocks: 2 };
/// assert_eq!(site.to_string(), "an unknown place: 1 MiB in 2 blocks for weights");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The place of the allocation; `None` where it was not made through a [`Gpu`](crate::Gpu) that recorded it.
    pub location: Option<&'static Location<'static>>,
    /// The tag of the allocations.
    pub tag: AllocTag,
    /// The bytes granted.
    pub bytes: Bytes,
    /// The number of blocks.
    pub blocks: u64,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { location, tag, bytes, blocks } = self;
        match location {
            Some(location) => write!(f, "{location}")?,
            None => f.write_str("an unknown place")?,
        }
        write!(f, ": {bytes} in {blocks} block{} for {tag}", if *blocks == 1 { "" } else { "s" })
    }
}

/// The memory that is held on one device.
///
/// ```
/// use bursar_core::{Bytes, DeviceId};
/// use bursar_device::Leak;
///
/// let leak = Leak::new(DeviceId(0), Bytes::mib(3), Vec::new(), Vec::new());
/// assert_eq!(leak.to_string(), "3 MiB on gpu0, and nobody counts who holds it");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// The device.
    pub device: DeviceId,
    /// All bytes that are held there.
    pub held: Bytes,
    /// The holders by tag, the largest first; empty where nobody counts.
    pub holders: Vec<Holding>,
    /// The places by tag, the largest first; empty where they were not recorded.
    pub sites: Vec<Site>,
}

impl Leak {
    /// Makes a report from holders and places in any order.
    pub fn new(device: DeviceId, held: Bytes, mut holders: Vec<Holding>, mut sites: Vec<Site>) -> Self {
        holders.sort_by_key(|holding| Reverse(holding.bytes));
        sites.sort_by_key(|site| (Reverse(site.bytes), site.location));
        Self { device, held, holders, sites }
    }

    /// Returns the bytes that no holder accounts for: blocks from before counting began, and frees that have not run.
    pub fn uncounted(&self) -> Bytes {
        let by_tag = self.holders.iter().fold(Bytes::ZERO, |sum, holding| sum.saturating_add(holding.bytes));
        self.held.saturating_sub(by_tag)
    }
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, held, holders, sites } = self;
        write!(f, "{held} on {device}")?;
        if holders.is_empty() && sites.is_empty() {
            return f.write_str(", and nobody counts who holds it");
        }
        holders.iter().try_for_each(|holding| write!(f, "\n  {holding}"))?;
        if self.uncounted() > Bytes::ZERO {
            write!(f, "\n  {} that nobody counted", self.uncounted())?;
        }
        sites.iter().try_for_each(|site| write!(f, "\n  at {site}"))
    }
}

/// The memory that was still held when a [`DevicePool`](crate::DevicePool) was closed.
///
/// ```
/// use bursar_core::{Bytes, DeviceId};
/// use bursar_device::{Leak, LeakReport};
///
/// let leak = Leak::new(DeviceId(1), Bytes::mib(3), Vec::new(), Vec::new());
/// let report = LeakReport { leaks: vec![leak] };
/// assert!(report.to_string().starts_with("memory is still held: 3 MiB on gpu1"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakReport {
    /// One report for each device that something is held on.
    pub leaks: Vec<Leak>,
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory is still held: ")?;
        for (at, leak) in self.leaks.iter().enumerate() {
            let between = if at == 0 { "" } else { "\n" };
            write!(f, "{between}{leak}")?;
        }
        Ok(())
    }
}

impl std::error::Error for LeakReport {}
