//! The simulator against itself, against a model that knows no streams, and against the hardware: thousands of generated
//! programs, each of which must give the same bytes and the same statuses everywhere.
//!
//! A failure prints the program and its seed. `BURSAR_PROGRAM_SEED=N` replays that program alone.

use bursar_conformance::program::{Outcome, Program, SEED_VARIABLE, Shape, seeds};
use bursar_core::{DeviceId, Driver};
use bursar_cuda::Cuda;
use bursar_sim::Sim;
use libtest_mimic::{Arguments, Failed, Trial};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

const PROGRAMS: u64 = 2000;
const PROGRAMS_PER_TRIAL: u64 = 100;

/// The schedules that every program is simulated with.
const SCHEDULES: Range<u64> = 0..3;

/// Fails with the program where two of its outcomes differ.
fn agree(program: &Program, seed: u64, one: (&str, &Outcome), other: (&str, &Outcome)) -> Result<(), Failed> {
    match one.1.difference(other.1) {
        None => Ok(()),
        Some(difference) => Err(format!(
            "{} and {} disagree about {difference}\n{SEED_VARIABLE}={seed} replays it\n{program}",
            one.0, other.0
        )
        .into()),
    }
}

/// Runs a program with one schedule, on a simulator that must find nothing wrong with it.
fn simulated(program: &Program, schedule: u64) -> Result<Outcome, Failed> {
    let sim = Sim::seeded(schedule);
    let outcome = program.run(&*sim);
    sim.check().map_err(|report| format!("{report}\n{program}"))?;
    match sim.leaks() {
        leaks if leaks.is_empty() => Ok(outcome),
        leaks => Err(format!("{leaks}\n{program}").into()),
    }
}

fn sim_agrees_with_itself(seed: u64) -> Result<(), Failed> {
    let program = Program::generate(seed, Shape::DRIVER);
    let expected = program.expected();
    for schedule in SCHEDULES {
        let outcome = simulated(&program, schedule ^ seed)?;
        agree(&program, seed, ("a seeded simulator", &outcome), ("the model", &expected))?;
    }
    let outcome = program.run(&*Sim::immediate());
    agree(&program, seed, ("an immediate simulator", &outcome), ("the model", &expected))
}

fn cuda_agrees_with_sim(cuda: &Cuda, seed: u64) -> Result<(), Failed> {
    let program = Program::generate(seed, Shape::DRIVER);
    let expected = simulated(&program, seed)?;
    agree(&program, seed, ("CUDA", &program.run(cuda)), ("the simulator", &expected))
}

/// The driver, its device open for all programs: a primary context takes longer to make than a program to run.
fn cuda() -> Result<Arc<Cuda>, String> {
    let cuda = Cuda::load().map_err(|absent| absent.to_string())?;
    cuda.open(DeviceId(0)).map_err(|failure| failure.to_string())?;
    Ok(cuda)
}

/// The programs of each trial, or the one that is replayed.
fn batches() -> impl Iterator<Item = Range<u64>> {
    let all = seeds(0..PROGRAMS);
    let starts = all.clone().step_by(PROGRAMS_PER_TRIAL as usize);
    starts.map(move |start| start..all.end.min(start + PROGRAMS_PER_TRIAL))
}

fn trial(name: &str, mut seeds: Range<u64>, run: impl Fn(u64) -> Result<(), Failed> + Send + 'static) -> Trial {
    Trial::test(format!("{name}::{}_to_{}", seeds.start, seeds.end - 1), move || seeds.try_for_each(run))
}

fn main() {
    let arguments = Arguments::from_args();
    let required = std::env::var_os("BURSAR_REQUIRE_CUDA").is_some_and(|value| value == "1");
    let cuda = cuda();
    let ignored = cuda.is_err() && !required;
    // One program at a time: they share the legacy default stream, and are compared by when it has run dry.
    let cuda = Arc::new(Mutex::new(cuda));
    let mut trials = Vec::new();
    for seeds in batches() {
        trials.push(trial("sim_agrees_with_itself", seeds.clone(), sim_agrees_with_itself));
        let cuda = cuda.clone();
        let on_cuda = move |seed| match &*cuda.lock().unwrap_or_else(PoisonError::into_inner) {
            Ok(cuda) => cuda_agrees_with_sim(cuda, seed),
            Err(absent) => Err(Failed::from(absent)),
        };
        trials.push(trial("cuda_agrees_with_sim", seeds, on_cuda).with_ignored_flag(ignored));
    }
    libtest_mimic::run(&arguments, trials).exit();
}
