//! The table of trials: every clause on every driver and every stack that it applies to.

use crate::libcuda::CudaLibrary;
use crate::rig::StackRig;
use crate::rows::{DriverRow, LeakPolicy, OpenDriver, StackKind, StackRow};
use bursar_core::{Bytes, Driver as _, Result};
use bursar_sim::Faults;
use libtest_mimic::{Failed, Trial};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The stacks and drivers that a clause applies to.
///
/// ```
/// use bursar_conformance::Requirement;
///
/// assert_ne!(Requirement::Anything, Requirement::Limit);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// Every stack.
    Anything,
    /// Stacks whose frees complete in stream order.
    StreamOrder,
    /// Stacks whose frees complete in stream order and whose blocks cost so few driver calls that a stalled stream takes
    /// hundreds of them: beyond a number of submissions a driver blocks the caller.
    Lean,
    /// Stacks whose frees complete at once.
    Synchronous,
    /// Stacks with a limit.
    Limit,
    /// Stacks in which every allocation reaches the driver.
    NoPool,
    /// Stacks in which a free reaches the driver at once.
    PromptFree,
    /// Stacks with a pool.
    Pool,
    /// Stacks with a pool, on a device that maps pages.
    PoolOfPages,
    /// Stacks with a guard.
    Guard,
    /// Stacks with a guard that quarantines freed memory.
    Quarantine,
    /// Every stack, on drivers that can capture streams.
    Capture,
    /// The device itself and not a stack: judged once per driver.
    Device,
}

impl Requirement {
    fn is_met_by(self, driver: &DriverRow, kind: StackKind, is_first: bool) -> bool {
        match self {
            Self::Anything => true,
            Self::StreamOrder => kind.stream_ordered,
            Self::Lean => kind.stream_ordered && kind.guard.is_none(),
            Self::Synchronous => !kind.stream_ordered,
            Self::Limit => kind.limit.is_some(),
            Self::NoPool => !kind.pooled,
            Self::PromptFree => !kind.pooled && kind.guard.is_none_or(|quarantine| quarantine == Bytes::ZERO),
            Self::Pool => kind.pooled,
            Self::PoolOfPages => kind.pooled && driver.pages,
            Self::Guard => kind.guard.is_some(),
            Self::Quarantine => kind.guard.is_some_and(|quarantine| quarantine > Bytes::ZERO),
            Self::Capture => driver.captures,
            // Clauses about devices are judged on drivers whose devices can do everything.
            Self::Device => is_first && driver.pages,
        }
    }
}

/// One promise as a trial, which panics if the promise is broken.
///
/// ```
/// use bursar_conformance::{Clause, Requirement};
///
/// let clause = Clause { name: "r0_nothing_is_promised", needs: Requirement::Anything, run: |_| () };
/// assert_eq!(clause.needs, Requirement::Anything);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Clause {
    /// The name, which begins with the clause's number.
    pub name: &'static str,
    /// The stacks and drivers it applies to.
    pub needs: Requirement,
    /// Judges one stack.
    pub run: fn(&StackRig),
}

/// Returns a trial for every clause, on every driver and every stack that it applies to.
pub fn table(drivers: &[DriverRow], stacks: &[StackRow], clauses: &[Clause]) -> Vec<Trial> {
    let required = !CudaLibrary::of_this_process().may_be_absent();
    let mut trials = Vec::new();
    for driver in drivers {
        let absent = (driver.open)(0).err();
        // Mapping pages makes a difference to pools only.
        let judged = stacks.iter().enumerate().filter(|(_, stack)| driver.pages || stack.kind.pooled);
        for (nth, stack) in judged {
            for clause in clauses.iter().filter(|clause| clause.needs.is_met_by(driver, stack.kind, nth == 0)) {
                let subject = if clause.needs == Requirement::Device { "device" } else { stack.name };
                let name = format!("{}::{subject}::{}", driver.name, clause.name);
                let ignored = absent.is_some() && !required;
                trials.push(trial(name, *driver, stack.clone(), *clause).with_ignored_flag(ignored));
            }
        }
    }
    trials
}

fn trial(name: String, driver: DriverRow, stack: StackRow, clause: Clause) -> Trial {
    Trial::test(name, move || (0..driver.runs).try_for_each(|seed| judge(driver, &stack, clause, seed)))
}

fn judge(driver: DriverRow, stack: &StackRow, clause: Clause, seed: u64) -> Result<(), Failed> {
    let OpenDriver { driver, verdict, set_capturing } = (driver.open)(seed)?;
    let rig = StackRig::new(driver, stack.clone(), seed, set_capturing)?;
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (clause.run)(&rig))) {
        eprint_verdict(seed, &verdict);
        resume_unwind(panic);
    }
    let leaks =
        if rig.faults.last_error(rig.context.device()).is_some() { LeakPolicy::Allowed } else { LeakPolicy::Forbidden };
    let driver = Arc::downgrade(&rig.faults);
    drop(rig);
    await_end(&driver);
    Ok(verdict(leaks)?)
}

/// Waits for threads that are just ending: they return what they cached of a pool first, and keep the pool alive meanwhile.
/// The driver is the last thing that a device's context drops.
fn await_end(driver: &Weak<Faults>) {
    let start = Instant::now();
    while driver.strong_count() > 0 && start.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
}

#[allow(clippy::print_stderr, reason = "the driver's verdict on a failing trial, beside the panic")]
fn eprint_verdict(seed: u64, verdict: &dyn Fn(LeakPolicy) -> Result<(), String>) {
    let verdict = verdict(LeakPolicy::Allowed);
    eprintln!("seed {seed}; the driver says: {}", verdict.map_or_else(|report| report, |()| "nothing".to_owned()));
}
