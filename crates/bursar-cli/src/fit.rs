//! `bursar fit`: how many workers fit.

mod amount;
mod measured;
mod stage;
mod table;

pub(crate) use amount::given;
pub(crate) use stage::Stage;

use crate::output::{self, Failure, WARNING};
use bursar::driver::OpenedDriver;
use bursar::fit::{FitError, Overflow, Place, Plan, Pool, Ram};
use bursar::{DeviceContext, DeviceId};
use measured::Measured;
use serde::Serialize;

pub(crate) const EXAMPLES: &str = "\
Examples:
  bursar fit --pool ram --fixed 10GiB --per-worker 4GiB --want 16
  bursar fit --pool vram --fixed @weights.safetensors*1.2 --per-worker 6GiB --want 8 --json
  bursar fit --from-trace run.csv.gz --want 8 --headroom 0.9
  bursar fit --pool vram --available 80GiB --per-worker 6GiB --want 8    without asking any device

Exit status: 0 also where fewer fit than wanted; 1 where not even one fits into VRAM.";

/// What fits, and why.
#[derive(Debug, Serialize)]
pub(crate) struct Fitted {
    label: String,
    pool: &'static str,
    /// What bounds the machine's memory.
    bound_by: Option<String>,
    available: u64,
    headroom: f64,
    budget: u64,
    fixed: u64,
    per_worker: u64,
    from_trace: Option<Measured>,
    want: u64,
    workers: u64,
    reduced: bool,
    overflow: bool,
    /// What is too large: `shared` or `worker`.
    overflowed: Option<&'static str>,
    devices: Vec<Device>,
    explanation: String,
    warning: Option<String>,
    one_more: Option<OneMore>,
    #[serde(skip)]
    says_per_worker: bool,
    #[serde(skip)]
    plan: Plan,
}

#[derive(Debug, Serialize)]
struct Device {
    device: u32,
    uuid: String,
    available: u64,
    budget: u64,
    room: u64,
    workers: u64,
}

/// What would make one more worker fit; each alone does.
#[derive(Debug, Serialize)]
struct OneMore {
    device: Option<u32>,
    available: Option<u64>,
    per_worker: Option<u64>,
    fixed: Option<u64>,
    headroom: Option<f64>,
    advice: Option<String>,
}

/// Says how many workers fit. Nothing is set aside.
pub(crate) fn fit(
    stage: &Stage,
    json: bool,
    open: impl FnOnce() -> Result<OpenedDriver, bursar::driver::DriverChoiceError>,
) -> Result<(), Failure> {
    if stage.names_devices() && !stage.needs_driver(false) {
        return Err(Failure::Usage("--devices: none is asked where --available says what there is, or for RAM"));
    }
    let opened = stage.needs_driver(false).then(open).transpose()?;
    let measured = stage.measured()?;
    let plan = stage.spec(opened.as_ref(), measured.as_ref())?.plan()?;
    let fitted = Fitted::new(stage, opened.as_ref(), measured, plan)?;
    output::show(&fitted, json)?;
    match (fitted.plan.overflow, stage.pool) {
        (Some(_), Pool::Vram) if !stage.allow_overflow => Err(FitError::Overflow(Box::new(fitted.plan)).into()),
        (Some(_), _) => {
            warn(&fitted.plan);
            Ok(())
        }
        (None, _) => Ok(()),
    }
}

/// Tells of what does not fit where the stage goes on all the same.
pub(crate) fn warn(plan: &Plan) {
    if let Some(complaint) = plan.complaint() {
        output::say(format_args!("{WARNING}warning:{WARNING:#} {complaint}"));
    }
}

impl Fitted {
    fn new(
        stage: &Stage,
        opened: Option<&OpenedDriver>,
        measured: Option<Measured>,
        plan: Plan,
    ) -> Result<Self, Failure> {
        let bound_by = match (stage.pool, stage.available) {
            (Pool::Ram, None) => Some(Ram::of_this_machine().read().map_err(FitError::from)?.bound()),
            _ => None,
        };
        let device = |place: &Place| -> Option<Result<Device, Failure>> {
            let device = place.seat.device?;
            Some(uuid(opened, device).map(|uuid| Device {
                device: device.0,
                uuid,
                available: place.seat.available.get(),
                budget: place.budget.get(),
                room: place.room,
                workers: place.workers,
            }))
        };
        let one_more = plan.one_more().map(|more| OneMore {
            device: plan.places[more.place].seat.device.map(|device| device.0),
            available: more.available.map(bursar::Bytes::get),
            per_worker: more.per_worker.map(bursar::Bytes::get),
            fixed: more.fixed.map(bursar::Bytes::get),
            headroom: more.headroom.map(|headroom| f64::from(headroom.get()) / 1e6),
            advice: plan.advice(),
        });
        Ok(Self {
            label: stage.label.clone(),
            pool: stage.pool.name(),
            bound_by,
            available: plan.available().get(),
            headroom: f64::from(plan.need.headroom.get()) / 1e6,
            budget: plan.budget().get(),
            fixed: plan.need.fixed.get(),
            per_worker: plan.need.per_worker.get(),
            from_trace: measured,
            want: plan.need.wanted(),
            workers: plan.workers,
            reduced: plan.reduced,
            overflow: plan.overflow.is_some(),
            overflowed: plan.overflow.map(|overflow| match overflow {
                Overflow::Shared => "shared",
                Overflow::Worker => "worker",
            }),
            devices: plan.places.iter().filter_map(device).collect::<Result<_, _>>()?,
            explanation: plan.explanation(),
            warning: plan.complaint(),
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
