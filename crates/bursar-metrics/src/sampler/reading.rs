//! From the reading of a ledger to a state.

use super::milliseconds;
use crate::state::{
    HolderState, LedgerState, ProcessState, QueuedState, RefusalState, TenantState, UsageState, WaitBucket, WaitState,
};
use bursar_ledger::{
    ProcessReading, Reading, RefusalCounts, RefusalReading, TenantReading, UsageReading, WaitHistogram, WaitingReading,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Returns the state of a device from the reading of its ledger alone.
pub(super) fn state_of(uuid: String, reading: &Reading) -> LedgerState {
    let mut ledger = LedgerState {
        uuid,
        name: reading.name.clone(),
        total: reading.total.get(),
        limit: reading.limit.get(),
        held: reading.held.get(),
        undrawn: reading.undrawn.get(),
        unmanaged: reading.unmanaged.get(),
        processes: reading.processes.iter().map(process).collect(),
        tenants: reading.tenants.iter().map(tenant).collect(),
        waiting: reading.waiting.iter().map(waiting).collect(),
        refused: refused(reading.refused),
        refusals: reading.refusals.iter().map(refusal).collect(),
        waits: waits(&reading.waits),
        ..LedgerState::default()
    };
    ledger.cached = cached(&ledger.processes);
    ledger.free = ledger.free();
    ledger
}

fn process(process: &ProcessReading) -> ProcessState {
    ProcessState {
        pid: process.pid,
        name: process.name.clone(),
        labels: process.labels.clone(),
        held: process.held.get(),
        undrawn: process.undrawn.get(),
        since_ms: milliseconds(process.since),
        usage: process.usage.as_ref().map(usage),
        refused: process.refused,
        waited_ms: whole_milliseconds(process.waited),
    }
}

fn usage(usage: &UsageReading) -> UsageState {
    let holder =
        |holder: &bursar_ledger::HolderReading| HolderState { tag: holder.tag.clone(), live: holder.live.get() };
    UsageState {
        live: usage.live.get(),
        cached: usage.cached.get(),
        peak: usage.peak.get(),
        holders: usage.holders.iter().map(holder).collect(),
        published_ms: milliseconds(usage.published),
    }
}

/// Returns the bytes that the processes which publish it cache together; none if none of them does.
fn cached(processes: &[ProcessState]) -> Option<u64> {
    processes.iter().filter_map(|process| Some(process.usage.as_ref()?.cached)).reduce(u64::saturating_add)
}

fn tenant(tenant: &TenantReading) -> TenantState {
    TenantState {
        name: tenant.name.clone(),
        guarantee: tenant.guarantee.get(),
        ceiling: tenant.ceiling.get(),
        charged: tenant.charged.get(),
        refused: tenant.refused,
        waited_ms: whole_milliseconds(tenant.waited),
    }
}

fn waiting(waiting: &WaitingReading) -> QueuedState {
    QueuedState {
        pid: waiting.pid,
        name: waiting.name.clone(),
        tenant: waiting.tenant.clone(),
        bytes: waiting.bytes.get(),
        priority: waiting.priority.0,
        since_ms: milliseconds(waiting.since),
    }
}

fn refusal(refusal: &RefusalReading) -> RefusalState {
    let mut told = RefusalState {
        at_ms: milliseconds(refusal.when),
        pid: refusal.pid,
        name: refusal.name.clone(),
        tenant: refusal.tenant.clone(),
        reason: refusal.reason.label().to_owned(),
        requested: refusal.requested.get(),
        available: refusal.available.get(),
        limit: refusal.limit.get(),
        explanation: String::new(),
    };
    told.explanation = told.explain();
    told
}

/// Returns the number of refusals for every reason, those that never happened too: a scraper needs them at zero.
pub(super) fn refused(counts: RefusalCounts) -> BTreeMap<String, u64> {
    counts.iter().map(|(reason, count)| (reason.label().to_owned(), count)).collect()
}

pub(super) fn waits(waits: &WaitHistogram) -> WaitState {
    let bucket = |(bound, count): (Option<Duration>, u64)| Some(WaitBucket { le_seconds: bound?.as_secs_f64(), count });
    WaitState {
        buckets: waits.cumulative().filter_map(bucket).collect(),
        sum_seconds: waits.sum().as_secs_f64(),
        count: waits.count(),
    }
}

fn whole_milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
