//! The ledgers as data, and as they are shown to people.

use super::{Machine, reading_for, time};
use crate::failure::Failure;
use crate::output::{BAD, FAINT, HEADING, Show, printable};
use bursar::device::DeviceFacts;
use bursar::driver::Driver;
use bursar::ledger::{Ledger, Reading, RefusalCounts, Subject, UsageReading};
use bursar::{Bytes, DeviceId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{Result, Write};
use std::time::SystemTime;

/// The ledgers of a folder and of the driver's devices.
#[derive(Debug, Serialize)]
pub(crate) struct LedgerList {
    /// The folder of the ledger files.
    folder: String,
    /// The driver whose devices are listed; none if there is no GPU.
    driver: Option<String>,
    /// True if its devices are simulated.
    simulated: bool,
    /// The reason that there is no GPU.
    no_gpu: Option<String>,
    devices: Vec<LedgerEntry>,
}

/// A ledger, or the error of reading it.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum LedgerEntry {
    Read(DeviceLedger),
    Unreadable { uuid: String, error: String },
}

#[derive(Debug, Serialize)]
pub(crate) struct DeviceLedger {
    /// The device's number on the driver, if the driver has it.
    ordinal: Option<u32>,
    uuid: String,
    name: String,
    total: u64,
    limit: u64,
    held: u64,
    undrawn: u64,
    unmanaged: u64,
    processes: Vec<ProcessRow>,
    tenants: Vec<TenantRow>,
    waiting: Vec<WaitingRow>,
    waits: WaitsRow,
    /// The requests that were refused since the ledger was made, by reason.
    refused: BTreeMap<&'static str, u64>,
    /// The last of them, newest first.
    refusals: Vec<RefusalRow>,
}

/// The requests that have left the queue since the ledger was made.
#[derive(Debug, Default, Serialize)]
struct WaitsRow {
    count: u64,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct UsageRow {
    live: u64,
    cached: u64,
    peak: u64,
    holders: Vec<HolderRow>,
    published: String,
}

#[derive(Debug, Serialize)]
struct HolderRow {
    tag: String,
    live: u64,
}

#[derive(Debug, Serialize)]
struct RefusalRow {
    when: String,
    seconds: u64,
    pid: u32,
    name: String,
    tenant: String,
    reason: &'static str,
    requested: u64,
    available: u64,
    limit: u64,
}

#[derive(Debug, Serialize)]
struct ProcessRow {
    pid: u32,
    name: String,
    /// The labels of what it has set aside or draws on.
    labels: Vec<String>,
    held: u64,
    undrawn: u64,
    since: String,
    seconds: u64,
    /// The memory that it uses of what it holds, if it says so.
    usage: Option<UsageRow>,
    refused: u64,
    waited_seconds: f64,
}

#[derive(Debug, Serialize)]
struct TenantRow {
    name: String,
    guarantee: u64,
    ceiling: u64,
    charged: u64,
    refused: u64,
    waited_seconds: f64,
}

#[derive(Debug, Serialize)]
struct WaitingRow {
    pid: u32,
    name: String,
    tenant: String,
    bytes: u64,
    since: String,
    seconds: u64,
}

impl LedgerList {
    /// Lists the ledgers of the driver's devices, with zeros if there is none yet, and those of devices that it does not
    /// have.
    pub(super) fn list(machine: &Machine) -> std::result::Result<Self, Failure> {
        let (mut devices, mut known) = (Vec::new(), Vec::new());
        let (opened, no_gpu) = match machine {
            Machine::Opened(opened) => (Some(opened), None),
            Machine::WithoutGpu { why } => (None, Some(why.clone())),
        };
        if let Some(driver) = opened.map(|opened| &*opened.driver) {
            for ordinal in (0..driver.device_count()).map(DeviceId) {
                let facts = driver.facts(ordinal)?;
                if facts.shared {
                    known.push(Subject::device(&facts).file_name());
                    devices.push(of_device(driver, ordinal, &facts));
                }
            }
        }
        for file in Ledger::list()? {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !known.contains(&name) {
                let uuid = name.trim_end_matches(".ledger").to_owned();
                devices.push(match Ledger::inspect(&file) {
                    Ok(reading) => LedgerEntry::Read(DeviceLedger::new(None, uuid, &reading)),
                    Err(error) => LedgerEntry::Unreadable { uuid, error: error.to_string() },
                });
            }
        }
        Ok(Self {
            folder: Ledger::folder()?.display().to_string(),
            driver: opened.map(|opened| opened.driver.describe()),
            simulated: opened.is_some_and(|opened| opened.is_simulated),
            no_gpu,
            devices,
        })
    }

    /// Fails if one of them cannot be read.
    pub(super) fn check_readable(&self) -> std::result::Result<(), Failure> {
        let errors = || {
            self.devices.iter().filter_map(|device| match device {
                LedgerEntry::Unreadable { error, .. } => Some(error),
                LedgerEntry::Read(_) => None,
            })
        };
        match errors().next() {
            Some(first) => Err(Failure::UnreadableLedgers { count: errors().count(), first: first.clone() }),
            None => Ok(()),
        }
    }

    /// Keeps the ledger of one device only.
    pub(super) fn only(mut self, subject: &Subject) -> Self {
        let file = subject.file_name();
        let uuid = file.trim_end_matches(".ledger");
        self.devices.retain(|device| matches!(device, LedgerEntry::Read(device) if device.uuid == uuid));
        self
    }
}

/// Reads the ledger of a device that the driver has. What is used outside the ledger is measured, not taken from the file.
fn of_device(driver: &dyn Driver, ordinal: DeviceId, facts: &DeviceFacts) -> LedgerEntry {
    let uuid = facts.uuid.to_string();
    let unreadable = |error: String| LedgerEntry::Unreadable { uuid: uuid.clone(), error };
    let reading = match reading_for(facts) {
        Ok(reading) => reading,
        Err(error) => return unreadable(error.to_string()),
    };
    let memory = match driver.memory(ordinal) {
        Ok(memory) => memory,
        Err(error) => return unreadable(error.to_string()),
    };
    let held = reading.as_ref().map_or(Bytes::ZERO, |reading| reading.held);
    let unmanaged = memory.used().saturating_sub(held).get();
    let (name, total) = (facts.name.clone(), facts.total.get());
    let mut device = match &reading {
        Some(reading) => DeviceLedger::new(Some(ordinal.0), uuid, reading),
        None => DeviceLedger { name, total, limit: total, ..DeviceLedger::empty(Some(ordinal.0), uuid) },
    };
    device.unmanaged = unmanaged;
    LedgerEntry::Read(device)
}

impl DeviceLedger {
    fn empty(ordinal: Option<u32>, uuid: String) -> Self {
        Self {
            ordinal,
            uuid,
            name: String::new(),
            total: 0,
            limit: 0,
            held: 0,
            undrawn: 0,
            unmanaged: 0,
            processes: Vec::new(),
            tenants: Vec::new(),
            waiting: Vec::new(),
            waits: WaitsRow::default(),
            refused: by_reason(RefusalCounts::default()),
            refusals: Vec::new(),
        }
    }

    fn new(ordinal: Option<u32>, uuid: String, reading: &Reading) -> Self {
        let now = SystemTime::now();
        let seconds = |since: SystemTime| now.duration_since(since).unwrap_or_default().as_secs();
        let processes = reading.processes.iter().map(|process| ProcessRow {
            pid: process.pid,
            name: process.name.clone(),
            labels: process.labels.clone(),
            held: process.held.get(),
            undrawn: process.undrawn.get(),
            since: time::utc(process.since),
            seconds: seconds(process.since),
            usage: process.usage.as_ref().map(UsageRow::new),
            refused: process.refused,
            waited_seconds: process.waited.as_secs_f64(),
        });
        let tenants = reading.tenants.iter().map(|tenant| TenantRow {
            name: tenant.name.clone(),
            guarantee: tenant.guarantee.get(),
            ceiling: tenant.ceiling.get(),
            charged: tenant.charged.get(),
            refused: tenant.refused,
            waited_seconds: tenant.waited.as_secs_f64(),
        });
        let waiting = reading.waiting.iter().map(|waiting| WaitingRow {
            pid: waiting.pid,
            name: waiting.name.clone(),
            tenant: waiting.tenant.clone(),
            bytes: waiting.bytes.get(),
            since: time::utc(waiting.since),
            seconds: seconds(waiting.since),
        });
        let refusals = reading.refusals.iter().map(|refusal| RefusalRow {
            when: time::utc(refusal.when),
            seconds: seconds(refusal.when),
            pid: refusal.pid,
            name: refusal.name.clone(),
            tenant: refusal.tenant.clone(),
            reason: refusal.reason.label(),
            requested: refusal.requested.get(),
            available: refusal.available.get(),
            limit: refusal.limit.get(),
        });
        Self {
            name: reading.name.clone(),
            total: reading.total.get(),
            limit: reading.limit.get(),
            held: reading.held.get(),
            undrawn: reading.undrawn.get(),
            unmanaged: reading.unmanaged.get(),
            processes: processes.collect(),
            tenants: tenants.collect(),
            waiting: waiting.collect(),
            waits: WaitsRow { count: reading.waits.count(), seconds: reading.waits.sum().as_secs_f64() },
            refused: by_reason(reading.refused),
            refusals: refusals.collect(),
            ..Self::empty(ordinal, uuid)
        }
    }
}

fn by_reason(counts: RefusalCounts) -> BTreeMap<&'static str, u64> {
    counts.iter().map(|(reason, count)| (reason.label(), count)).collect()
}

impl UsageRow {
    fn new(usage: &UsageReading) -> Self {
        let holders = usage.holders.iter().map(|held| HolderRow { tag: held.tag.clone(), live: held.live.get() });
        Self {
            live: usage.live.get(),
            cached: usage.cached.get(),
            peak: usage.peak.get(),
            holders: holders.collect(),
            published: time::utc(usage.published),
        }
    }
}

impl Show for LedgerList {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        let simulated = if self.simulated { ", of simulated devices" } else { "" };
        writeln!(out, "{HEADING}Ledgers{HEADING:#} {FAINT}in {}{simulated}{FAINT:#}", self.folder)?;
        if let Some(why) = &self.no_gpu {
            writeln!(out, "{FAINT}no GPU is asked: {why}{FAINT:#}")?;
        }
        if self.devices.is_empty() {
            return writeln!(out, "none, and no device that processes share");
        }
        self.devices.iter().try_for_each(|device| match device {
            LedgerEntry::Read(device) => device.show(out),
            LedgerEntry::Unreadable { uuid, error } => {
                writeln!(out, "{}  {BAD}cannot be read: {}{BAD:#}", printable(uuid), printable(error))
            }
        })
    }
}

impl Show for DeviceLedger {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        let ordinal = self.ordinal.map_or_else(|| "–".to_owned(), |ordinal| DeviceId(ordinal).to_string());
        let [total, limit, held] = [self.total, self.limit, self.held].map(Bytes);
        let name = printable(&self.name);
        writeln!(out, "{ordinal}  {name}  {held} held of {limit} {FAINT}(the device has {total}){FAINT:#}")?;
        writeln!(out, "      {}", printable(&self.uuid))?;
        writeln!(out, "      {} set aside, {} unmanaged", Bytes(self.undrawn), Bytes(self.unmanaged))?;
        for process in &self.processes {
            let ProcessRow { pid, name, labels, held, undrawn, seconds, .. } = process;
            let (held, undrawn) = (Bytes(*held), Bytes(*undrawn));
            let age = time::age(*seconds);
            let labels = if labels.is_empty() { String::new() } else { format!(" [{}]", labels.join(", ")) };
            let (name, labels) = (printable(name), printable(&labels));
            write!(out, "      {pid:>8}  {name:<16}{labels} ")?;
            writeln!(out, "{held} held, {undrawn} set aside {FAINT}for {age}{FAINT:#}")?;
            if let Some(usage) = &process.usage {
                usage.show(out)?;
            }
        }
        for tenant in self.tenants.iter().filter(|tenant| !tenant.name.is_empty()) {
            let TenantRow { name, guarantee, ceiling, charged, .. } = tenant;
            let [guarantee, charged] = [guarantee, charged].map(|bytes| Bytes(*bytes));
            let name = printable(name);
            // What the device does not have limits nobody.
            let at_most = match *ceiling < self.total {
                true => format!(" and at most {}", Bytes(*ceiling)),
                false => String::new(),
            };
            writeln!(out, "      tenant {name}: {charged}, at least {guarantee}{at_most}")?;
        }
        for waiting in &self.waiting {
            let WaitingRow { pid, name, bytes, seconds, .. } = waiting;
            let name = printable(name);
            writeln!(out, "      {pid:>8}  {name:<16} waits for {}, for {}", Bytes(*bytes), time::age(*seconds))?;
        }
        self.show_refusals(out)
    }
}

/// The number of refusals that people are shown.
const REFUSALS_SHOWN: usize = 3;

impl DeviceLedger {
    /// Shows how many requests were refused, and the last of them.
    fn show_refusals(&self, out: &mut dyn Write) -> Result<()> {
        let reasons: Vec<String> =
            self.refused.iter().filter(|(_, count)| **count > 0).map(|(why, count)| format!("{why} {count}")).collect();
        if reasons.is_empty() {
            return Ok(());
        }
        writeln!(out, "      refused so far: {}", reasons.join(", "))?;
        for refusal in self.refusals.iter().take(REFUSALS_SHOWN) {
            let RefusalRow { pid, name, reason, seconds, .. } = refusal;
            let [requested, available, limit] = [refusal.requested, refusal.available, refusal.limit].map(Bytes);
            let name = printable(name);
            write!(out, "      {pid:>8}  {name:<16} was refused {requested} ({reason}), ")?;
            writeln!(out, "{available} of {limit} left {FAINT}{} ago{FAINT:#}", time::age(*seconds))?;
        }
        Ok(())
    }
}

impl Show for UsageRow {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        let [live, cached, peak] = [self.live, self.cached, self.peak].map(Bytes);
        write!(out, "                uses {live}, caches {cached}, used {peak} at most")?;
        for (at, HolderRow { tag, live }) in self.holders.iter().enumerate() {
            let (before, tag) = (if at == 0 { ": " } else { ", " }, printable(tag));
            write!(out, "{before}{tag} {}", Bytes(*live))?;
        }
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_without_a_ceiling_is_shown_without_one() {
        for (ceiling, shown) in [((1 << 48) - 1, "at least 1 GiB\n"), (2 << 30, "at least 1 GiB and at most 2 GiB\n")] {
            let (name, guarantee, charged) = ("batch".to_owned(), 1 << 30, 0);
            let tenant = TenantRow { name, guarantee, ceiling, charged, refused: 0, waited_seconds: 0.0 };
            let empty = DeviceLedger::empty(Some(0), "GPU-1".to_owned());
            let mut out = Vec::new();
            DeviceLedger { total: 8 << 30, tenants: vec![tenant], ..empty }.show(&mut out).expect("room");
            let text = String::from_utf8(out).expect("text");
            assert!(text.contains(&format!("tenant batch: 0 B, {shown}")), "{text}");
        }
    }
}
