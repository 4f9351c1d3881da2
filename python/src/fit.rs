//! Plans how many workers fit.

use crate::failure::Failure;
use crate::machine::Machine;
use crate::size::Size;

use bursar::driver::DriverChoiceError;
use bursar::fit::{Assignment, Candidate, FitError, Headroom, MemoryKind, Need, OneMore, Overflow, Plan, Spec};
use bursar::{Bytes, DeviceId};
use pyo3::prelude::*;
use std::sync::Arc;

/// The fields of `bursar.Plan`, by name.
#[derive(Debug, IntoPyObject)]
pub(crate) struct PlanFields {
    label: String,
    memory: &'static str,
    kind: Option<&'static str>,
    workers: u64,
    wanted: u64,
    overflow: Option<&'static str>,
    available: u64,
    charged: u64,
    headroom: f64,
    budget: u64,
    fixed: u64,
    per_worker: u64,
    assignments: Vec<AssignmentFields>,
    explanation: String,
    advice: Option<String>,
    warning: Option<String>,
    one_more: Option<OneMoreFields>,
}

/// The fields of `bursar.Assignment`, by name.
#[derive(Debug, IntoPyObject)]
struct AssignmentFields {
    device: Option<u32>,
    uuid: Option<String>,
    available: u64,
    charged: u64,
    budget: u64,
    room: u64,
    workers: u64,
}

/// The fields of `bursar.OneMore`, by name.
#[derive(Debug, IntoPyObject)]
struct OneMoreFields {
    device: Option<u32>,
    available: Option<u64>,
    per_worker: Option<u64>,
    fixed: Option<u64>,
    headroom: Option<f64>,
}

/// Plans how many workers fit, and reserves nothing. In VRAM it is an error if not even one does, unless that is allowed.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "each is a keyword of the Python function")]
pub(crate) fn fit(
    py: Python<'_>,
    memory: &str,
    per_worker: Size,
    fixed: Size,
    workers: u64,
    headroom: Option<f64>,
    available: Option<Size>,
    devices: Option<Vec<u32>>,
    label: &str,
    allow_overflow: bool,
) -> Result<PlanFields, Failure> {
    let memory: MemoryKind = memory.parse().map_err(Failure::value)?;
    let machine = match (memory, available) {
        (MemoryKind::Vram, None) => Some(real_machine(py)?),
        _ if devices.is_some() => {
            return Err(Failure::value("devices: none is asked where `available` says what there is, or for RAM"));
        }
        _ => None,
    };
    if let Some(twice) = devices
        .iter()
        .flatten()
        .enumerate()
        .find_map(|(at, device)| devices.iter().flatten().take(at).find(|before| *before == device))
    {
        return Err(Failure::value(format!("devices: gpu{twice} is named twice")));
    }
    let plan = py.detach(|| {
        let spec = match &machine {
            Some(machine) => Spec::vram(label, machine.all_observed(devices.as_deref())?),
            None => Spec::new(label, memory),
        };
        let spec = spec.fixed(fixed.0).per_worker(per_worker.0).want(workers);
        let spec = headroom.map_or(spec.clone(), |headroom| spec.headroom(headroom));
        let spec = available.map_or(spec.clone(), |available| spec.available(available.0));
        Ok::<_, Failure>(spec.plan()?)
    })?;
    if plan.overflow.is_some() && memory == MemoryKind::Vram && !allow_overflow {
        return Err(FitError::Overflow(Box::new(plan)).into());
    }
    fields(&plan, label, machine.as_deref())
}

/// Plans workers over cards of which so many bytes are available and charged, wherever they are. It is an error if not even one fits.
#[pyfunction]
pub(crate) fn fit_cards(
    per_worker: Size,
    fixed: Size,
    workers: u64,
    headroom: Option<f64>,
    cards: Vec<(u64, u64)>,
) -> Result<PlanFields, Failure> {
    let headroom = headroom.map(Headroom::try_from).transpose().map_err(Failure::value)?.unwrap_or_default();
    let need = Need { fixed: fixed.0, per_worker: per_worker.0, want: workers, headroom };
    let candidate = |(number, (available, charged)): (u32, (u64, u64))| Candidate {
        device: Some(DeviceId(number)),
        available: Bytes(available),
        charged: Bytes(charged),
        distance: 0,
        limit: None,
    };
    let candidates: Vec<Candidate> = (0..).zip(cards).map(candidate).collect();
    let plan =
        Plan::of(MemoryKind::Vram, need, &candidates).ok_or_else(|| Failure::value("there is no card to plan for"))?;
    if plan.overflow.is_some() {
        return Err(FitError::Overflow(Box::new(plan)).into());
    }
    fields(&plan, "cluster", None)
}

/// Returns the machine, unless its devices are simulated only because there is no GPU: how many workers fit into those would
/// be an answer about nothing.
fn real_machine(py: Python<'_>) -> Result<Arc<Machine>, Failure> {
    let machine = Machine::get_silently(py)?;
    match machine.instead_of_cuda() {
        Some(why) => Err(DriverChoiceError::NoCuda { why: why.to_owned() }.into()),
        None => Ok(machine),
    }
}

fn fields(plan: &Plan, label: &str, machine: Option<&Machine>) -> Result<PlanFields, Failure> {
    let assignments = plan.assignments.iter().map(|assignment| assigned(assignment, machine));
    Ok(PlanFields {
        label: label.to_owned(),
        memory: plan.memory.name(),
        kind: machine.map(Machine::kind),
        workers: plan.workers,
        wanted: plan.need.wanted(),
        overflow: plan.overflow.map(|overflow| match overflow {
            Overflow::Shared => "shared",
            Overflow::Worker => "worker",
        }),
        available: plan.available().get(),
        charged: plan.charged().get(),
        headroom: f64::from(plan.need.headroom.get()) / 1e6,
        budget: plan.budget().get(),
        fixed: plan.need.fixed.get(),
        per_worker: plan.need.per_worker.get(),
        assignments: assignments.collect::<Result<_, _>>()?,
        explanation: plan.explanation(),
        advice: plan.advice(),
        warning: plan.overflow_message(),
        one_more: plan.one_more().map(|more| one_more(plan, &more)),
    })
}

fn assigned(assignment: &Assignment, machine: Option<&Machine>) -> Result<AssignmentFields, Failure> {
    let Assignment { candidate, budget, room, workers } = *assignment;
    let context = machine.zip(candidate.device).map(|(machine, device)| machine.observed(device)).transpose()?;
    Ok(AssignmentFields {
        device: candidate.device.map(|device| device.0),
        uuid: context.map(|context| context.facts().uuid.to_string()),
        available: candidate.available.get(),
        charged: candidate.charged.get(),
        budget: budget.get(),
        room,
        workers,
    })
}

fn one_more(plan: &Plan, more: &OneMore) -> OneMoreFields {
    OneMoreFields {
        device: plan.assignments[more.candidate].candidate.device.map(|device| device.0),
        available: more.available.map(Bytes::get),
        per_worker: more.per_worker.map(Bytes::get),
        fixed: more.fixed.map(Bytes::get),
        headroom: more.headroom.map(|headroom| f64::from(headroom.get()) / 1e6),
    }
}
