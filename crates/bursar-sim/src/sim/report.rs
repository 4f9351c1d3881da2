//! The reports: hazards, and driver objects that are still held.

use super::Sim;
use crate::oracle::Lifetime;
use crate::{CallRecord, Hazard, Operation};
use bursar_core::{AllocTag, Bytes, DeviceId};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;

/// All hazards found, with the seed that reproduces them and the calls that led there.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::{Driver, Pattern, RawStream};
/// use bursar::memory::DevicePtr;
///
/// let sim = bursar::sim::Sim::seeded(7);
/// // SAFETY: breaking the driver's contract is what the simulator is for.
/// unsafe { sim.fill(DeviceId(0), RawStream::LEGACY, DevicePtr(0x10_0000), Pattern::U8(1), 16).unwrap_err() };
/// let report = sim.check().unwrap_err().to_string();
/// assert!(report.starts_with("1 hazard with seed 7"));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimReport {
    /// The seed of the simulator; an immediate one has none.
    pub seed: Option<u64>,
    /// The hazards, in the order in which they were found.
    pub hazards: Vec<Hazard>,
    /// The number of further hazards, which were not kept.
    pub omitted: u64,
    /// The last driver calls.
    pub calls: Vec<CallRecord>,
}

impl fmt::Display for SimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.hazards.len() as u64 + self.omitted;
        write!(f, "{count} hazard{}", if count == 1 { "" } else { "s" })?;
        if let Some(seed) = self.seed {
            write!(f, " with seed {seed}")?;
        }
        for hazard in &self.hazards {
            write!(f, "\n- {hazard}")?;
        }
        if self.omitted > 0 {
            write!(f, "\n- and {} more", self.omitted)?;
        }
        write!(f, "\nthe last driver calls:")?;
        for call in &self.calls {
            write!(f, "\n  {call}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SimReport {}

/// The kinds of driver objects that can leak.
///
/// ```
/// assert_eq!(bursar::sim::LeakKind::Stream.to_string(), "stream");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LeakKind {
    /// Memory from the driver's allocators.
    Allocation,
    /// A block that a layer above cut from mapped pages.
    Block,
    /// Physical memory.
    Pages,
    /// A reserved range of addresses.
    Addresses,
    /// Pinned host memory.
    PinnedMemory,
    /// A stream.
    Stream,
    /// An event.
    Event,
    /// A graph, captured or ready to be launched.
    Graph,
    /// A device that was opened and not closed.
    Context,
}

impl fmt::Display for LeakKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Allocation => "allocation",
            Self::Block => "block",
            Self::Pages => "physical pages",
            Self::Addresses => "reserved addresses",
            Self::PinnedMemory => "pinned host memory",
            Self::Stream => "stream",
            Self::Event => "event",
            Self::Graph => "graph",
            Self::Context => "open device",
        })
    }
}

/// The leaked objects of one kind and tag on one device.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::Driver;
/// use bursar::sim::{LeakKind, Sim};
///
/// let sim = Sim::seeded(1);
/// sim.event_create(DeviceId(0))?;
/// assert_eq!(sim.leaks().leaks[0].kind, LeakKind::Event);
/// # Ok::<(), bursar::driver::DriverError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverLeak {
    /// The kind.
    pub kind: LeakKind,
    /// The tag, where a layer above gave one.
    pub tag: AllocTag,
    /// The device; host memory has none.
    pub device: Option<DeviceId>,
    /// The number of objects.
    pub count: u64,
    /// The bytes they hold.
    pub bytes: Bytes,
    /// The place in the program that created the first of them; `None` where it is unknown.
    pub location: Option<&'static Location<'static>>,
}

/// The driver objects that are still held, by kind and tag. The alternate form adds the places in the program, where they
/// are known.
///
/// ```
/// use bursar::DeviceId;
/// use bursar::driver::Driver;
///
/// let sim = bursar::sim::Sim::seeded(1);
/// let ptr = sim.allocate(DeviceId(0), 1000)?;
/// assert_eq!(sim.leaks().to_string(), "still held:\n- gpu0: 1 allocation, 1 KiB, untagged");
/// // SAFETY: allocated above and not used.
/// unsafe { sim.free(DeviceId(0), ptr)? };
/// assert!(sim.leaks().is_empty());
/// # Ok::<(), bursar::driver::DriverError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DriverLeakReport {
    /// The leaks, by device, kind and tag.
    pub leaks: Vec<DriverLeak>,
}

impl DriverLeakReport {
    /// Returns whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.leaks.is_empty()
    }
}

impl fmt::Display for DriverLeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing is held");
        }
        f.write_str("still held:")?;
        for leak in &self.leaks {
            let who = leak.device.map_or("host".to_owned(), |device| device.to_string());
            write!(f, "\n- {who}: {} {}", leak.count, leak.kind)?;
            if leak.bytes > Bytes::ZERO {
                write!(f, ", {}", leak.bytes)?;
            }
            if matches!(leak.kind, LeakKind::Allocation | LeakKind::Block) {
                write!(f, ", {}", leak.tag)?;
            }
            if f.alternate()
                && let Some(location) = leak.location
            {
                write!(f, ", from {location}")?;
            }
        }
        Ok(())
    }
}

/// The counts of held objects, for a report.
#[derive(Default)]
struct LeakCounts {
    held: BTreeMap<(Option<DeviceId>, LeakKind, AllocTag), LeakCount>,
}

#[derive(Default)]
struct LeakCount {
    count: u64,
    bytes: u64,
    first: Option<Operation>,
}

impl LeakCount {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

impl LeakCounts {
    fn add(&mut self, device: Option<DeviceId>, kind: LeakKind, tag: AllocTag, bytes: u64) {
        self.held(device, kind, tag).add(bytes);
    }

    /// Adds live memory.
    fn add_life(&mut self, device: Option<DeviceId>, kind: LeakKind, start: u64, lifetime: &Lifetime) {
        let held = self.held(device, kind, lifetime.tag);
        held.add(lifetime.end - start);
        let is_first = held.first.is_none_or(|first| lifetime.began.op.call < first.call);
        if is_first {
            held.first = Some(lifetime.began.op);
        }
    }

    fn held(&mut self, device: Option<DeviceId>, kind: LeakKind, tag: AllocTag) -> &mut LeakCount {
        self.held.entry((device, kind, tag)).or_default()
    }

    fn report(self) -> DriverLeakReport {
        let leak = |((device, kind, tag), held): (_, LeakCount)| DriverLeak {
            kind,
            tag,
            device,
            count: held.count,
            bytes: Bytes(held.bytes),
            location: held.first.and_then(|first| first.location),
        };
        DriverLeakReport { leaks: self.held.into_iter().map(leak).collect() }
    }
}

impl Sim {
    /// Returns the driver objects that are still held, by kind and tag. An immediate simulator knows no tags.
    pub fn leaks(&self) -> DriverLeakReport {
        let state = self.lock();
        let mut tally = LeakCounts::default();
        let untagged = AllocTag::UNTAGGED;
        for (index, device) in state.devices.iter().enumerate() {
            let of = Some(DeviceId(index as u32));
            for bytes in device.heap().live() {
                tally.add(of, LeakKind::Allocation, untagged, bytes);
            }
            for bytes in device.reservations.values() {
                tally.add(of, LeakKind::Addresses, untagged, *bytes);
            }
            for _ in 0..device.opened {
                tally.add(of, LeakKind::Context, untagged, 0);
            }
            if let Some(oracle) = &state.oracle {
                let device_memory = &oracle.devices[index];
                for (start, lifetime) in device_memory.allocations() {
                    tally.add_life(of, LeakKind::Allocation, start, lifetime);
                }
                for (start, block) in device_memory.blocks_in_pages() {
                    tally.add_life(of, LeakKind::Block, start, block);
                }
            }
        }
        for pages in state.pages.values() {
            tally.add(Some(DeviceId(pages.device as u32)), LeakKind::Pages, untagged, pages.bytes);
        }
        for stream in state.streams.iter().skip(state.devices.len()).filter(|stream| stream.is_alive) {
            tally.add(Some(DeviceId(stream.device as u32)), LeakKind::Stream, untagged, 0);
        }
        let graphs = state.graphs.graphs.values().filter(|graph| graph.is_alive).map(|graph| graph.device);
        for device in graphs.chain(state.graphs.execs.values().map(|exec| exec.device)) {
            tally.add(Some(DeviceId(device as u32)), LeakKind::Graph, untagged, 0);
        }
        for event in state.events.values() {
            tally.add(Some(DeviceId(event.device as u32)), LeakKind::Event, untagged, 0);
        }
        for pinned in state.pinned.iter() {
            tally.add(None, LeakKind::PinnedMemory, untagged, pinned.len as u64);
        }
        tally.report()
    }
}
