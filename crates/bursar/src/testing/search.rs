//! The search for races: runs a program with many seeds, and picks the finding that says the most.

use super::{Finding, HazardExplanation, Outcome, Race, Rig};
use crate::memory::Build;
use crate::{Gpu, Result, Stack, leaf};
use bursar_core::{Bytes, DeviceId};
use bursar_sim::{Sim, SimBuilder};
use std::fmt;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The environment variable that makes every check run one seed alone.
pub const SEED_VARIABLE: &str = "BURSAR_SEED";

/// The default number of seeds.
const DEFAULT_SEEDS: u64 = 100;

/// The number of calls of a run that are kept, to cut a schedule from.
const CALLS_KEPT: usize = 1 << 16;

/// A function that opens the device of a rig.
type Open = Box<dyn Fn(Arc<Sim>) -> Result<Gpu>>;

/// Returns a search for races in `program`, which is called once for each seed.
pub fn races<F: FnMut(&Rig) -> Outcome>(program: F) -> Races<F> {
    Races {
        program,
        seeds: 0..=DEFAULT_SEEDS - 1,
        machine: Sim::builder().devices(2, Bytes::gib(80)),
        open: open_over(Stack::new().over(leaf::Async)),
        are_leaks_allowed: false,
    }
}

fn open_over(stack: impl Build + 'static) -> Open {
    Box::new(move |sim| Gpu::open(sim, DeviceId(0), &stack))
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
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.seeds == 1 { "" } else { "s" };
        write!(f, "clean with {} seed{plural}, {} driver calls", self.seeds, self.calls)
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

    /// Runs every seed. Fails with the shortest schedule that shows a hazard, if any does; otherwise with the first error,
    /// panic or leak. A panic ends the search.
    pub fn check(mut self) -> Result<Verdict, Box<Race>> {
        if let Some(text) = std::env::var_os(SEED_VARIABLE) {
            let text = text.to_string_lossy().into_owned();
            match text.trim().parse() {
                Ok(seed) => self = self.replay(seed),
                Err(_) => return Err(Race::new(0, Finding::Variable { text })),
            }
        }
        let (mut worst, mut verdict): (Option<Box<Race>>, _) = (None, Verdict { seeds: 0, calls: 0 });
        let mut failing = 0;
        for seed in self.seeds.clone() {
            let (calls, found) = self.run(seed);
            verdict = Verdict { seeds: verdict.seeds + 1, calls: verdict.calls + calls };
            let Some((finding, has_panicked)) = found else { continue };
            failing += 1;
            if worst.as_ref().is_none_or(|worst| finding.says_more_than(&worst.finding)) {
                worst = Some(Race::new(seed, finding));
            }
            if has_panicked {
                break;
            }
        }
        match worst {
            Some(worst) => Err(Box::new(Race { tried: verdict.seeds, failing, ..*worst })),
            None => Ok(verdict),
        }
    }

    /// Runs [`check`](Self::check) and panics with the explanation if it fails.
    #[track_caller]
    pub fn expect_clean(self) -> Verdict {
        match self.check() {
            Ok(verdict) => verdict,
            Err(race) => panic!("{race}"),
        }
    }

    /// Runs one seed. Returns the number of driver calls, and the finding if there is one, with whether the program panicked.
    fn run(&mut self, seed: u64) -> (u64, Option<(Finding, bool)>) {
        let sim = self.machine.clone().seed(seed).calls_kept(CALLS_KEPT).build();
        let program = &mut self.program;
        let ended = match (self.open)(sim.clone()) {
            Ok(gpu) => {
                let rig = Rig::new(sim.clone(), gpu);
                catch_unwind(AssertUnwindSafe(|| program(&rig)))
            }
            Err(error) => Ok(Err(error.into())),
        };
        sim.settle();
        let (trouble, has_panicked) = match ended {
            Ok(Ok(())) => (None, false),
            Ok(Err(error)) => (Some(Finding::Failed { error: with_causes(&*error) }), false),
            Err(payload) => (Some(Finding::Panicked { message: message_of(payload) }), true),
        };
        let hazard = HazardExplanation::shortest(&sim, trouble.as_ref().map(ToString::to_string));
        let leaks = || Some(sim.leaks()).filter(|leaks| !self.are_leaks_allowed && !leaks.is_empty());
        let finding =
            hazard.map(|found| Finding::Hazard(Box::new(found))).or(trouble).or_else(|| leaks().map(Finding::Leak));
        (sim.call_count(), finding.map(|finding| (finding, has_panicked)))
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
