//! The ledgers: who holds what of each device.

use crate::devices::reading_of;
use crate::failure::Failure;
use crate::machine::Machine;
use bursar::device::DeviceContext;
use bursar::ledger::{Ledger, Reading, RefusalCounts, Subject, UsageReading};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

/// The fields of `bursar.LedgerReading`, by name.
#[derive(Debug, IntoPyObject)]
pub(crate) struct LedgerFields {
    folder: String,
    devices: Vec<DeviceLedgerFields>,
    unreadable: Vec<UnreadableFields>,
}

/// The fields of `bursar.DeviceLedger`, by name.
#[derive(Debug, IntoPyObject)]
struct DeviceLedgerFields {
    device: Option<u32>,
    uuid: String,
    name: String,
    total: u64,
    limit: u64,
    held: u64,
    set_aside: u64,
    unmanaged: u64,
    processes: Vec<ProcessFields>,
    tenants: Vec<TenantFields>,
    waiting: Vec<WaitingFields>,
    refused: BTreeMap<&'static str, u64>,
    refusals: Vec<RefusalFields>,
}

/// The fields of `bursar.RefusalEntry`, by name.
#[derive(Debug, IntoPyObject)]
struct RefusalFields {
    pid: u32,
    name: String,
    tenant: String,
    reason: &'static str,
    requested: u64,
    available: u64,
    limit: u64,
    when: f64,
}

/// The fields of `bursar.UsageEntry`, by name.
#[derive(Debug, IntoPyObject)]
struct UsageFields {
    live: u64,
    cached: u64,
    peak: u64,
    holders: Vec<(String, u64)>,
}

/// The fields of `bursar.UnreadableLedger`, by name.
#[derive(Debug, IntoPyObject)]
struct UnreadableFields {
    uuid: String,
    error: String,
}

/// The fields of `bursar.ProcessEntry`, by name; moments are seconds since 1970.
#[derive(Debug, IntoPyObject)]
struct ProcessFields {
    pid: u32,
    name: String,
    labels: Vec<String>,
    held: u64,
    set_aside: u64,
    since: f64,
    usage: Option<UsageFields>,
    refused: u64,
    waited: f64,
}

/// The fields of `bursar.TenantEntry`, by name.
#[derive(Debug, IntoPyObject)]
struct TenantFields {
    name: String,
    guarantee: u64,
    ceiling: u64,
    charged: u64,
    refused: u64,
    waited: f64,
}

/// The fields of `bursar.WaitingEntry`, by name.
#[derive(Debug, IntoPyObject)]
struct WaitingFields {
    pid: u32,
    name: String,
    tenant: String,
    bytes: u64,
    priority: u8,
    since: f64,
}

/// Reads the ledgers of the driver's devices, and those in the folder of ledgers that belong to none of them.
#[pyfunction]
pub(crate) fn ledger(py: Python<'_>) -> Result<LedgerFields, Failure> {
    let machine = Machine::get(py)?;
    py.detach(|| {
        let mut fields = LedgerFields {
            folder: Ledger::folder()?.display().to_string(),
            devices: Vec::new(),
            unreadable: Vec::new(),
        };
        let mut known = Vec::new();
        for context in machine.all_observed(None)? {
            known.push(Subject::device(context.facts()).file_name());
            fields.add(&context.facts().uuid.to_string(), of_device(&context));
        }
        for file in Ledger::list()? {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !known.contains(&name) {
                let uuid = name.trim_end_matches(".ledger");
                let reading = Ledger::inspect(&file).map_err(Failure::from);
                fields.add(uuid, reading.map(|reading| DeviceLedgerFields::new(uuid.to_owned(), &reading)));
            }
        }
        Ok(fields)
    })
}

impl LedgerFields {
    fn add(&mut self, uuid: &str, read: Result<DeviceLedgerFields, Failure>) {
        match read {
            Ok(fields) => self.devices.push(fields),
            Err(error) => self.unreadable.push(UnreadableFields { uuid: uuid.to_owned(), error: error.to_string() }),
        }
    }
}

/// Reads the ledger of a device. What is used outside the ledger is measured, not taken from the file.
fn of_device(context: &Arc<DeviceContext>) -> Result<DeviceLedgerFields, Failure> {
    let (facts, memory) = (context.facts(), context.driver().memory(context.device())?);
    let uuid = facts.uuid.to_string();
    let mut fields = match reading_of(context)? {
        Some(reading) => DeviceLedgerFields::new(uuid, &reading),
        None => DeviceLedgerFields {
            device: None,
            uuid,
            name: facts.name.clone(),
            total: facts.total.get(),
            limit: facts.total.get(),
            held: 0,
            set_aside: 0,
            unmanaged: 0,
            processes: Vec::new(),
            tenants: Vec::new(),
            waiting: Vec::new(),
            refused: by_reason(RefusalCounts::default()),
            refusals: Vec::new(),
        },
    };
    fields.device = Some(context.device().0);
    fields.unmanaged = memory.used().get().saturating_sub(fields.held);
    Ok(fields)
}

impl DeviceLedgerFields {
    fn new(uuid: String, reading: &Reading) -> Self {
        let processes = reading.processes.iter().map(|process| ProcessFields {
            pid: process.pid,
            name: process.name.clone(),
            labels: process.labels.clone(),
            held: process.held.get(),
            set_aside: process.undrawn.get(),
            since: seconds(process.since),
            usage: process.usage.as_ref().map(UsageFields::new),
            refused: process.refused,
            waited: process.waited.as_secs_f64(),
        });
        let tenants = reading.tenants.iter().map(|tenant| TenantFields {
            name: tenant.name.clone(),
            guarantee: tenant.guarantee.get(),
            ceiling: tenant.ceiling.get(),
            charged: tenant.charged.get(),
            refused: tenant.refused,
            waited: tenant.waited.as_secs_f64(),
        });
        let waiting = reading.waiting.iter().map(|waiting| WaitingFields {
            pid: waiting.pid,
            name: waiting.name.clone(),
            tenant: waiting.tenant.clone(),
            bytes: waiting.bytes.get(),
            priority: waiting.priority.0,
            since: seconds(waiting.since),
        });
        let refusals = reading.refusals.iter().map(|refusal| RefusalFields {
            pid: refusal.pid,
            name: refusal.name.clone(),
            tenant: refusal.tenant.clone(),
            reason: refusal.reason.label(),
            requested: refusal.requested.get(),
            available: refusal.available.get(),
            limit: refusal.limit.get(),
            when: seconds(refusal.when),
        });
        Self {
            device: None,
            uuid,
            name: reading.name.clone(),
            total: reading.total.get(),
            limit: reading.limit.get(),
            held: reading.held.get(),
            set_aside: reading.undrawn.get(),
            unmanaged: reading.unmanaged.get(),
            processes: processes.collect(),
            tenants: tenants.collect(),
            waiting: waiting.collect(),
            refused: by_reason(reading.refused),
            refusals: refusals.collect(),
        }
    }
}

impl UsageFields {
    fn new(usage: &UsageReading) -> Self {
        let holders = usage.holders.iter().map(|held| (held.tag.clone(), held.live.get()));
        Self { live: usage.live.get(), cached: usage.cached.get(), peak: usage.peak.get(), holders: holders.collect() }
    }
}

fn by_reason(counts: RefusalCounts) -> BTreeMap<&'static str, u64> {
    counts.iter().map(|(reason, count)| (reason.label(), count)).collect()
}

fn seconds(moment: SystemTime) -> f64 {
    moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
