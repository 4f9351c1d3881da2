//! The configuration of a simulated machine.

use super::Sim;
use crate::call_log::{CALLS_KEPT, CallLog};
use crate::machine::{ADDRESSES, Heap, MachineState, SharedUsage, addresses};
use crate::random::mix;
use bursar_core::{Bytes, Capabilities, DeviceFacts, DeviceId, DeviceUuid, Link, LinkKind, NumaNode, PciAddress};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// The most devices of a machine: each has a PCI bus of its own.
const DEVICES_MAX: usize = 256;

/// A builder for a [`Sim`]: how it runs, and its devices, by default two of 80 GiB.
///
/// ```
/// use bursar::driver::Driver;
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId};
///
/// let here = Sim::builder().devices(2, Bytes::gib(24)).named("pair").build();
/// let there = Sim::builder().devices(2, Bytes::gib(24)).named("pair").build();
/// assert_eq!(here.facts(DeviceId(1))?.uuid, there.facts(DeviceId(1))?.uuid);
/// # Ok::<(), bursar::driver::DriverError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a simulator is made by `build`"]
pub struct SimBuilder {
    seed: Option<u64>,
    /// The memory of each device; none before the first was added.
    sizes: Option<Vec<Bytes>>,
    name: Option<String>,
    folder: Option<PathBuf>,
    is_stream_ordered: bool,
    page_granularity: Option<Bytes>,
    numa_node: NumaNode,
    is_linked: bool,
    calls_kept: usize,
}

impl Default for SimBuilder {
    fn default() -> Self {
        Self {
            seed: Some(0),
            sizes: None,
            name: None,
            folder: None,
            is_stream_ordered: true,
            page_granularity: Some(Bytes::mib(2)),
            numa_node: NumaNode::UNKNOWN,
            is_linked: false,
            calls_kept: CALLS_KEPT,
        }
    }
}

impl SimBuilder {
    /// Lets streams advance as the seed chooses, and reports hazards. The default, with seed 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Completes every operation at once, and does not search for hazards.
    pub fn immediate(mut self) -> Self {
        self.seed = None;
        self
    }

    /// Adds a device with this much memory.
    pub fn device(self, memory: Bytes) -> Self {
        self.devices(1, memory)
    }

    /// Adds `count` devices, each with this much memory, at most the 32 TiB that its addresses can reach. A machine has 256
    /// devices at most; more are left out.
    pub fn devices(mut self, count: usize, memory: Bytes) -> Self {
        let sizes = self.sizes.get_or_insert_default();
        sizes.extend(std::iter::repeat_n(memory.min(Bytes(ADDRESSES)), count.min(DEVICES_MAX - sizes.len())));
        self
    }

    /// Gives the devices an identity that is the same in every process: their UUIDs follow from the name and their ordinals,
    /// and memory that one process holds is not free to the others. Without a name they differ from those of any other
    /// simulator. All users of a name should give its devices the same sizes; each simulator goes by its own.
    ///
    /// ```
    /// use bursar::driver::Driver;
    /// use bursar::sim::Sim;
    /// use bursar::{Bytes, DeviceId};
    ///
    /// # let folder = std::env::temp_dir().join(format!("bursar-sim-doc-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// let builder = Sim::builder().immediate().device(Bytes::gib(24)).named("one");
    /// # let builder = builder.shared_in(&folder);
    /// let (here, there) = (builder.clone().build(), builder.build());
    /// here.allocate(DeviceId(0), 16 << 30)?;
    /// assert_eq!(there.memory(DeviceId(0))?.free, Bytes::gib(8));
    /// drop(here);
    /// assert_eq!(there.memory(DeviceId(0))?.free, Bytes::gib(24));
    /// # drop(there);
    /// # std::fs::remove_dir(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the folder in which processes share devices with a name. By default it is the one that `BURSAR_LEDGER_DIR`
    /// names, or a folder of this user in shared memory.
    pub fn shared_in(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Makes devices that cannot map physical memory.
    pub fn without_pages(mut self) -> Self {
        self.page_granularity = None;
        self
    }

    /// Makes devices that cannot allocate in stream order.
    pub fn without_stream_ordered(mut self) -> Self {
        self.is_stream_ordered = false;
        self
    }

    /// Sets the page size, rounded up to a power of two between 4 KiB and 1 GiB; 2 MiB by default.
    pub fn page_granularity(mut self, bytes: Bytes) -> Self {
        let within = bytes.clamp(Bytes::kib(4), Bytes::gib(1));
        self.page_granularity = Some(Bytes(within.get().next_power_of_two()));
        self
    }

    /// Sets the NUMA node that every device reports; unknown by default.
    pub fn numa_node(mut self, node: u32) -> Self {
        self.numa_node = NumaNode::new(node);
        self
    }

    /// Reports an NVLink between any two devices; by default no link is reported.
    pub fn linked(mut self) -> Self {
        self.is_linked = true;
        self
    }

    /// Sets the number of lines that the [log](Sim::calls) of a seeded simulator keeps: at least one, 512 by default.
    pub fn calls_kept(mut self, lines: usize) -> Self {
        self.calls_kept = lines;
        self
    }

    /// Creates the simulator.
    pub fn build(self) -> Arc<Sim> {
        let sizes = self.sizes.clone().unwrap_or_else(|| vec![Bytes::gib(80); 2]);
        let identity = self.name.as_deref().map_or_else(unique, |name| hash(name.as_bytes()));
        let heap = |(index, size): (usize, &Bytes)| {
            let (allocations, _) = addresses(index);
            Arc::new(Mutex::new(Heap::new(size.get(), allocations.start, allocations.end)))
        };
        let heaps: Vec<_> = sizes.iter().enumerate().map(heap).collect();
        let shortcut_blockers = Arc::new(AtomicUsize::new(0));
        let mut state = MachineState::new(self.seed, &heaps, shortcut_blockers.clone());
        state.log = CallLog::new(self.calls_kept);
        if let Some(name) = &self.name {
            state.share = Some(SharedUsage::new(name, self.folder.as_deref(), sizes.len()));
            state.block_shortcuts();
        }
        let facts = sizes.iter().enumerate();
        Arc::new(Sim {
            seed: self.seed,
            facts: facts.map(|(index, size)| self.facts(index, *size, identity)).collect(),
            links: (0..sizes.len()).map(|from| self.links(from, sizes.len())).collect(),
            state: Mutex::new(state),
            heaps,
            shortcut_blockers,
            changed: Condvar::new(),
        })
    }

    fn facts(&self, index: usize, total: Bytes, identity: u64) -> DeviceFacts {
        let high = mix(identity ^ mix(index as u64 + 1));
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&high.to_be_bytes());
        uuid[8..].copy_from_slice(&mix(high ^ identity).to_be_bytes());
        DeviceFacts {
            name: "Simulated GPU".to_owned(),
            uuid: DeviceUuid(uuid),
            pci: Some(PciAddress { domain: 0x5e, bus: index as u8, device: 0 }),
            numa_node: self.numa_node,
            total,
            shared: self.name.is_some(),
            stream_priorities: -5..=0,
            capabilities: Capabilities {
                stream_ordered: self.is_stream_ordered,
                page_granularity: self.page_granularity,
            },
        }
    }

    fn links(&self, from: usize, count: usize) -> Vec<Link> {
        let others = (0..count).filter(|to| self.is_linked && *to != from);
        let link = |to: usize| Link { to: DeviceId(to as u32), kind: LinkKind::NvLink { lanes: 18 } };
        others.map(link).collect()
    }
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0x6275_7273_6172, |sum, byte| mix(sum ^ u64::from(*byte)).rotate_left(9))
}

/// Returns an identity that no other simulator has, in this process or another.
fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let counter = NEXT.fetch_add(1, Ordering::Relaxed);
    mix(since.as_nanos() as u64) ^ mix(u64::from(std::process::id()) << 32 | counter)
}
