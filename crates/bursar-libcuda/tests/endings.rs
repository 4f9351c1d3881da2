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
