//! Admission: plans with what is available at the moment, and reserves the memory of every worker.
//!
//! A fit that lost its race plans again. [`fit_workers`] plans with what is available and reserves it; if somebody else was
//! faster, or a program outside the ledger took memory, the reservation is refused and the plan is made anew with what is
//! left. [`Spec::plan`] alone reserves nothing and creates no ledger.

mod spec;
mod target;
mod worker;

pub use spec::Spec;
pub use worker::Worker;

use crate::{Assignment, FitError, Need, Plan};
use bursar_core::{Bytes, DeviceContext, DeviceId};
use bursar_ledger::{Reservation, ReserveOptions};
use std::sync::Arc;
use target::{Join, Target};
use worker::Reserved;

/// The most plans made because another program took the memory of the one before.
const ATTEMPTS_MAX: u32 = 64;

/// A plan whose memory is reserved.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::fit::{Spec, fit_workers};
/// use bursar::memory::Account;
/// use bursar::sim::Sim;
/// use bursar::{Bytes, DeviceId};
///
/// let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
/// let spec = Spec::vram("train", [context]).fixed(Bytes::gib(8)).per_worker(Bytes::gib(16)).want(9);
/// let reserved = fit_workers(&spec)?;
/// assert_eq!(reserved.plan.workers, 3);
/// let reservation = reserved.shares[0].reservation.as_ref().unwrap();
/// assert_eq!(reservation.bytes(), Bytes::gib(8 + 3 * 16));
///
/// let second = fit_workers(&spec).unwrap_err();
/// assert!(second.is_capacity(), "the same bytes are not reserved twice");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "dropping it gives the memory back"]
pub struct ReservedPlan {
    /// The plan.
    pub plan: Plan,
    /// The memory reserved, for each assignment that has workers.
    pub shares: Vec<DeviceShare>,
    label: String,
}

/// The memory reserved for the workers of one device, or in the machine's memory.
///
/// ```
/// use bursar::Bytes;
/// use bursar::fit::{Spec, fit_workers};
///
/// let spec = Spec::ram("train").per_worker(Bytes::gib(4)).want(2).available(Bytes::gib(80));
/// let share = &fit_workers(&spec)?.shares[0];
/// assert_eq!((share.device, share.workers), (None, 2));
/// assert!(share.reservation.is_none(), "nothing is reserved of what only a probe knows");
/// # Ok::<(), bursar::fit::FitError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct DeviceShare {
    /// The device; none for the machine's memory.
    pub device: Option<DeviceId>,
    /// The number of workers that it is for.
    pub workers: u64,
    /// The memory that they share and that each of them needs, in one reservation to be split; none if nothing is needed,
    /// if there is no ledger to reserve it in, and if workers overflow and nothing at all is left.
    pub reservation: Option<Reservation>,
    /// The device as it was opened for the plan, for a `Gpu` whose memory draws the reservation; none for the machine's
    /// memory.
    pub context: Option<Arc<DeviceContext>>,
}

impl ReservedPlan {
    /// Splits what was reserved among the workers, to start a process for each.
    pub fn into_workers(self) -> Result<Vec<Worker>, FitError> {
        let reserved = |DeviceShare { context, workers, reservation, .. }| Reserved { context, workers, reservation };
        worker::split(&self.label, &self.plan.need, self.shares.into_iter().map(reserved).collect())
    }
}

impl Spec {
    /// Plans how many workers fit at this moment, and where, and logs the plan in one line. Reserves nothing and creates no
    /// ledger.
    pub fn plan(&self) -> Result<Plan, FitError> {
        plan(self, &Target::all(self, Join::IfExists)?).inspect(|plan| plan.log(&self.label))
    }
}

/// Plans a stage and reserves its memory. Of two stages that plan at once, each gets bytes of its own: one that finds its
/// plan overtaken plans again with what is left.
///
/// Fails if not even one worker fits, unless the stage is in RAM or [allows](Spec::allow_overflow) it. The plan is logged in
/// one line.
pub fn fit_workers(spec: &Spec) -> Result<ReservedPlan, FitError> {
    let targets = Target::all(spec, Join::CreateIfMissing)?;
    let mut attempt = 1;
    loop {
        let plan = plan(spec, &targets)?;
        if plan.overflow.is_some() && !spec.overflow_is_allowed {
            plan.log(&spec.label);
            return Err(FitError::Overflow(Box::new(plan)));
        }
        match reserve_shares(&plan, &targets, spec) {
            Ok(shares) => {
                plan.log(&spec.label);
                return Ok(ReservedPlan { plan, shares, label: spec.label.clone() });
            }
            Err(error) if error.is_capacity() && attempt < ATTEMPTS_MAX => attempt += 1,
            Err(error) => return Err(error),
        }
        std::thread::yield_now();
    }
}

fn plan(spec: &Spec, targets: &[Target]) -> Result<Plan, FitError> {
    let candidates = targets.iter().map(|target| target.candidate(spec)).collect::<Result<Vec<_>, _>>()?;
    Plan::of(spec.memory, spec.need, &candidates).ok_or(FitError::NoDevice)
}

/// Reserves what `plan` needs, all or nothing.
fn reserve_shares(plan: &Plan, targets: &[Target], spec: &Spec) -> Result<Vec<DeviceShare>, FitError> {
    let options = target::options(spec);
    let used = plan.assignments.iter().zip(targets).filter(|(assignment, _)| assignment.workers > 0);
    let share = |(assignment, target): (&Assignment, &Target)| {
        let reservation = match (plan.overflow, assignment.bytes(&plan.need)) {
            (None, Some(bytes)) => reserve(target, bytes, &options)?,
            _ => reserve_what_is_left(target, &plan.need, &ReserveOptions::new().label(&spec.label))?,
        };
        let (device, context) = (assignment.candidate.device, target.context.clone());
        Ok(DeviceShare { device, workers: assignment.workers, reservation, context })
    };
    used.map(share).collect()
}

fn reserve(target: &Target, bytes: Bytes, options: &ReserveOptions) -> Result<Option<Reservation>, FitError> {
    let Some(ledger) = target.ledger.as_ref().filter(|_| bytes > Bytes::ZERO) else { return Ok(None) };
    let trim = || target.context.as_ref().map_or(Bytes::ZERO, |context| context.trim());
    match ledger.reserve_with(bytes, options) {
        // Memory that pools of this program only cache counts as available.
        Err(refused) if refused.is_capacity() && trim() > Bytes::ZERO => Ok(Some(ledger.reserve_with(bytes, options)?)),
        reserved => Ok(Some(reserved?)),
    }
}

/// Reserves, for workers that overflow, as much of what they need as is left.
fn reserve_what_is_left(
    target: &Target,
    need: &Need,
    options: &ReserveOptions,
) -> Result<Option<Reservation>, FitError> {
    let Some(ledger) = &target.ledger else { return Ok(None) };
    let bytes = ledger.available()?.min(need.fixed.saturating_add(need.per_worker));
    reserve(target, bytes, options)
}
