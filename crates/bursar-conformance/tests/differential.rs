//! Compares the simulator with itself on other schedules, with a model without streams, with the hardware, and with itself
//! behind CUDA's own interface: thousands of generated programs must give the same bytes and the same statuses everywhere.
//!
//! A failure prints the program and its seed. `BURSAR_PROGRAM_SEED=N` replays that program alone.

use bursar_conformance::CudaLibrary;
use bursar_conformance::program::{
    DriverProgram, ProgramOutcome, ProgramShape, SEED_VARIABLE, SharedDriver, batches, trial,
};
use bursar_cuda::Cuda;
use bursar_sim::Sim;
use libtest_mimic::{Arguments, Failed, Trial};
use std::ops::Range;
use std::process::ExitCode;

const PROGRAMS: u64 = 2000;

/// The schedules that every program is simulated with.
const SCHEDULES: Range<u64> = 0..3;

/// Fails with the program if two of its outcomes differ.
fn agree(
    program: &DriverProgram,
    seed: u64,
    one: (&str, &ProgramOutcome),
    other: (&str, &ProgramOutcome),
) -> Result<(), Failed> {
    match one.1.difference(other.1) {
        None => Ok(()),
        Some(difference) => Err(format!(
            "{} and {} disagree about {difference}\n{SEED_VARIABLE}={seed} replays it\n{program}",
            one.0, other.0
        )
        .into()),
    }
}

/// Runs a program with one schedule, on a simulator that must find no hazard and no leak.
fn simulated(program: &DriverProgram, schedule: u64) -> Result<ProgramOutcome, Failed> {
    let sim = Sim::seeded(schedule);
    let outcome = program.run(&*sim);
    sim.check().map_err(|report| format!("{report}\n{program}"))?;
    match sim.leaks() {
        leaks if leaks.is_empty() => Ok(outcome),
        leaks => Err(format!("{leaks}\n{program}").into()),
    }
}

fn sim_agrees_with_itself(seed: u64) -> Result<(), Failed> {
    let program = DriverProgram::generate(seed, ProgramShape::DRIVER);
    let expected = program.expected();
    for schedule in SCHEDULES {
        let outcome = simulated(&program, schedule ^ seed)?;
        agree(&program, seed, ("a seeded simulator", &outcome), ("the model", &expected))?;
    }
    let outcome = program.run(&*Sim::immediate());
    agree(&program, seed, ("an immediate simulator", &outcome), ("the model", &expected))
}

fn cuda_agrees_with_sim(cuda: &Cuda, seed: u64) -> Result<(), Failed> {
    let program = DriverProgram::generate(seed, ProgramShape::DRIVER);
    let expected = simulated(&program, seed)?;
    agree(&program, seed, ("CUDA", &program.run(cuda)), ("the simulator", &expected))
}

/// Returns the trials of this process: all of them, or those of the simulated library alone.
fn trials(library: CudaLibrary) -> Vec<Trial> {
    let cuda = SharedDriver::open(Cuda::load());
    let mut trials = Vec::new();
    for seeds in batches(PROGRAMS) {
        if library == CudaLibrary::Driver {
            trials.push(trial("sim_agrees_with_itself", seeds.clone(), sim_agrees_with_itself));
        }
        let name = format!("{}_agrees_with_sim", library.rows());
        trials.push(cuda.trial(&name, seeds, |cuda, seed| cuda_agrees_with_sim(cuda, seed)));
    }
    trials
}

fn main() -> ExitCode {
    CudaLibrary::judge_both("1x80GiB", |library| {
        libtest_mimic::run(&Arguments::from_args(), trials(library)).exit_code()
    })
}
