//! The search for races: runs a program with many seeds, and picks the finding that says the most.

use super::{Finding, HazardExplanation, InjectedFault, Outcome, Race, Rig};
use crate::memory::Build;
use crate::{Gpu, Result, Stack, leaf};
use bursar_core::{Bytes, DeviceId, Driver};
use bursar_host::NumaWorkerPool;
use bursar_sim::{Faults, Sim, SimBuilder};
use std::fmt;
use std::ops::{ControlFlow, RangeInclusive};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The environment variable that makes every check run one seed alone.
pub const SEED_VARIABLE: &str = "BURSAR_SEED";

/// The default number of seeds.
const DEFAULT_SEEDS: u64 = 100;

/// The number of calls of a run that are kept, to cut a schedule from.
const CALLS_KEPT: usize = 1 << 16;

/// A function that opens the device of a rig.
type Open = Box<dyn Fn(Arc<dyn Driver>) -> Result<Gpu>>;

/// Returns a search for races in `program`, which is called once for each seed.
pub fn races<F: FnMut(&Rig) -> Outcome>(program: F) -> Races<F> {
    Races {
        program,
        seeds: 0..=DEFAULT_SEEDS - 1,
        machine: Sim::builder().devices(2, Bytes::gib(80)),
        open: open_over(Stack::new().over(leaf::Async)),
        are_leaks_allowed: false,
        fails_each_call: false,
    }
}

fn open_over(stack: impl Build + 'static) -> Open {
    Box::new(move |driver| Gpu::open(driver, DeviceId(0), &stack))
}

/// A search for races, run by [`check`](Self::check) or [`expect_clean`](Self::expect_clean).
///
/// ```
/// use bursar::prelude::*;
/// use bursar::testing::races;
///
/// let verdict = races(|rig| {
///     let stream = rig.gpu().streams().lease()?;
///     let mut numbers = rig.gpu().buffer::<u32>(16, &stream, tag!("numbers"))?;
///     numbers.fill(7)?;
///     assert_eq!(numbers.to_vec()?, [7; 16]);
///     Ok(())
/// })
/// .seeds(20)
/// .stack(Stack::new().layer(PagePool::default()).over(leaf::Frames))
/// .expect_clean();
/// assert_eq!(verdict.seeds, 20);
/// ```
#[must_use = "nothing is run before `check`"]
pub struct Races<F> {
    program: F,
    seeds: RangeInclusive<u64>,
    machine: SimBuilder,
    open: Open,
    are_leaks_allowed: bool,
    fails_each_call: bool,
}

impl<F> fmt::Debug for Races<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Races").field("seeds", &self.seeds).field("machine", &self.machine).finish_non_exhaustive()
    }
}

/// The extent of a search that found nothing wrong.
///
/// ```
/// let verdict = bursar::testing::races(|_| Ok(())).seeds(3).check().unwrap();
/// assert!(verdict.to_string().starts_with("clean with 3 seeds"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// The number of seeds that were run.
    pub seeds: u64,
    /// The number of driver calls of all runs together.
    pub calls: u64,
    /// The number of further runs in which a driver call failed on purpose.
    pub faults: u64,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.seeds == 1 { "" } else { "s" };
        write!(f, "clean with {} seed{plural}, {} driver calls", self.seeds, self.calls)?;
        if self.faults > 0 { write!(f, ", {} of them failing in turn", self.faults) } else { Ok(()) }
    }
}

impl<F: FnMut(&Rig) -> Outcome> Races<F> {
    /// Runs the first `count` seeds, at least one; 100 by default.
    pub fn seeds(mut self, count: u64) -> Self {
        self.seeds = 0..=count.max(1) - 1;
        self
    }

    /// Runs one seed alone, as `BURSAR_SEED` does from outside.
    pub fn replay(mut self, seed: u64) -> Self {
        self.seeds = seed..=seed;
        self
    }

    /// Runs on other devices than two of 80 GiB; the seed is set for each run.
    pub fn machine(mut self, machine: SimBuilder) -> Self {
        self.machine = machine;
        self
    }

    /// Builds the memory of the rig's [`Gpu`] from this stack, instead of the driver's stream-ordered pool alone.
    pub fn stack(mut self, stack: impl Build + 'static) -> Self {
        self.open = open_over(stack);
        self
    }

    /// Allows memory to be held after a run.
    pub fn allow_leaks(mut self) -> Self {
        self.are_leaks_allowed = true;
        self
    }

    /// Runs the program again, for each seed that shows nothing wrong, once for every driver call that its devices
    /// made: with that call failing, and once more, if it submits work, with the work submitted and only the result
    /// lost. The program may then return an error, but may neither race nor leak nor panic.
    ///
    /// ```
    /// use bursar::prelude::*;
    /// use bursar::testing::races;
    ///
    /// let verdict = races(|rig| {
    ///     let (a, b) = (rig.gpu().streams().lease()?, rig.gpu().streams().lease()?);
    ///     let mut numbers = rig.gpu().zeros::<u32>(16, &a, tag!("numbers"))?;
    ///     b.submit(|work| work.fill(&mut numbers, 7))?;
    ///     numbers.to_vec()?;
    ///     Ok(())
    /// })
    /// .seeds(3)
    /// .failing_each_call()
    /// .expect_clean();
    /// assert!(verdict.faults > 3);
    /// ```
    pub fn failing_each_call(mut self) -> Self {
        self.fails_each_call = true;
        self
    }

    /// Runs every seed. Fails with the shortest schedule that shows a hazard, if any does; otherwise with the first error,
    /// panic or leak. A panic ends the search.
    pub fn check(mut self) -> Result<Verdict, Box<Race>> {
        if let Some(text) = std::env::var_os(SEED_VARIABLE) {
            let text = text.to_string_lossy().into_owned();
            match text.trim().parse() {
                Ok(seed) => self = self.replay(seed),
                Err(_) => return Err(Race::new(0, None, Finding::Variable { text })),
            }
        }
        let mut tally = SearchTally::default();
        for seed in self.seeds.clone() {
            let (faults, found) = self.run(seed, None);
            tally.verdict.seeds += 1;
            let is_clean = found.finding.is_none();
            if tally.enter(seed, None, found).is_break() {
                break;
            }
            if self.fails_each_call && is_clean && self.fail_each(seed, &faults, &mut tally).is_break() {
                break;
            }
        }
        let SearchTally { worst, verdict, failing } = tally;
        match worst {
            Some(worst) => Err(Box::new(Race { tried: verdict.seeds + verdict.faults, failing, ..*worst })),
            None => Ok(verdict),
        }
    }

    /// Runs one seed once for each call that was made through `faults`.
    fn fail_each(&mut self, seed: u64, faults: &Faults, tally: &mut SearchTally) -> ControlFlow<()> {
        for fault in InjectedFault::of_each_call(faults) {
            let (_, found) = self.run(seed, Some(fault));
            tally.verdict.faults += 1;
            tally.enter(seed, Some(fault), found)?;
        }
        ControlFlow::Continue(())
    }

    /// Runs [`check`](Self::check) and panics with the explanation if it fails.
    #[track_caller]
    pub fn expect_clean(self) -> Verdict {
        match self.check() {
            Ok(verdict) => verdict,
            Err(race) => panic!("{race}"),
        }
    }

    /// Runs one seed. Returns the calls that its devices made, and what was found.
    fn run(&mut self, seed: u64, fault: Option<InjectedFault>) -> (Arc<Faults>, RunResult) {
        let sim = self.machine.clone().seed(seed).calls_kept(CALLS_KEPT).build();
        let faults = Faults::new(sim.clone());
        fault.into_iter().for_each(|fault| fault.arm(&faults));
        let program = &mut self.program;
        let ended = match (self.open)(faults.clone()) {
            Ok(gpu) => {
                let rig = Rig::new(sim.clone(), faults.clone(), gpu);
                // The rig ends inside too, so that a panic of its end is found like any other.
                catch_unwind(AssertUnwindSafe(move || program(&rig)))
            }
            Err(error) => Ok(Err(error.into())),
        };
        // An error may have memory, as that of a transfer does, which ends with it.
        let (trouble, has_panicked) = match ended {
            Ok(Ok(())) => (None, false),
            Ok(Err(error)) => (Some(Finding::Failed { error: with_causes(&*error) }), false),
            Err(payload) => (Some(Finding::Panicked { message: message_of(payload) }), true),
        };
        settle_pinned_memory();
        sim.settle();
        let hazard = HazardExplanation::shortest(&sim, trouble.as_ref().map(ToString::to_string));
        let leaks = || Some(sim.leaks()).filter(|leaks| !self.are_leaks_allowed && !leaks.is_empty());
        // An error is what a program should end with where a call fails.
        let trouble = trouble.filter(|_| fault.is_none() || has_panicked);
        let finding =
            hazard.map(|found| Finding::Hazard(Box::new(found))).or(trouble).or_else(|| leaks().map(Finding::Leak));
        (faults, RunResult { calls: sim.call_count(), finding, has_panicked })
    }
}

/// Waits until the process's workers have released the pinned memory that was given up. What a driver failed to release they keep
/// and try again, so that is done, too.
fn settle_pinned_memory() {
    // Where there are no workers, there is nothing to wait for.
    if let Ok(workers) = NumaWorkerPool::global() {
        workers.flush();
        workers.retry_stranded();
    }
}

/// The result of one run.
struct RunResult {
    calls: u64,
    finding: Option<Finding>,
    has_panicked: bool,
}

/// The results of the runs so far.
struct SearchTally {
    worst: Option<Box<Race>>,
    verdict: Verdict,
    failing: u64,
}

impl Default for SearchTally {
    fn default() -> Self {
        Self { worst: None, verdict: Verdict { seeds: 0, calls: 0, faults: 0 }, failing: 0 }
    }
}

impl SearchTally {
    /// Enters the result of a run; breaks if the program panicked, which ends the search.
    fn enter(&mut self, seed: u64, fault: Option<InjectedFault>, result: RunResult) -> ControlFlow<()> {
        self.verdict.calls += result.calls;
        if let Some(finding) = result.finding {
            self.failing += 1;
            if self.worst.as_ref().is_none_or(|worst| finding.says_more_than(&worst.finding)) {
                self.worst = Some(Race::new(seed, fault, finding));
            }
        }
        if result.has_panicked { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Formats an error with its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// Returns the message of a panic.
fn message_of(payload: Box<dyn std::any::Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    // Dropping the payload may panic too.
    std::mem::forget(payload);
    text.unwrap_or_else(|| "a value that is no text".to_owned())
}
