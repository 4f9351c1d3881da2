//! Where memory comes from: what is available there, and the ledger that it is set aside in.

use crate::{FitError, Pool, Seat, Spec};
use bursar_core::{DeviceContext, MemoryInfo};
use bursar_ledger::{Ledger, Subject};
use std::sync::Arc;

/// A device or the machine's memory.
#[derive(Debug)]
pub(crate) struct Source {
    context: Option<Arc<DeviceContext>>,
    distance: u32,
    pub(crate) ledger: Option<Ledger>,
}

/// Whether ledgers that nobody has opened yet are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    Always,
    IfThere,
}

impl Source {
    /// Everywhere that `spec` may go.
    pub(crate) fn all(spec: &Spec, join: Join) -> Result<Vec<Self>, FitError> {
        match spec.pool {
            Pool::Ram => Ok(vec![Self { context: None, distance: 0, ledger: host_ledger(spec, join)? }]),
            Pool::Vram if spec.devices.is_empty() && spec.probe.is_some() => {
                Ok(vec![Self { context: None, distance: 0, ledger: None }])
            }
            Pool::Vram if spec.devices.is_empty() => Err(FitError::NoDevice),
            Pool::Vram => spec.devices.iter().map(|context| Self::of(spec, context, join)).collect(),
        }
    }

    fn of(spec: &Spec, context: &Arc<DeviceContext>, join: Join) -> Result<Self, FitError> {
        let facts = context.facts();
        let joins = !facts.shared || join == Join::Always || is_there(&Subject::device(facts))?;
        let ledger = joins.then(|| Ledger::for_device(context)).transpose()?;
        Ok(Self { context: Some(context.clone()), distance: spec.distance(facts.numa_node), ledger })
    }

    /// It as a seat for workers.
    pub(crate) fn seat(&self, spec: &Spec) -> Result<Seat, FitError> {
        let device = self.context.as_ref().map(|context| context.device());
        let available = match (&spec.probe, &self.ledger, &self.context) {
            (Some(probe), ..) => probe(device)?,
            (None, Some(ledger), _) => ledger.available()?,
            (None, None, Some(context)) => context.driver().memory(context.device())?.free,
            (None, None, None) => spec.ram.read()?.available(),
        };
        Ok(Seat { device, available, distance: self.distance })
    }
}

/// Whether somebody has opened the ledger of `subject`.
fn is_there(subject: &Subject) -> Result<bool, FitError> {
    Ok(Ledger::folder()?.join(subject.file_name()).exists())
}

/// The ledger of the machine's memory, measured by what is available to this program.
fn host_ledger(spec: &Spec, join: Join) -> Result<Option<Ledger>, FitError> {
    let (ram, probe) = (spec.ram.clone(), spec.probe.clone());
    if probe.is_some() && join == Join::IfThere {
        return Ok(None);
    }
    let subject = Subject::host(ram.read()?.total);
    if join == Join::IfThere && !is_there(&subject)? {
        return Ok(None);
    }
    let total = subject.total;
    Ok(Some(Ledger::open(&subject)?.measured_by(move || {
        let available = match &probe {
            Some(probe) => probe(None),
            None => ram.read().map(|reading| reading.available()),
        };
        Ok(MemoryInfo { free: available.map_err(FitError::from)?.min(total), total })
    })))
}
