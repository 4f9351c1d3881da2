//! The devices, or the machine's memory, that a stage may use: what is available there, and the ledger to reserve it in.

use super::Spec;
use crate::{Candidate, FitError, MemoryKind};
use bursar_core::DeviceContext;
use bursar_ledger::{Ledger, Subject};
use std::sync::Arc;

/// A device or the machine's memory, with its ledger.
#[derive(Debug)]
pub(super) struct Target {
    context: Option<Arc<DeviceContext>>,
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
        let available = match (&spec.probe, &self.ledger, &self.context) {
            (Some(probe), ..) => probe(device)?,
            (None, Some(ledger), _) => ledger.available()?,
            (None, None, Some(context)) => context.driver().memory(context.device())?.free,
            (None, None, None) => spec.ram.read()?.available(),
        };
        Ok(Candidate { device, available, distance: self.distance })
    }
}

/// Returns whether somebody has opened the ledger of `subject`.
fn ledger_exists(subject: &Subject) -> Result<bool, FitError> {
    Ok(Ledger::folder()?.join(subject.file_name()).exists())
}

/// Opens the ledger of the machine's memory, measured by what is available to this program.
fn host_ledger(spec: &Spec, join: Join) -> Result<Option<Ledger>, FitError> {
    if join == Join::IfExists && (spec.probe.is_some() || !ledger_exists(&Subject::host(spec.ram.read()?.total))?) {
        return Ok(None);
    }
    let (ram, probe) = (spec.ram.clone(), spec.probe.clone());
    let ledger = spec.ram.open_ledger(move || match &probe {
        Some(probe) => probe(None),
        None => ram.read().map(|reading| reading.available()),
    })?;
    Ok(Some(ledger))
}
