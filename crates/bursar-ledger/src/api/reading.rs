//! Who holds what: a ledger read as it would be once the dead are buried.

use super::Priority;
use crate::attachment::Inner;
use crate::book::{Book, TENANT};
use crate::format::{Layout, Sheet, Words, node, process};
use crate::{LedgerError, Subject};
use bursar_core::{Bytes, DeviceUuid};
use std::fmt;
use std::time::{Duration, SystemTime};

/// A ledger at one moment.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_ledger::Ledger;
///
/// # fn main() -> bursar_core::Result<()> {
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
    /// The identity of the device.
    pub uuid: DeviceUuid,
    /// What it is called.
    pub name: String,
    /// All of its memory.
    pub total: Bytes,
    /// What all may hold together.
    pub limit: Bytes,
    /// What is held.
    pub held: Bytes,
    /// What was set aside and is not held.
    pub undrawn: Bytes,
    /// What is used outside the ledger, as last measured.
    pub unmanaged: Bytes,
    /// Who has the ledger open.
    pub processes: Vec<ProcessReading>,
    /// Who it is held for.
    pub tenants: Vec<TenantReading>,
    /// Who waits, in the order of service.
    pub waiting: Vec<WaitingReading>,
}

/// What one process has.
///
/// ```
/// # use bursar_core::Bytes;
/// let ledger = bursar_ledger::Ledger::private(Bytes::gib(1));
/// let me = &ledger.reading()?.processes[0];
/// assert_eq!((me.held, me.undrawn), (Bytes::ZERO, Bytes::ZERO));
/// # Ok::<(), bursar_ledger::LedgerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessReading {
    /// Its number, as it sees itself.
    pub pid: u32,
    /// What it is called.
    pub name: String,
    /// What it holds.
    pub held: Bytes,
    /// What it set aside and does not hold.
    pub undrawn: Bytes,
    /// When it opened the ledger.
    pub since: SystemTime,
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

/// What one tenant has.
///
/// ```
/// # use bursar_core::Bytes;
/// let ledger = bursar_ledger::Ledger::private(Bytes::gib(1));
/// ledger.tenant("batch")?.configure(Bytes::mib(1), Bytes::mib(2))?;
/// assert_eq!(ledger.reading()?.tenants[0].ceiling, Bytes::mib(2));
/// # Ok::<(), bursar_ledger::LedgerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantReading {
    /// What it is called; nothing for those who named none.
    pub name: String,
    /// What it may always have.
    pub guarantee: Bytes,
    /// What it may have at most.
    pub ceiling: Bytes,
    /// What it has: held, set aside, and in the hands of its accounts.
    pub charged: Bytes,
}

/// One request that waits.
///
/// ```
/// # use bursar_core::Bytes;
/// let ledger = bursar_ledger::Ledger::private(Bytes::gib(1));
/// assert!(ledger.reading()?.waiting.is_empty());
/// # Ok::<(), bursar_ledger::LedgerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingReading {
    /// The process, as it sees itself.
    pub pid: u32,
    /// What it is called.
    pub name: String,
    /// For which tenant.
    pub tenant: String,
    /// How much it waits for.
    pub bytes: Bytes,
    /// How urgently.
    pub priority: Priority,
    /// Since when.
    pub since: SystemTime,
}

/// A copy of the words of a ledger this process uses, taken behind its lock.
pub(crate) fn copied(inner: &Inner) -> Result<Sheet, LedgerError> {
    let desk = inner.desk()?;
    let words = inner.book.words();
    let copy: Vec<u64> = (0..inner.book.layout().words()).map(|at| words.load(at)).collect();
    drop(desk);
    let me = inner.book.place();
    let alive = (0..inner.book.layout().places).map(|place| place == me || words.alive(place)).collect();
    let sheet = Sheet::new(copy, alive);
    let found = Book::new(&sheet, inner.book.layout(), inner.book.layout().places).lock_copy().contradiction();
    found.map_or(Ok(sheet), |what| Err(LedgerError::Corrupt { file: inner.path(), what: what.into() }))
}

fn time(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Reads a copy, after burying the dead in it.
pub(crate) fn read(sheet: Sheet, subject: Subject) -> Reading {
    let layout = Layout::FILE;
    let book = Book::new(sheet, layout, layout.places);
    let mut desk = book.lock_copy();
    desk.digest();
    desk.bury_the_dead();
    let name_of = |place: usize| match place < layout.places {
        true => (book.peek_process(place, process::PID) as u32, book.process_name(place)),
        // Nobody's: the copy is damaged there.
        false => (0, "unknown".to_owned()),
    };
    let mut processes = Vec::new();
    for place in 0..layout.places {
        if book.peek_process(place, process::STATE) & process::TAKEN != 0 {
            let ((pid, name), (held, undrawn)) = (name_of(place), desk.holding_of(place));
            let since = time(book.peek_process(place, process::SINCE));
            processes.push(ProcessReading { pid, name, held: Bytes(held), undrawn: Bytes(undrawn), since });
        }
    }
    let tenants = desk.nodes().filter(|&tenant| desk.of(tenant, node::KIND) == TENANT);
    let tenants = tenants.map(|tenant| TenantReading {
        name: desk.tenant_name(tenant),
        guarantee: Bytes(desk.of(tenant, node::GUARANTEE)),
        ceiling: Bytes(desk.of(tenant, node::CEILING)),
        charged: Bytes(desk.of(tenant, node::TOTAL)),
    });
    let waiting = desk.queue().into_iter().map(|(wanting, place)| {
        let (pid, name) = name_of(place);
        let (tenant, priority) = (desk.tenant_name(wanting.tenant), Priority(wanting.priority as u8));
        WaitingReading { pid, name, tenant, bytes: Bytes(wanting.bytes), priority, since: time(wanting.since) }
    });
    let (charged, undrawn) = desk.sums();
    Reading {
        uuid: subject.uuid,
        name: subject.name,
        total: subject.total,
        limit: Bytes(desk.of(0, node::CEILING)),
        held: Bytes(charged.saturating_sub(undrawn)),
        undrawn: Bytes(undrawn),
        unmanaged: Bytes(desk.unmanaged()),
        processes,
        tenants: tenants.collect(),
        waiting: waiting.collect(),
    }
}
