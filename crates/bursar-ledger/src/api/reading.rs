//! Reading who holds what: a ledger as it is once the charges of dead processes are reclaimed.

use super::Priority;
use crate::attachment::Attachment;
use crate::book::{Book, PublishedUsage, RefusalEntry, TENANT};
use crate::format::{LedgerLayout, Words, WordsSnapshot, node, process};
use crate::{LedgerError, RefusalCounts, RefusalReason, Subject, WaitHistogram};
use bursar_core::{Bytes, DeviceUuid};
use std::fmt;
use std::time::{Duration, SystemTime};

/// The state of a ledger at one moment.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::Ledger;
///
/// # fn main() -> bursar::Result<()> {
/// let ledger = Ledger::private(Bytes::gib(8));
/// let aside = ledger.reserve(Bytes::gib(3))?;
/// let reading = ledger.reading()?;
/// assert_eq!((reading.held, reading.undrawn), (Bytes::ZERO, Bytes::gib(3)));
/// assert_eq!(reading.processes[0].pid, std::process::id());
/// # drop(aside);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reading {
    /// The UUID of the device.
    pub uuid: DeviceUuid,
    /// The name of the device.
    pub name: String,
    /// All of the device's memory.
    pub total: Bytes,
    /// The limit of what all may hold together.
    pub limit: Bytes,
    /// The bytes that are held.
    pub held: Bytes,
    /// The bytes that were set aside and are not held.
    pub undrawn: Bytes,
    /// The bytes used outside the ledger, as last measured.
    pub unmanaged: Bytes,
    /// The processes that have the ledger open.
    pub processes: Vec<ProcessReading>,
    /// The tenants.
    pub tenants: Vec<TenantReading>,
    /// The requests that wait, in the order of service.
    pub waiting: Vec<WaitingReading>,
    /// The requests that were refused since the ledger was made, by reason.
    pub refused: RefusalCounts,
    /// The last requests that were refused, newest first: at most 32.
    pub refusals: Vec<RefusalReading>,
    /// The requests that have left the queue since the ledger was made, by how long they waited.
    pub waits: WaitHistogram,
}

/// The share of one process.
///
/// ```
/// # use bursar::Bytes;
/// let ledger = bursar::ledger::Ledger::private(Bytes::gib(1));
/// let me = &ledger.reading()?.processes[0];
/// assert_eq!((me.held, me.undrawn), (Bytes::ZERO, Bytes::ZERO));
/// # Ok::<(), bursar::ledger::LedgerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessReading {
    /// The process id in its own namespace.
    pub pid: u32,
    /// The name of the process.
    pub name: String,
    /// The labels of what it has set aside or draws on, each once.
    pub labels: Vec<String>,
    /// The bytes it holds.
    pub held: Bytes,
    /// The bytes it has set aside and does not hold.
    pub undrawn: Bytes,
    /// When it opened the ledger.
    pub since: SystemTime,
    /// The memory it uses, as it last said; `None` where it says nothing.
    pub usage: Option<UsageReading>,
    /// The number of its requests that were refused.
    pub refused: u64,
    /// The time that its requests waited, those that still wait not counted.
    pub waited: Duration,
    /// True if it can be [asked](super::Ledger::ask) to put its memory to sleep.
    pub listens: bool,
}

impl ProcessReading {
    pub(crate) fn has_something(&self) -> bool {
        self.held > Bytes::ZERO || self.undrawn > Bytes::ZERO
    }
}

impl fmt::Display for ProcessReading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, name, held, undrawn, .. } = self;
        write!(f, "{name} (pid {pid}) holds {held} and has {undrawn} set aside")
    }
}

/// The share of one tenant.
///
/// ```
/// # use bursar::Bytes;
/// let ledger = bursar::ledger::Ledger::private(Bytes::gib(1));
/// ledger.tenant("batch")?.configure(Bytes::mib(1), Bytes::mib(2))?;
/// assert_eq!(ledger.reading()?.tenants[0].ceiling, Bytes::mib(2));
/// # Ok::<(), bursar::ledger::LedgerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantReading {
    /// The name of the tenant; empty for those who named none.
    pub name: String,
    /// The bytes it may always have.
    pub guarantee: Bytes,
    /// The bytes it may have at most.
    pub ceiling: Bytes,
    /// The bytes it has: held, set aside, and kept as credit by its accounts.
    pub charged: Bytes,
    /// The number of requests for it that were refused.
    pub refused: u64,
    /// The time that requests for it waited, those that still wait not counted.
    pub waited: Duration,
}

/// A request that waits.
///
/// ```
/// # use bursar::Bytes;
/// let ledger = bursar::ledger::Ledger::private(Bytes::gib(1));
/// assert!(ledger.reading()?.waiting.is_empty());
/// # Ok::<(), bursar::ledger::LedgerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingReading {
    /// The id of the process that asks, in its own namespace.
    pub pid: u32,
    /// The name of the process.
    pub name: String,
    /// The name of the tenant it asks for.
    pub tenant: String,
    /// The bytes it waits for.
    pub bytes: Bytes,
    /// The priority of the request.
    pub priority: Priority,
    /// When the request was made.
    pub since: SystemTime,
}

/// The memory that a process uses of what it holds, as it last said.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::{Ledger, ProcessUsage};
///
/// let ledger = Ledger::private(Bytes::gib(8));
/// let publisher = ledger.publish(|| ProcessUsage { cached: Bytes::gib(1), ..ProcessUsage::default() });
/// publisher.publish_now();
/// assert_eq!(ledger.reading()?.processes[0].usage.as_ref().unwrap().cached, Bytes::gib(1));
/// # Ok::<(), bursar::ledger::LedgerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsageReading {
    /// The bytes of blocks that it uses.
    pub live: Bytes,
    /// The bytes that its pools hold and nobody uses.
    pub cached: Bytes,
    /// The most bytes that it held at a time: exact of pools, and of others as it was seen once a second.
    pub peak: Bytes,
    /// The tags that hold most, the largest first: at most 4.
    pub holders: Vec<HolderReading>,
    /// When the process said so; now, where it says that it uses what it holds.
    pub published: SystemTime,
}

impl UsageReading {
    /// Returns what a process said that it uses, where it holds so much.
    fn new(usage: PublishedUsage, held: Bytes) -> Self {
        let cached = Bytes(usage.cached);
        let live = usage.live.map_or_else(|| held.saturating_sub(cached), Bytes);
        let holders = usage.holders.into_iter().map(|(tag, live)| HolderReading { tag, live: Bytes(live) });
        Self {
            live,
            cached,
            peak: Bytes(usage.peak).max(if usage.live.is_none() { held } else { Bytes::ZERO }),
            holders: holders.collect(),
            published: if usage.live.is_none() && usage.cached == 0 { SystemTime::now() } else { time(usage.when) },
        }
    }
}

/// A tag of a process, and what is held under it.
///
/// ```
/// use bursar::ledger::HolderReading;
///
/// fn show(holder: &HolderReading) -> String {
///     format!("{}: {}", holder.tag, holder.live)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderReading {
    /// The first 35 bytes of the tag.
    pub tag: String,
    /// The bytes of its blocks.
    pub live: Bytes,
}

/// A request that was refused.
///
/// ```
/// # use bursar::Bytes;
/// let ledger = bursar::ledger::Ledger::private(Bytes::gib(1));
/// assert!(ledger.tenant("batch")?.reserve(Bytes::gib(2)).is_err());
/// let refused = &ledger.reading()?.refusals[0];
/// assert_eq!((refused.pid, &*refused.tenant), (std::process::id(), "batch"));
/// assert_eq!((refused.requested, refused.available, refused.limit), (Bytes::gib(2), Bytes::gib(1), Bytes::gib(1)));
/// # Ok::<(), bursar::ledger::LedgerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusalReading {
    /// When it was refused.
    pub when: SystemTime,
    /// The id of the process that asked, in its own namespace; it may be gone.
    pub pid: u32,
    /// The name of the process.
    pub name: String,
    /// The name of the tenant it asked for; empty for those who named none.
    pub tenant: String,
    /// The reason.
    pub reason: RefusalReason,
    /// The bytes it asked for.
    pub requested: Bytes,
    /// The bytes that were left; where the reason is the queue, for those who wait.
    pub available: Bytes,
    /// The bytes that it could have been granted at most.
    pub limit: Bytes,
}

impl From<RefusalEntry> for RefusalReading {
    fn from(entry: RefusalEntry) -> Self {
        Self {
            when: time(entry.when),
            pid: entry.pid as u32,
            name: entry.name,
            tenant: entry.tenant,
            reason: entry.reason,
            requested: Bytes(entry.requested),
            available: Bytes(entry.available),
            limit: Bytes(entry.limit),
        }
    }
}

/// Copies the words of an open ledger behind its lock, and checks them.
pub(crate) fn snapshot_of(attachment: &Attachment) -> Result<WordsSnapshot, LedgerError> {
    let locked = attachment.lock()?;
    let words = attachment.book.words();
    let copy: Vec<u64> = (0..attachment.book.layout().words()).map(|at| words.load(at)).collect();
    drop(locked);
    let me = attachment.book.slot();
    let alive = (0..attachment.book.layout().processes).map(|slot| slot == me || words.alive(slot)).collect();
    let snapshot = WordsSnapshot::new(copy, alive);
    let found = Book::new(&snapshot, attachment.book.layout(), attachment.book.layout().processes)
        .lock_snapshot()
        .find_inconsistency();
    found.map_or(Ok(snapshot), |what| Err(LedgerError::Corrupt { file: attachment.path(), what: what.into() }))
}

fn time(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Reads a snapshot, after reclaiming in it what dead processes held.
pub(crate) fn read(snapshot: WordsSnapshot, subject: Subject) -> Reading {
    let layout = LedgerLayout::FILE;
    let book = Book::new(snapshot, layout, layout.processes);
    let mut locked = book.lock_snapshot();
    locked.apply_notes();
    locked.reclaim_dead_processes();
    let name_of = |slot: usize| match slot < layout.processes {
        true => (book.peek_process(slot, process::PID) as u32, book.process_name(slot)),
        // No process has such a slot: the snapshot is damaged there.
        false => (0, "unknown".to_owned()),
    };
    let mut processes = Vec::new();
    for (slot, (held, undrawn)) in locked.sums_by_process().into_iter().enumerate() {
        if book.peek_process(slot, process::STATE) & process::OCCUPIED != 0 {
            let (pid, name) = name_of(slot);
            let since = time(book.peek_process(slot, process::SINCE));
            let (labels, held, undrawn) = (locked.labels_of(slot), Bytes(held), Bytes(undrawn));
            let (refused, waited) = locked.refused_and_waited(slot);
            let waited = Duration::from_millis(waited);
            let usage = locked.published_usage(slot).map(|usage| UsageReading::new(usage, held));
            let listens = book.peek_process(slot, process::LISTENS) != 0;
            processes.push(ProcessReading { pid, name, labels, held, undrawn, since, usage, refused, waited, listens });
        }
    }
    let tenants = locked.nodes().filter(|&tenant| locked.field(tenant, node::KIND) == TENANT);
    let tenants = tenants.map(|tenant| TenantReading {
        name: locked.tenant_name(tenant),
        guarantee: Bytes(locked.field(tenant, node::GUARANTEE)),
        ceiling: Bytes(locked.field(tenant, node::CEILING)),
        charged: Bytes(locked.field(tenant, node::TOTAL)),
        refused: locked.field(tenant, node::REFUSED),
        waited: Duration::from_millis(locked.field(tenant, node::WAITED)),
    });
    let waiting = locked.queue().into_iter().map(|(request, slot)| {
        let (pid, name) = name_of(slot);
        let (tenant, priority) = (locked.tenant_name(request.tenant), Priority(request.priority as u8));
        WaitingReading { pid, name, tenant, bytes: Bytes(request.bytes), priority, since: time(request.since) }
    });
    let (charged, undrawn) = locked.charged_and_undrawn();
    Reading {
        uuid: subject.uuid,
        name: subject.name,
        total: subject.total,
        limit: Bytes(locked.field(0, node::CEILING)),
        held: Bytes(charged.saturating_sub(undrawn)),
        undrawn: Bytes(undrawn),
        unmanaged: Bytes(locked.unmanaged()),
        processes,
        tenants: tenants.collect(),
        waiting: waiting.collect(),
        refused: locked.refusal_counts(),
        refusals: locked.last_refusals().into_iter().map(RefusalReading::from).collect(),
        waits: locked.wait_histogram(),
    }
}
