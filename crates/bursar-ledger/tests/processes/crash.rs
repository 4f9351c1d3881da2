//! A child that aborts before any write of any operation (L6): what it did is in a file, and the survivor repairs it.

use crate::common::Memory;
use crate::common::scene::{OPERATIONS, repaired, scene, steps_of};
use crate::peer::{Folder, ROLE, myself};
use crate::trial;
use libtest_mimic::Trial;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;

/// The variable for how many children abort; 1000000 for all of them.
const COUNT: &str = "BURSAR_LEDGER_CRASHES";

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("l6_a_child_that_aborts_at_any_write_is_repaired_exactly", aborted)]
}

/// The child: does one operation on the words in a file, and aborts before the nth write.
pub(crate) fn play() {
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let memory = Memory::in_file(&PathBuf::from(std::env::var_os("FILE").unwrap()));
    let scene = scene().with(&memory);
    scene.actor.words().dies_at.store(number("NTH"), SeqCst);
    memory.kill(3);
    OPERATIONS[number("OPERATION") as usize].1(&scene);
}

fn aborted() {
    let wanted: usize = std::env::var(COUNT).ok().and_then(|count| count.parse().ok()).unwrap_or(60);
    let folder = Folder::new();
    let file = folder.path().join("words");
    let known: Vec<_> = OPERATIONS.iter().map(|(what, run)| (*what, steps_of(*run))).collect();
    let all = known.iter().enumerate().flat_map(|(at, (_, (_, writes)))| (0..*writes).map(move |nth| (at, nth)));
    let all: Vec<(usize, u64)> = all.collect();
    for &(at, nth) in all.iter().step_by(all.len().div_ceil(wanted)) {
        scene().memory.write_to(&file);
        let mut child = myself();
        child.env(ROLE, "crash").env("FILE", &file).env("OPERATION", at.to_string()).env("NTH", nth.to_string());
        let status = child.status().unwrap();
        let (what, (steps, _)) = &known[at];
        assert_eq!(status.signal(), Some(6), "{what}: write {nth} was not reached");
        let memory = Memory::in_file(&file);
        let scene = scene().with(&memory);
        memory.kill(1);
        memory.kill(3);
        repaired(&scene, what, nth, steps);
    }
}
