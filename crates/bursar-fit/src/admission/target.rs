//! The devices, or the machine's memory, that a stage may use: what is available there, and the ledger to reserve it in.

use super::Spec;
use crate::{Candidate, FitError, MemoryKind, Ram};
use bursar_core::{Bytes, DeviceContext};
use bursar_ledger::{Availability, Ledger, ReserveOptions, Subject};
use std::sync::{Arc, Mutex, PoisonError};

/// A device or the machine's memory, with its ledger.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) context: Option<Arc<DeviceContext>>,
    distance: u32,
    pub(super) ledger: Option<Ledger>,
}

/// The choice between creating ledgers that do not exist yet and doing without them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    CreateIfMissing,
    IfExists,
}

impl Target {
    /// Returns every target that `spec` may use.
    pub(super) fn all(spec: &Spec, join: Join) -> Result<Vec<Self>, FitError> {
        if let Some(error) = &spec.headroom_error {
            return Err(error.clone().into());
        }
        match spec.memory {
            MemoryKind::Ram => Ok(vec![Self { context: None, distance: 0, ledger: host_ledger(spec, join)? }]),
            MemoryKind::Vram if spec.devices.is_empty() && spec.probe.is_some() => {
                Ok(vec![Self { context: None, distance: 0, ledger: None }])
            }
            MemoryKind::Vram if spec.devices.is_empty() => Err(FitError::NoDevice),
            MemoryKind::Vram => spec.devices.iter().map(|context| Self::of(spec, context, join)).collect(),
        }
    }

    fn of(spec: &Spec, context: &Arc<DeviceContext>, join: Join) -> Result<Self, FitError> {
        let facts = context.facts();
        let joins = !facts.shared || join == Join::CreateIfMissing || ledger_exists(&Subject::device(facts))?;
        let ledger = joins.then(|| Ledger::for_device(context)).transpose()?;
        Ok(Self { context: Some(context.clone()), distance: spec.distance(facts.numa_node), ledger })
    }

    /// Asks what is available and returns the target as a candidate for a plan.
    pub(super) fn candidate(&self, spec: &Spec) -> Result<Candidate, FitError> {
        let device = self.context.as_ref().map(|context| context.device());
        let nobody_else = |available| Availability { available, charged: Bytes::ZERO };
        let Availability { available, charged } = match (&spec.probe, &self.ledger, &self.context) {
            (Some(probe), ..) => nobody_else(probe(device)?),
            (None, Some(ledger), _) => ledger.availability()?,
            (None, None, Some(context)) => nobody_else(context.driver().memory(context.device())?.free),
            (None, None, None) => nobody_else(spec.ram.read()?.available()),
        };
        let limit = match (&spec.probe, &self.ledger) {
            (None, Some(ledger)) => limit_of(ledger, available.saturating_add(charged))?,
            _ => None,
        };
        Ok(Candidate { device, available, charged, distance: self.distance, limit })
    }
}

/// Returns the limit that somebody has set on a ledger, if `whole`, all that programs have and could have, is up to it.
fn limit_of(ledger: &Ledger, whole: Bytes) -> Result<Option<Bytes>, FitError> {
    let limit = ledger.reading()?.limit;
    Ok((limit < ledger.subject().total && limit <= whole).then_some(limit))
}

/// Returns the options by which a stage reserves memory: with its label, and leaving free what its headroom says, unless a
/// probe says what is available whatever others have.
pub(super) fn options(spec: &Spec) -> ReserveOptions {
    let options = ReserveOptions::new().label(&spec.label);
    match spec.probe {
        Some(_) => options,
        None => options.keep_free_millionths(spec.need.headroom.rest()),
    }
}

/// Returns whether somebody has opened the ledger of `subject`.
fn ledger_exists(subject: &Subject) -> Result<bool, FitError> {
    Ok(Ledger::folder()?.join(subject.file_name()).exists())
}

/// Opens the ledger of the machine's memory, measured by what is available to this program: the one that processes share if
/// the stage needs it or somebody has made it, and otherwise one of this process.
fn host_ledger(spec: &Spec, join: Join) -> Result<Option<Ledger>, FitError> {
    let creates = spec.is_across_processes && join == Join::CreateIfMissing;
    if !creates && spec.probe.is_some() {
        return Ok(None);
    }
    let (ram, probe) = (spec.ram.clone(), spec.probe.clone());
    let available = move || match &probe {
        Some(probe) => probe(None),
        None => ram.read().map(|reading| reading.available()),
    };
    let total = spec.ram.read()?.total;
    if creates || ledger_exists(&Subject::host(total))? {
        return spec.ram.open_ledger(available).map(Some);
    }
    Ok(private_ledger(&spec.ram, total, join).map(|ledger| Ram::measure(ledger, total, available)))
}

/// Returns the ledger of this process for the memory of a machine.
fn private_ledger(ram: &Ram, total: Bytes, join: Join) -> Option<Ledger> {
    static LEDGERS: Mutex<Vec<(Ram, Ledger)>> = Mutex::new(Vec::new());
    let mut ledgers = LEDGERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, ledger)) = ledgers.iter().find(|(known, ledger)| known == ram && ledger.subject().total == total) {
        return Some(ledger.clone());
    }
    let made = (join == Join::CreateIfMissing).then(|| Ledger::private(total))?;
    ledgers.push((ram.clone(), made.clone()));
    Some(made)
}
