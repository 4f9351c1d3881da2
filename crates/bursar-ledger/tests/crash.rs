//! A process that dies before any write of any operation leaves what the next one repairs exactly (L6).

mod common;

use bursar_ledger::format::STEP_MAX;
use common::scene::{OPERATIONS, repaired, scene, steps_of};
use common::{silence_kill_panics, survives};
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn l6_a_death_before_any_write_of_any_operation_is_repaired_exactly() {
    silence_kill_panics();
    let mut deaths = 0;
    for &(what, run) in OPERATIONS {
        let (steps, writes) = steps_of(run);
        for nth in 0..writes {
            let scene = scene();
            let words = scene.actor.words();
            words.dies_at.store(words.writes.load(SeqCst) + nth, SeqCst);
            assert!(!survives(|| run(&scene)), "{what}: write {nth} was not reached");
            repaired(&scene, what, nth, &steps);
            deaths += 1;
        }
    }
    assert!(deaths > 1_000, "{deaths} deaths are too few to mean anything");
}

/// The length of a step does not depend on the tables: the journal has room for each, and some to spare.
#[test]
fn l6_no_step_is_longer_than_the_journal() {
    let longest = |run: fn(&common::scene::Scene)| {
        let scene = scene();
        run(&scene);
        scene.actor.words().longest_step.load(SeqCst)
    };
    let (steps, what) = OPERATIONS.iter().map(|&(what, run)| (longest(run), what)).max().unwrap();
    assert!((8..=STEP_MAX as u64 - 4).contains(&steps), "{what} makes {steps} changes in a step");
}
