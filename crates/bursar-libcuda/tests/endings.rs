//! K1 where streams, threads and processes end before their work does.

mod programs;
mod rig;

use programs::{Program, succeeded};

static ENDINGS: Program = Program::new("endings.c");

#[test]
fn k1_whoever_waits_for_a_context_waits_for_streams_that_were_destroyed() {
    succeeded(&ENDINGS.prepared("streams", "1x1GiB").output().expect("a program"));
    let hazards = ENDINGS.folder().join("hazards");
    for seed in 0..10 {
        let mut seeded = ENDINGS.prepared("streams", "1x1GiB");
        seeded.env("BURSAR_SEED", seed.to_string()).env("BURSAR_HAZARDS", &hazards);
        succeeded(&seeded.output().expect("a program"));
        assert_eq!(std::fs::read_to_string(&hazards).expect("a file"), "", "seed {seed}");
    }
}

/// Runs the program in a mode, without a seed and with several. Returns what each run said.
fn said(mode: &str) -> Vec<String> {
    let seeds = std::iter::once(None).chain((0..4).map(Some));
    let run = |seed: Option<u64>| {
        let mut command = ENDINGS.prepared(mode, "1x1GiB");
        command.envs(seed.map(|seed| ("BURSAR_SEED", seed.to_string())));
        let output = command.output().expect("a program");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "no panic, and nothing to complain of");
        succeeded(&output)
    };
    seeds.map(run).collect()
}

#[test]
fn k1_a_thread_makes_calls_until_its_very_end() {
    said("threads");
}

#[test]
fn k1_calls_at_exit_succeed_until_the_driver_is_gone_and_say_so_afterwards() {
    assert!(said("exit").iter().all(|said| said == "told\n"));
}

#[test]
fn k1_a_process_that_is_forked_off_during_a_call_is_told_that_it_has_no_driver() {
    said("forks");
}
