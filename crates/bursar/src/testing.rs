//! For tests: a race detector for programs that use streams, and [`with_budget`], so that tests share a device.
//!
//! [`races`] runs a closure over many seeds of the [simulated driver](bursar_sim), no GPU needed. Where something uses
//! memory that nothing ordered, it answers with the shortest schedule found that shows it: what both operations were, the
//! streams, bytes and tags, where in the source they were called, which order was missing, and the seed.
//!
//! ```
//! use bursar::prelude::*;
//! use bursar::sim::Launch;
//! use bursar::testing::{Rig, races};
//!
//! /// A kernel on one stream writes what a kernel on another reads.
//! fn hand_over(rig: &Rig, ordered: bool) -> bursar::testing::Outcome {
//!     let (producer, consumer) = (rig.stream()?, rig.stream()?);
//!     let batch = rig.allocate(4096, producer, tag!("batch"))?;
//!     rig.launch(producer, Launch::new("produce").writes(batch.ptr(), 4096))?;
//!     if ordered {
//!         rig.context().order(producer, consumer)?;
//!     }
//!     rig.launch(consumer, Launch::new("consume").reads(batch.ptr(), 4096))?;
//!     rig.context().order(consumer, producer)?;
//!     rig.deallocate(batch, producer)?;
//!     Ok(())
//! }
//!
//! races(|rig| hand_over(rig, true)).seeds(50).expect_clean();
//!
//! let race = races(|rig| hand_over(rig, false)).seeds(50).check().unwrap_err();
//! let text = race.to_string();
//! assert!(text.contains("nothing orders stream 2's read after stream 1's write"), "{text}");
//! assert!(text.contains("BURSAR_SEED=0"), "{text}");
//! let found = race.hazard().expect("a hazard");
//! assert_eq!(found.hazard.tag, tag!("batch"));
//! assert!(found.hazard.second.location.is_some());
//! ```
//!
//! # What a run finds
//! - Every [hazard](bursar_sim::HazardKind) that the simulator knows. It derives them from the order of the calls, so most
//!   show with every seed; what depends on how far streams happen to have come shows with some.
//! - What is still held once the closure has returned and its rig is gone, unless
//!   [`allow_leaks`](Races::allow_leaks) says that this is meant.
//! - An error or a panic of the closure. A hazard of the same run is told instead, since it is likely the cause.
//!
//! The closure is called once a seed, each time with a [`Rig`] of its own; nothing is kept between runs, and a closure that
//! does the same each time and uses one thread does exactly the same again with the same seed.
//! `BURSAR_SEED=7` in the environment makes every [`check`](Races::check) run that seed alone.
//!
//! # Which places are known
//! Rust passes the place of a call along where the function is named, not through a `dyn` seam. So calls of
//! [`Gpu::buffer`](crate::Gpu::buffer), of [`DeviceBuffer`](crate::DeviceBuffer) and its slices, of
//! [`Work`](crate::Work), of the rig and of the rig's [driver](Rig::driver) have one. Calls of a
//! [`DeviceMemoryResource`](crate::DeviceMemoryResource) or a [`DeviceContext`](crate::DeviceContext) have none by
//! themselves, nor has the end of a buffer that goes out of scope; [`Rig::here`] gives them one. What nobody said is told
//! as "an unknown place", with the place where the memory was allocated. A program over CUDA pays for this with one branch
//! on whether its driver listens, and nothing is written.

mod race;
mod rig;
mod schedule;
mod with_budget;

pub use race::{Finding, Race};
pub use rig::{Outcome, Rig};
pub use schedule::Explained;
pub use with_budget::{with_budget, with_budget_within};

use crate::{Build, Gpu, Result, Stack, leaf};
use bursar_core::{Bytes, DeviceId};
use bursar_sim::{Sim, SimBuilder};
use std::fmt;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The variable that makes every check run one seed alone.
pub const SEED_VARIABLE: &str = "BURSAR_SEED";

/// How many seeds are tried unless somebody says otherwise.
const SEEDS: u64 = 100;

/// How many lines of a run's log are kept to cut a schedule from.
const CALLS_KEPT: usize = 1 << 16;

/// Opens the device of a rig.
type Open = Box<dyn Fn(Arc<Sim>) -> Result<Gpu>>;

/// Looks for races in `program`, which is called once for each seed.
pub fn races<F: FnMut(&Rig) -> Outcome>(program: F) -> Races<F> {
    Races {
        program,
        seeds: 0..=SEEDS - 1,
        machine: Sim::builder().devices(2, Bytes::gib(80)),
        open: opened_over(Stack::new().over(leaf::Async)),
        are_leaks_allowed: false,
    }
}

fn opened_over(stack: impl Build + 'static) -> Open {
    Box::new(move |sim| Gpu::open(sim, DeviceId(0), &stack))
}

/// A search for races, to be begun by [`check`](Self::check) or [`expect_clean`](Self::expect_clean).
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

/// What a program that shows no race was put to.
///
/// ```
/// let verdict = bursar::testing::races(|_| Ok(())).seeds(3).check().unwrap();
/// assert!(verdict.to_string().starts_with("clean with 3 seeds"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// How many seeds were run.
    pub seeds: u64,
    /// How many driver calls they made together.
    pub calls: u64,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.seeds == 1 { "" } else { "s" };
        write!(f, "clean with {} seed{plural}, {} driver calls", self.seeds, self.calls)
    }
}

impl<F: FnMut(&Rig) -> Outcome> Races<F> {
    /// Tries the first `count` seeds, at least one; 100 by default.
    pub fn seeds(mut self, count: u64) -> Self {
        self.seeds = 0..=count.max(1) - 1;
        self
    }

    /// Tries one seed alone: what `BURSAR_SEED` does from outside.
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
        self.open = opened_over(stack);
        self
    }

    /// What is still held after a run is meant to be.
    pub fn allow_leaks(mut self) -> Self {
        self.are_leaks_allowed = true;
        self
    }

    /// Runs every seed and answers with the shortest schedule that shows a hazard, if any does; otherwise with the first
    /// error, panic or leak. A panic ends the search.
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

    /// As [`check`](Self::check), for tests: panics with the explanation.
    #[track_caller]
    pub fn expect_clean(self) -> Verdict {
        match self.check() {
            Ok(verdict) => verdict,
            Err(race) => panic!("{race}"),
        }
    }

    /// Runs one seed. Answers how many driver calls that took and what was found, and whether the program panicked.
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
            Ok(Err(error)) => (Some(Finding::Failed { error: told(&*error) }), false),
            Err(payload) => (Some(Finding::Panicked { message: message_of(payload) }), true),
        };
        let hazard = Explained::shortest(&sim, trouble.as_ref());
        let leaks = || Some(sim.leaks()).filter(|leaks| !self.are_leaks_allowed && !leaks.is_empty());
        let finding =
            hazard.map(|found| Finding::Hazard(Box::new(found))).or(trouble).or_else(|| leaks().map(Finding::Leak));
        (sim.call_count(), finding.map(|finding| (finding, has_panicked)))
    }
}

/// An error with what caused it.
fn told(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// What somebody panicked with, in words.
fn message_of(payload: Box<dyn std::any::Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    // Dropping what somebody panicked with may panic too.
    std::mem::forget(payload);
    text.unwrap_or_else(|| "a value that is no text".to_owned())
}
