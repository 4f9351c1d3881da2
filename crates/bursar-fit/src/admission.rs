//! From a plan to a promise: the memory of every worker set aside.

use crate::source::{Join, Source};
use crate::{FitError, Need, Place, Plan, Spec};
use bursar_core::{Bytes, DeviceId};
use bursar_ledger::Reservation;

/// How often a plan is made anew because somebody else took what it was about.
const ATTEMPTS: u32 = 64;

/// A plan whose memory is set aside.
///
/// ```
/// use bursar_core::{Account, Bytes, DeviceContext, DeviceId};
/// use bursar_fit::{Spec, fit_workers};
/// use bursar_sim::Sim;
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let spec = Spec::vram("train", [context]).fixed(Bytes::gib(8)).per_worker(Bytes::gib(16)).want(9);
/// let admitted = fit_workers(&spec)?;
/// assert_eq!(admitted.plan.workers, 3);
/// let reservation = admitted.shares[0].reservation.as_ref().unwrap();
/// assert_eq!(reservation.bytes(), Bytes::gib(8 + 3 * 16));
///
/// let second = fit_workers(&spec).unwrap_err();
/// assert!(second.is_capacity(), "the same bytes are not promised twice");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Admitted {
    /// How many workers go where.
    pub plan: Plan,
    /// What was set aside, for each place that workers go to.
    pub shares: Vec<Share>,
}

/// What was set aside for the workers of one device, or in the machine's memory.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_fit::{Spec, fit_workers};
///
/// let spec = Spec::vram("train", []).per_worker(Bytes::gib(4)).want(2).available(Bytes::gib(80));
/// let share = &fit_workers(&spec)?.shares[0];
/// assert_eq!((share.device, share.workers), (None, 2));
/// assert!(share.reservation.is_none(), "of no device, nothing can be set aside");
/// # Ok::<(), bursar_fit::FitError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Share {
    /// The device; none for the machine's memory.
    pub device: Option<DeviceId>,
    /// How many workers it is for.
    pub workers: u64,
    /// What they share and what each of them needs, in one piece to be split; none where nothing is needed, where there is
    /// no ledger to set it aside in, and where workers overflow and nothing at all is left.
    pub reservation: Option<Reservation>,
}

impl Spec {
    /// How many workers fit at this moment, and where. Nothing is set aside, and no ledger is made.
    pub fn plan(&self) -> Result<Plan, FitError> {
        plan(self, &Source::all(self, Join::IfThere)?)
    }
}

/// Plans a stage and sets its memory aside. Of two stages that plan at once, each gets bytes of its own: one that finds its
/// plan overtaken plans again with what is left.
///
/// An error where not even one worker fits, unless the stage is in RAM or [allows](Spec::allow_overflow) it. The decision
/// is logged, in one line.
pub fn fit_workers(spec: &Spec) -> Result<Admitted, FitError> {
    let sources = Source::all(spec, Join::Always)?;
    let mut attempt = 1;
    loop {
        let plan = plan(spec, &sources)?;
        if plan.overflow.is_some() && !spec.overflow_is_allowed {
            plan.log(&spec.label);
            return Err(FitError::Overflow(Box::new(plan)));
        }
        match shares(&plan, &sources) {
            Ok(shares) => {
                plan.log(&spec.label);
                return Ok(Admitted { plan, shares });
            }
            Err(error) if error.is_capacity() && attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(error),
        }
        std::thread::yield_now();
    }
}

fn plan(spec: &Spec, sources: &[Source]) -> Result<Plan, FitError> {
    let seats = sources.iter().map(|source| source.seat(spec)).collect::<Result<Vec<_>, _>>()?;
    Plan::of(spec.pool, spec.need, &seats).ok_or(FitError::NoDevice)
}

/// Sets aside what `plan` needs, all or nothing.
fn shares(plan: &Plan, sources: &[Source]) -> Result<Vec<Share>, FitError> {
    let seated = plan.places.iter().zip(sources).filter(|(place, _)| place.workers > 0);
    let share = |(place, source): (&Place, &Source)| {
        let reservation = match (plan.overflow, place.bytes(&plan.need)) {
            (None, Some(bytes)) => set_aside(source, bytes)?,
            _ => what_there_is(source, &plan.need)?,
        };
        Ok(Share { device: place.seat.device, workers: place.workers, reservation })
    };
    seated.map(share).collect()
}

fn set_aside(source: &Source, bytes: Bytes) -> Result<Option<Reservation>, FitError> {
    match &source.ledger {
        Some(ledger) if bytes > Bytes::ZERO => Ok(Some(ledger.reserve(bytes)?)),
        _ => Ok(None),
    }
}

/// For workers that overflow: as much of what they need as there is.
fn what_there_is(source: &Source, need: &Need) -> Result<Option<Reservation>, FitError> {
    let Some(ledger) = &source.ledger else { return Ok(None) };
    let bytes = ledger.available()?.min(need.fixed.saturating_add(need.per_worker));
    set_aside(source, bytes)
}
