//! Generated programs with graphs that sleep and wake, over several stacks, while calls of the driver fail at random: nothing is
//! concluded from a call that failed, so there is no hazard, contents are what they were, and in the end everything is back.
//!
//! `BURSAR_GRAPH_SEEDS=N` runs so many programs; `BURSAR_GRAPH_SEED=N` runs that one alone.

use super::programs::{Program, with_seeds};
use bursar_conformance::sleep::{Heap, in_the_end};
use bursar_core::{Bytes, DeviceId, Driver, Error, Result, Stack, Status, leaf, tag};
use bursar_device::{Gpu, SleepOptions, WakeOptions};
use bursar_memory::{GlobalDeviceBudget, Guard, PagePool, Quota};
use bursar_sim::{Call, Faults, Random, Sim};
use std::sync::Arc;
use std::time::Duration;

/// The chances that a call fails.
const CHANCES: [f64; 3] = [0.003, 0.02, 0.08];

/// The time that a request waits for frees that are pending.
const PATIENCE: Duration = Duration::from_millis(20);

/// Opens the device with one of several stacks below a budget.
fn open(driver: Arc<dyn Driver>, stack: u64, budget: &GlobalDeviceBudget) -> Gpu {
    let (device, budget) = (DeviceId(0), budget.clone());
    let pool = || PagePool::default().patience(PATIENCE);
    let opened = match stack {
        0 | 1 => Gpu::open(driver, device, &Stack::new().layer(pool()).layer(budget).over(leaf::Frames)),
        2 => Gpu::open(driver, device, &Stack::new().layer(budget).over(leaf::Direct)),
        3 => {
            let fixed = PagePool::fixed(Bytes::mib(6)).patience(PATIENCE);
            Gpu::open(driver, device, &Stack::new().layer(fixed).layer(budget).over(leaf::Frames))
        }
        4 => Gpu::open(driver, device, &Stack::new().layer(budget).over(leaf::Async)),
        5 => {
            let quota = Quota::of(Bytes::mib(48));
            Gpu::open(driver, device, &Stack::new().layer(quota).layer(pool()).layer(budget).over(leaf::Frames))
        }
        _ => Gpu::open(
            driver,
            device,
            &Stack::new().layer(Guard::default()).layer(pool()).layer(budget).over(leaf::Frames),
        ),
    };
    opened.expect("a simulated device opens")
}

/// Has everything, or the blocks of some tags, sleep or wake.
fn sleep_or_wake(gpu: &Gpu, random: &mut Random) -> Result<()> {
    let tags = [tag!("ordinary"), tag!("inside"), tag!("graph memory"), tag!("copy")];
    let (is_part, first, count) = (random.below(3) > 0, random.index(4), 1 + random.index(3));
    let chosen = || tags.iter().cycle().skip(first).take(if is_part { count } else { 0 }).copied();
    match random.below(5) {
        0 | 1 => {
            let options = chosen().fold(SleepOptions::new(), SleepOptions::only);
            let options = if random.chance(3) { options.keep_place() } else { options };
            gpu.sleep(&Heap, &options).map(drop)
        }
        2 => gpu.wake(&chosen().fold(WakeOptions::new(), WakeOptions::only)).map(drop),
        _ => gpu.wake(&WakeOptions::new()).map(drop),
    }
}

fn is_expected(error: &Error) -> bool {
    matches!(
        error,
        Error::Driver(_)
            | Error::CreateFailed(_)
            | Error::UseAfterFree { .. }
            | Error::Asleep { .. }
            | Error::StillInUse { .. }
            | Error::StreamMisuse { .. }
            | Error::Unsupported { .. }
    ) || error.is_capacity()
}

fn run(seed: u64, is_straying: bool) {
    let sim = Sim::seeded(seed);
    let faults = Faults::new(sim.clone());
    let budget = GlobalDeviceBudget::of(Bytes::mib(64));
    let gpu = open(faults.clone(), seed / 3 % 7, &budget);
    gpu.record_tags().expect("recorded");
    let held = gpu.memory().bytes_outstanding();
    let (program, mut random) = (Program::among_failures(&gpu, seed), Random::new(seed ^ 0x51ee9));
    let mut program = if is_straying { program.straying(seed) } else { program };
    faults.fail_with_probability(Call::ALL, CHANCES[(seed % 3) as usize], Status::NotSupported, seed);
    for _ in 0..80 {
        let stepped = if random.chance(6) { sleep_or_wake(&gpu, &mut random) } else { program.step() };
        stepped.or_else(|error| if is_expected(&error) { Ok(()) } else { Err(error) }).expect("refused by name");
        sim.check().unwrap_or_else(|report| panic!("seed {seed}: {report}"));
    }
    faults.heal();
    wake_in_the_end(&gpu, &mut program);
    in_the_end(|| gpu.memory().reap());
    program.end().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_eq!(gpu.still_held(Duration::from_secs(5)), None, "seed {seed}");
    gpu.context().trim();
    assert_eq!(gpu.memory().bytes_outstanding(), held, "seed {seed}");
    gpu.close().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    sim.check().unwrap_or_else(|report| panic!("seed {seed}: {report}"));
    assert!(sim.leaks().leaks.is_empty(), "seed {seed}: {}", sim.leaks());
    let charged: Vec<_> = budget.readings().into_iter().map(|reading| reading.charged).collect();
    assert!(charged.iter().all(|charged| *charged == Bytes::ZERO), "seed {seed}: {charged:?} are charged");
}

/// Wakes everything; where what is awake has taken the place meanwhile, the program gives it up.
fn wake_in_the_end(gpu: &Gpu, program: &mut Program<'_>) {
    in_the_end(|| match gpu.wake(&WakeOptions::new()) {
        Err(refused) if refused.is_capacity() => {
            program.forget_all();
            gpu.memory().reap()?;
            Err(refused)
        }
        woken => woken,
    });
}

#[test]
fn z7_generated_programs_whose_driver_fails_at_random_have_no_hazard_and_leave_nothing() {
    // With 116, an earlier graph is launched where a block lies whose own graph never came to be; with 2110, what was freed of a tag that
    // sleeps keeps frames that are awake.
    with_seeds(42, &[116, 2110], |seed| run(seed, false));
}

#[test]
fn z7_generated_programs_that_use_blocks_of_captures_anywhere_have_no_hazard_where_the_driver_fails() {
    with_seeds(42, &[], |seed| run(seed, true));
}
