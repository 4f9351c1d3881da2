//! The simulator as an oracle over whole programs: it finds no fault with the leaves of the core, and the fault of each leaf
//! that is broken on purpose.
//!
//! A failure prints the program and its seed, which is the seed of the schedule too. `BURSAR_PROGRAM_SEED=N` replays that one.

#[path = "oracle/leaves.rs"]
mod leaves;

use bursar_conformance::program::{DriverProgram, ProgramShape, SEED_VARIABLE, seeds};
use bursar_core::{Build, Bytes, DeviceContext, DeviceId, DeviceMemoryResource, Stack, leaf};
use bursar_sim::{HazardKind, Sim};
use leaves::{CachingLeaf, MappingLeaf, Notes, ReturningLeaf, Variant, Waits};
use std::sync::Arc;
use std::time::Duration;

type Memory = Arc<dyn DeviceMemoryResource>;

/// The run of one program over one leaf on one schedule.
struct Run {
    program: DriverProgram,
    sim: Arc<Sim>,
    /// A description of how the outcome differs from the expected one.
    difference: Option<String>,
    outstanding: Bytes,
}

/// Runs the program of a seed over the leaf that `open` makes.
fn run(seed: u64, open: impl Fn(&Arc<DeviceContext>) -> Memory) -> Run {
    let (program, sim) = (DriverProgram::generate(seed, ProgramShape::RESOURCE), Sim::seeded(seed));
    let context = DeviceContext::open(sim.clone(), DeviceId(0)).expect("there is a device");
    let memory = open(&context);
    let outcome = program.run_through(&memory, &sim);
    memory.reap_blocking(Duration::MAX).expect("the device works");
    Run { difference: outcome.difference(&program.expected()), outstanding: memory.bytes_outstanding(), program, sim }
}

/// Checks a leaf on `count` schedules: no hazard, no leak, and every byte as expected.
fn assert_clean(count: u64, open: impl Fn(&Arc<DeviceContext>) -> Memory) {
    for seed in seeds(0..count) {
        let Run { program, sim, difference, outstanding } = run(seed, &open);
        let replay = format!("{SEED_VARIABLE}={seed} replays it\n{program}");
        if let Err(report) = sim.check() {
            panic!("{report}\n{replay}");
        }
        assert_eq!(difference, None, "the leaf and the model disagree; {replay}");
        assert_eq!(outstanding, Bytes::ZERO, "{replay}");
        let leaks = sim.leaks();
        assert!(leaks.is_empty(), "{leaks}\n{replay}");
    }
}

/// The number of schedules on which a broken leaf must be caught.
const SCHEDULES: u64 = 64;

/// Returns the number of schedules on which the oracle found a hazard, which must be of `kind`.
fn caught(kind: HazardKind, open: impl Fn(&Arc<DeviceContext>) -> Memory) -> u64 {
    let is_caught = |seed: &u64| {
        let hazards = run(*seed, &open).sim.take_hazards();
        for hazard in &hazards {
            assert_eq!(hazard.kind, kind, "seed {seed}: {hazard}");
        }
        !hazards.is_empty()
    };
    (0..SCHEDULES).filter(is_caught).count() as u64
}

#[test]
fn r8_256_seeds_of_a_random_program_over_8_streams_find_no_hazard_in_the_direct_leaf() {
    assert_clean(256, |context| Arc::new(Stack::new().over(leaf::Direct).build(context).expect("it can be opened")));
}

#[test]
fn r8_256_seeds_of_a_random_program_over_8_streams_find_no_hazard_in_the_async_leaf() {
    assert_clean(256, |context| Arc::new(Stack::new().over(leaf::Async).build(context).expect("it can be opened")));
}

#[test]
fn r8_256_seeds_of_a_random_program_over_8_streams_find_no_hazard_in_frames_mapped_as_blocks() {
    assert_clean(256, MappingLeaf::opener(Variant::Repaired, Notes::Sent));
}

#[test]
fn a_leaf_that_frees_without_waiting_is_caught_with_each_of_64_seeds() {
    let broken = ReturningLeaf::opener(Variant::Broken, Notes::Omitted);
    assert_eq!(caught(HazardKind::FreeUnordered, broken), SCHEDULES);
}

#[test]
fn the_same_leaf_that_waits_before_it_frees_is_clean() {
    assert_clean(SCHEDULES, ReturningLeaf::opener(Variant::Repaired, Notes::Omitted));
    assert_clean(SCHEDULES, ReturningLeaf::opener(Variant::Repaired, Notes::Sent));
}

#[test]
fn a_leaf_that_reuses_across_streams_without_an_event_is_caught_with_each_of_64_seeds() {
    assert_eq!(caught(HazardKind::ReusedUnordered, CachingLeaf::opener(Waits::Never)), SCHEDULES);
}

/// A block that is freed on another stream than its own is nobody's before both have come to the free. Not every program
/// has work on the block's own stream then that the free and the reuse are not behind anyhow.
#[test]
fn p9_a_leaf_that_reuses_once_one_of_two_streams_has_passed_is_caught() {
    for waits in [Waits::ForFree, Waits::ForHome] {
        let count = caught(HazardKind::ReusedUnordered, CachingLeaf::opener(waits));
        assert!(count > SCHEDULES / 2, "{waits:?} was caught with {count} seeds");
    }
}

#[test]
fn the_same_leaf_that_reuses_with_an_event_is_clean() {
    assert_clean(SCHEDULES, CachingLeaf::opener(Waits::ForBoth));
}

#[test]
fn a_leaf_that_unmaps_too_early_is_caught_with_each_of_64_seeds() {
    let broken = MappingLeaf::opener(Variant::Broken, Notes::Omitted);
    assert_eq!(caught(HazardKind::UnmapUnderUse, broken), SCHEDULES);
}

#[test]
fn the_same_leaf_that_unmaps_once_the_work_has_run_is_clean() {
    assert_clean(SCHEDULES, MappingLeaf::opener(Variant::Repaired, Notes::Omitted));
    assert_clean(SCHEDULES, MappingLeaf::opener(Variant::Repaired, Notes::Sent));
}

#[test]
fn a_leaf_that_frees_noted_blocks_without_waiting_is_caught_with_each_of_64_seeds() {
    let broken = ReturningLeaf::opener(Variant::Broken, Notes::Sent);
    assert_eq!(caught(HazardKind::FreeUnordered, broken), SCHEDULES);
}

#[test]
fn a_leaf_that_unmaps_noted_blocks_too_early_is_caught_with_each_of_64_seeds() {
    let broken = MappingLeaf::opener(Variant::Broken, Notes::Sent);
    assert_eq!(caught(HazardKind::UnmapUnderUse, broken), SCHEDULES);
}
