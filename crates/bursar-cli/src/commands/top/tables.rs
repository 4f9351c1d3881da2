//! The tables that a state is shown in: who holds, who has, who waits, who was refused.
//!
//! What programs chose, names, labels and tags, is printable before it is in a row.

use super::table::{Cell, Column, Key, Row, Sort};
use crate::commands::ledger::time::{age, utc};
use crate::output::printable;
use bursar::Bytes;
use bursar::metrics::{LedgerState, ProcessState, QueuedState, RefusalState, State, TenantState};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Processes,
    Tenants,
    Queue,
    Refusals,
}

impl Table {
    pub(super) const ALL: [Self; 4] = [Self::Processes, Self::Tenants, Self::Queue, Self::Refusals];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Processes => "Processes",
            Self::Tenants => "Tenants",
            Self::Queue => "Queue",
            Self::Refusals => "Refusals",
        }
    }

    pub(super) const fn columns(self) -> &'static [Column] {
        match self {
            Self::Processes => PROCESSES,
            Self::Tenants => TENANTS,
            Self::Queue => QUEUE,
            Self::Refusals => REFUSALS,
        }
    }

    /// Returns the order that most readers want: the largest first, the next to be served first, the latest first.
    pub(super) const fn order(self) -> Sort {
        match self {
            Self::Processes => Sort { column: 3, descending: true },
            Self::Tenants => Sort { column: 2, descending: true },
            Self::Queue | Self::Refusals => Sort { column: 0, descending: false },
        }
    }

    /// Returns the rows of a state, unsorted.
    pub(super) fn rows(self, state: &State) -> Vec<Row> {
        let devices = state.devices.iter().filter_map(|device| Some((device.label(), device.ledger()?)));
        devices
            .flat_map(|(label, ledger)| match self {
                Self::Processes => rows_of(&ledger.processes, |_, row| process(&label, ledger, row, state.at_ms)),
                Self::Tenants => rows_of(&ledger.tenants, |_, row| tenant(&label, ledger, row, state.at_ms)),
                Self::Queue => rows_of(&ledger.waiting, |at, row| queued(&label, ledger, at, row, state.at_ms)),
                Self::Refusals => rows_of(&ledger.refusals, |_, row| refusal(&label, ledger, row, state.at_ms)),
            })
            .collect()
    }
}

fn rows_of<T>(all: &[T], row: impl Fn(usize, &T) -> Row) -> Vec<Row> {
    all.iter().enumerate().map(|(at, one)| row(at, one)).collect()
}

const PROCESSES: &[Column] = &[
    Column::text("DEVICE", 13, 2),
    Column::number("PID", 0),
    Column::text("NAME", 8, 3),
    Column::number("HELD", 1),
    Column::number("SET ASIDE", 4),
    Column::number("LIVE", 8),
    Column::number("CACHED", 7),
    Column::number("PEAK", 9),
    Column::number("REFUSED", 10),
    Column::number("WAITED", 11),
    Column::number("FOR", 6),
    Column::text("LABEL", 8, 5),
];

fn process(device: &str, ledger: &LedgerState, process: &ProcessState, now_ms: u64) -> Row {
    let usage = process.usage.as_ref();
    let waits = |queued: &QueuedState| (queued.pid, &queued.name) == (process.pid, &process.name);
    let labels = process.labels.iter().map(|label| printable(label)).collect::<Vec<_>>().join(", ");
    let mut more = vec![format!("since {}", utc(moment(process.since_ms)))];
    if !labels.is_empty() {
        more.push(format!("labels: {labels}"));
    }
    if let Some(usage) = usage.filter(|usage| !usage.holders.is_empty()) {
        let holders = usage.holders.iter().map(|holder| format!("{} {}", printable(&holder.tag), Bytes(holder.live)));
        more.push(format!("largest by tag: {}", holders.collect::<Vec<_>>().join(", ")));
    }
    Row {
        id: format!("{} {} {}", ledger.uuid, process.pid, process.since_ms),
        cells: vec![
            text(device),
            number(process.pid.into()),
            text(&process.name),
            size(process.held),
            size(process.undrawn),
            known(usage.map(|usage| usage.live)),
            known(usage.map(|usage| usage.cached)),
            known(usage.map(|usage| usage.peak)),
            number(process.refused),
            elapsed(process.waited_ms.saturating_add(waits_now(ledger, now_ms, waits))),
            elapsed(now_ms.saturating_sub(process.since_ms)),
            text(&labels),
        ],
        more: more.join("; "),
    }
}

/// Returns the time for which these requests of the queue have waited so far. The ledger counts a wait when it has ended.
fn waits_now(ledger: &LedgerState, now_ms: u64, of: impl Fn(&QueuedState) -> bool) -> u64 {
    let waits = ledger.waiting.iter().filter(|queued| of(queued));
    waits.map(|queued| now_ms.saturating_sub(queued.since_ms)).fold(0, u64::saturating_add)
}

const TENANTS: &[Column] = &[
    Column::text("DEVICE", 13, 1),
    Column::text("TENANT", 8, 0),
    Column::number("HAS", 2),
    Column::number("GUARANTEE", 4),
    Column::number("CEILING", 3),
    Column::number("REFUSED", 5),
    Column::number("WAITED", 6),
];

/// The name of the tenant of those who named none.
const NO_TENANT: &str = "(none)";

fn tenant_name(name: &str) -> &str {
    if name.is_empty() { NO_TENANT } else { name }
}

/// Returns the ceiling of a tenant, if it has one: what the device does not have limits nobody.
fn ceiling(ledger: &LedgerState, tenant: &TenantState) -> Option<u64> {
    Some(tenant.ceiling).filter(|ceiling| *ceiling < ledger.total)
}

fn tenant(device: &str, ledger: &LedgerState, tenant: &TenantState, now_ms: u64) -> Row {
    let waits = |queued: &QueuedState| queued.tenant == tenant.name;
    Row {
        id: format!("{} {}", ledger.uuid, tenant.name),
        cells: vec![
            text(device),
            text(tenant_name(&tenant.name)),
            size(tenant.charged),
            size(tenant.guarantee),
            known(ceiling(ledger, tenant)),
            number(tenant.refused),
            elapsed(tenant.waited_ms.saturating_add(waits_now(ledger, now_ms, waits))),
        ],
        more: String::new(),
    }
}

const QUEUE: &[Column] = &[
    Column::number("TURN", 0),
    Column::text("DEVICE", 13, 2),
    Column::number("PID", 1),
    Column::text("NAME", 8, 4),
    Column::text("TENANT", 6, 6),
    Column::number("WAITS FOR", 3),
    Column::number("PRIORITY", 7),
    Column::number("FOR", 5),
];

fn queued(device: &str, ledger: &LedgerState, place: usize, queued: &QueuedState, now_ms: u64) -> Row {
    let why = obstacle(ledger, place, queued);
    Row {
        id: format!("{} {} {}", ledger.uuid, queued.pid, queued.since_ms),
        cells: vec![
            number(place as u64 + 1),
            text(device),
            number(queued.pid.into()),
            text(&queued.name),
            text(tenant_name(&queued.tenant)),
            size(queued.bytes),
            number(queued.priority.into()),
            elapsed(now_ms.saturating_sub(queued.since_ms)),
        ],
        more: format!("since {}; {why}", utc(moment(queued.since_ms))),
    }
}

/// Returns the reason for which a request is not served yet, as far as a state tells it.
fn obstacle(ledger: &LedgerState, place: usize, queued: &QueuedState) -> String {
    let [held, undrawn, limit, unmanaged] = [ledger.held, ledger.undrawn, ledger.limit, ledger.unmanaged].map(Bytes);
    let taken = format!("{held} held and {undrawn} set aside of {limit}");
    // The tenants have all that is held and set aside, and what accounts keep to themselves.
    let charged = ledger.tenants.iter().map(|tenant| tenant.charged).fold(0, u64::saturating_add);
    let with = charged.max(ledger.held.saturating_add(ledger.undrawn)).saturating_add(queued.bytes);
    let tenant = ledger.tenants.iter().find(|tenant| tenant.name == queued.tenant);
    let own = tenant.and_then(|tenant| Some((tenant.charged, ceiling(ledger, tenant)?)));
    match own {
        Some((charged, ceiling)) if charged.saturating_add(queued.bytes) > ceiling => {
            format!("its tenant has {} of {} at most; {taken} by all", Bytes(charged), Bytes(ceiling))
        }
        _ if with > ledger.limit => taken,
        _ if with.saturating_add(ledger.unmanaged) > ledger.total => format!("{taken}, and {unmanaged} unmanaged"),
        _ if place > 0 => format!("others are served before it; {taken}"),
        _ => format!("there is room for it, but not beside the part that it is to leave free; {taken}"),
    }
}

const REFUSALS: &[Column] = &[
    Column::number("AGO", 0),
    Column::text("DEVICE", 13, 5),
    Column::number("PID", 1),
    Column::text("NAME", 8, 6),
    Column::text("TENANT", 6, 8),
    Column::number("ASKED", 2),
    Column::number("LEFT", 3),
    Column::number("LIMIT", 7),
    Column::text("REASON", 7, 4),
];

fn refusal(device: &str, ledger: &LedgerState, refusal: &RefusalState, now_ms: u64) -> Row {
    let RefusalState { pid, name, tenant, reason, explanation, .. } = refusal;
    let explanation = if explanation.is_empty() { refusal.explain() } else { printable(explanation) };
    let [printed, reason_printed] = [name, reason].map(|text| printable(text));
    Row {
        id: format!("{} {pid} {}", ledger.uuid, refusal.at_ms),
        cells: vec![
            elapsed(now_ms.saturating_sub(refusal.at_ms)),
            text(device),
            number((*pid).into()),
            text(name),
            text(tenant_name(tenant)),
            size(refusal.requested),
            size(refusal.available),
            size(refusal.limit),
            text(reason),
        ],
        more: format!("{printed} ({pid}) at {}: {explanation} ({reason_printed})", utc(moment(refusal.at_ms))),
    }
}

/// Returns refusals by reason, if there are any.
pub(super) fn reasons(refused: &BTreeMap<String, u64>) -> Option<String> {
    let counted = refused.iter().filter(|(_, count)| **count > 0);
    let reasons: Vec<String> = counted.map(|(reason, count)| format!("{} {count}", printable(reason))).collect();
    (!reasons.is_empty()).then(|| format!("refused: {}", reasons.join(", ")))
}

/// Returns the moment of so many milliseconds since 1970, or the last that can be told.
pub(super) fn moment(ms: u64) -> SystemTime {
    const YEAR_9999: u64 = 253_402_300_799;
    SystemTime::UNIX_EPOCH + Duration::from_secs((ms / 1000).min(YEAR_9999))
}

fn text(text: &str) -> Cell {
    let text = printable(text);
    Cell { key: Key::Text(text.to_lowercase()), text }
}

fn number(number: u64) -> Cell {
    Cell { text: number.to_string(), key: Key::Number(number) }
}

fn size(bytes: u64) -> Cell {
    Cell { text: Bytes(bytes).to_string(), key: Key::Number(bytes) }
}

/// Returns a size that not every process publishes.
fn known(bytes: Option<u64>) -> Cell {
    bytes.map_or_else(|| Cell { text: "-".to_owned(), key: Key::Unknown }, size)
}

fn elapsed(ms: u64) -> Cell {
    Cell { text: age(ms / 1000), key: Key::Number(ms) }
}
