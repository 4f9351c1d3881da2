//! `bursar fit`: computes how many workers fit.

mod table;

use crate::failure::Failure;
use crate::output::{self, WARNING};
use crate::stage::{Stage, TracePeak};
use bursar::DeviceId;
use bursar::device::DeviceContext;
use bursar::driver::OpenedDriver;
use bursar::fit::{Assignment, FitError, MemoryKind, Overflow, Plan, Ram};
use serde::Serialize;

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar fit --pool ram --fixed 10GiB --per-worker 4GiB --want 16
  bursar fit --pool vram --fixed @weights.safetensors*1.2 --per-worker 6GiB --want 8 --json
  bursar fit --from-trace run.csv.gz --want 8 --headroom 0.9
  bursar fit --pool vram --available 80GiB --per-worker 6GiB --want 8    without asking any device

Exit status: 0 also where fewer fit than wanted; 1 where not even one fits into VRAM; 3 where there is no GPU to ask.";

/// The plan, as it is shown.
#[derive(Debug, Serialize)]
pub(crate) struct FitReport {
    label: String,
    pool: &'static str,
    /// The driver of the devices; none if no device was asked.
    driver: Option<String>,
    /// True if the devices are simulated.
    simulated: bool,
    /// The machine or the control group that limits the machine's memory.
    bound_by: Option<String>,
    available: u64,
    /// The bytes that programs have already.
    charged: u64,
    headroom: f64,
    budget: u64,
    fixed: u64,
    per_worker: u64,
    from_trace: Option<TracePeak>,
    want: u64,
    workers: u64,
    reduced: bool,
    overflow: bool,
    /// The part that is too large: `shared` or `worker`.
    overflowed: Option<&'static str>,
    devices: Vec<DeviceRow>,
    explanation: String,
    warning: Option<String>,
    one_more: Option<OneMoreRow>,
    #[serde(skip)]
    says_per_worker: bool,
    #[serde(skip)]
    plan: Plan,
}

#[derive(Debug, Serialize)]
struct DeviceRow {
    device: u32,
    uuid: String,
    available: u64,
    charged: u64,
    budget: u64,
    room: u64,
    workers: u64,
}

/// The changes each of which would, by itself, make one more worker fit.
#[derive(Debug, Serialize)]
struct OneMoreRow {
    device: Option<u32>,
    available: Option<u64>,
    per_worker: Option<u64>,
    fixed: Option<u64>,
    headroom: Option<f64>,
    advice: Option<String>,
}

/// Plans and shows how many workers fit. Reserves nothing.
pub(crate) fn fit(
    stage: &Stage,
    json: bool,
    open: impl FnOnce() -> Result<OpenedDriver, Failure>,
) -> Result<(), Failure> {
    if stage.names_devices() && !stage.needs_driver(false) {
        return Err(Failure::Usage("--devices: none is asked where --available says what there is, or for RAM"));
    }
    let opened = stage.needs_driver(false).then(open).transpose().map_err(Failure::of_stage)?;
    let peak = stage.trace_peak()?;
    let plan = stage.spec(opened.as_ref(), peak.as_ref())?.plan()?;
    let report = FitReport::new(stage, opened.as_ref(), peak, plan)?;
    output::show(&report, json)?;
    match (report.plan.overflow, stage.pool) {
        (Some(_), MemoryKind::Vram) if !stage.allow_overflow => {
            let overflow = FitError::Overflow(Box::new(report.plan));
            Err(Failure::AfterOutput(Box::new(overflow.into())))
        }
        (Some(_), _) => {
            warn(&report.plan);
            Ok(())
        }
        (None, _) => Ok(()),
    }
}

/// Warns of an overflow that is allowed.
fn warn(plan: &Plan) {
    if let Some(message) = plan.overflow_message() {
        output::say(format_args!("{WARNING}warning:{WARNING:#} {message}"));
    }
}

impl FitReport {
    fn new(stage: &Stage, opened: Option<&OpenedDriver>, peak: Option<TracePeak>, plan: Plan) -> Result<Self, Failure> {
        let bound_by = match (stage.pool, stage.available) {
            (MemoryKind::Ram, None) => Some(Ram::of_this_machine().read().map_err(FitError::from)?.bound()),
            _ => None,
        };
        let device = |assignment: &Assignment| -> Option<Result<DeviceRow, Failure>> {
            let device = assignment.candidate.device?;
            Some(uuid(opened, device).map(|uuid| DeviceRow {
                device: device.0,
                uuid,
                available: assignment.candidate.available.get(),
                charged: assignment.candidate.charged.get(),
                budget: assignment.budget.get(),
                room: assignment.room,
                workers: assignment.workers,
            }))
        };
        let one_more = plan.one_more().map(|more| OneMoreRow {
            device: plan.assignments[more.candidate].candidate.device.map(|device| device.0),
            available: more.available.map(bursar::Bytes::get),
            per_worker: more.per_worker.map(bursar::Bytes::get),
            fixed: more.fixed.map(bursar::Bytes::get),
            headroom: more.headroom.map(|headroom| f64::from(headroom.get()) / 1e6),
            advice: plan.advice(),
        });
        Ok(Self {
            label: stage.label.clone(),
            pool: stage.pool.name(),
            driver: opened.map(|opened| opened.driver.describe()),
            simulated: opened.is_some_and(|opened| opened.is_simulated),
            bound_by,
            available: plan.available().get(),
            charged: plan.charged().get(),
            headroom: f64::from(plan.need.headroom.get()) / 1e6,
            budget: plan.budget().get(),
            fixed: plan.need.fixed.get(),
            per_worker: plan.need.per_worker.get(),
            from_trace: peak,
            want: plan.need.wanted(),
            workers: plan.workers,
            reduced: plan.reduced,
            overflow: plan.overflow.is_some(),
            overflowed: plan.overflow.map(|overflow| match overflow {
                Overflow::Shared => "shared",
                Overflow::Worker => "worker",
            }),
            devices: plan.assignments.iter().filter_map(device).collect::<Result<_, _>>()?,
            explanation: plan.explanation(),
            warning: plan.overflow_message(),
            one_more,
            says_per_worker: stage.says_per_worker(),
            plan,
        })
    }
}

fn uuid(opened: Option<&OpenedDriver>, device: DeviceId) -> Result<String, Failure> {
    let Some(opened) = opened else { return Ok(String::new()) };
    Ok(DeviceContext::open(opened.driver.clone(), device)?.facts().uuid.to_string())
}
