//! Trials of use tracking over generated programs: no schedule has a hazard, every read sees what it must, and every wait is
//! needed.
//!
//! A failure prints the program and its seed. `BURSAR_PROGRAM_SEED=N` replays that program alone.

use bursar_conformance::CudaLibrary;
use bursar_conformance::program::{SEED_VARIABLE, SharedDriver, batches, seeds, trial};
use bursar_conformance::uses::{UseOutcome, UseProgram, UseShape, WaitDropper};
use bursar_cuda::Cuda;
use bursar_sim::Sim;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use std::sync::Arc;

const PROGRAMS: u64 = 1000;
const THREADED_PROGRAMS: u64 = 100;
const CUDA_PROGRAMS: u64 = 40;
/// The number of programs that are run again and again, each time with another wait dropped.
const MUTATED_PROGRAMS: u64 = 10;

fn failed(program: &UseProgram, seed: u64, what: impl std::fmt::Display) -> Failed {
    format!("{what}\n{SEED_VARIABLE}={seed} replays it\n{program}").into()
}

/// Runs a program on a simulator, which must find no hazard and no leak, and checks what the program read.
fn is_clean(seed: u64, shape: UseShape) -> Result<UseOutcome, Failed> {
    let (program, sim) = (UseProgram::generate(seed, shape), Sim::seeded(seed));
    let outcome = program.run(sim.clone());
    sim.check().map_err(|report| failed(&program, seed, report))?;
    match (&outcome.wrong, sim.leaks()) {
        (Some(wrong), _) => Err(failed(&program, seed, wrong)),
        (None, leaks) if !leaks.is_empty() => Err(failed(&program, seed, leaks)),
        _ => Ok(outcome),
    }
}

fn is_right_on_cuda(cuda: &Arc<Cuda>, seed: u64, shape: UseShape) -> Result<(), Failed> {
    let program = UseProgram::generate(seed, shape);
    program.run(cuda.clone()).wrong.map_or(Ok(()), |wrong| Err(failed(&program, seed, wrong)))
}

/// Runs some programs once for each of their waits, without that wait. Returns the number of waits, and those that were not
/// missed: the vector clocks of the simulator find them implied by others.
fn unneeded_waits(shape: UseShape) -> (u64, Vec<(u64, u64)>) {
    let (mut waits, mut unneeded) = (0, Vec::new());
    for seed in seeds(0..MUTATED_PROGRAMS) {
        let program = UseProgram::generate(seed, shape);
        let count = WaitDropper::nth(Sim::seeded(seed), 0);
        program.run(count.clone());
        waits += count.waits();
        for nth in 1..=count.waits() {
            let sim = Sim::seeded(seed);
            let outcome = program.run(WaitDropper::nth(sim.clone(), nth));
            if sim.check().is_ok() && outcome.wrong.is_none() {
                unneeded.push((seed, nth));
            }
        }
    }
    (waits, unneeded)
}

/// Checks that every wait is missed when it is dropped.
fn every_wait_is_needed() -> Result<(), Failed> {
    match unneeded_waits(UseShape::BARE) {
        (300.., unneeded) if unneeded.is_empty() => Ok(()),
        (waits, unneeded) => Err(format!("{} of {waits} waits are not needed: {unneeded:?}", unneeded.len()).into()),
    }
}

/// Checks that nearly every wait is missed when steps declare two buffers one after the other.
fn few_waits_of_copies_are_included_in_others() -> Result<(), Failed> {
    match unneeded_waits(UseShape::PAIRED) {
        (300.., unneeded) if unneeded.len() <= 10 => Ok(()),
        (waits, unneeded) => Err(format!("{} of {waits} waits are not needed: {unneeded:?}", unneeded.len()).into()),
    }
}

fn programs_are_large_enough() -> Result<(), Failed> {
    let outcome = is_clean(0, UseShape { faults: false, ..UseShape::FAULTY })?;
    match outcome {
        UseOutcome { buffers: 150.., reads: 100.., .. } => Ok(()),
        _ => Err(format!("{outcome:?}").into()),
    }
}

/// Returns the trials on the simulator itself.
fn simulated() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("t1_every_wait_is_needed", every_wait_is_needed),
        Trial::test("t1_few_waits_of_copies_are_included_in_others", few_waits_of_copies_are_included_in_others),
        Trial::test("programs_are_large_enough", programs_are_large_enough),
    ];
    for seeds in batches(PROGRAMS) {
        trials.push(trial("t3_no_hazard_though_calls_fail", seeds, |seed| is_clean(seed, UseShape::FAULTY).map(drop)));
    }
    for seeds in batches(THREADED_PROGRAMS) {
        trials.push(trial("t4_no_hazard_with_threads", seeds, |seed| is_clean(seed, UseShape::THREADED).map(drop)));
    }
    trials
}

fn main() -> ExitCode {
    CudaLibrary::judge_both("1x80GiB", |library| {
        let cuda = SharedDriver::open(Cuda::load());
        let mut trials = if library == CudaLibrary::Driver { simulated() } else { Vec::new() };
        let rows = library.rows();
        let large = [(format!("t1_right_on_{rows}"), 1), (format!("t4_right_on_{rows}_with_threads"), 4)];
        for (name, threads) in large {
            let shape = UseShape { threads, ..UseShape::LARGE };
            for seeds in batches(CUDA_PROGRAMS) {
                trials.push(cuda.trial(&name, seeds, move |cuda, seed| is_right_on_cuda(cuda, seed, shape)));
            }
        }
        libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
    })
}
