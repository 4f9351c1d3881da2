//! The memory that processes hold of one device together.
#![allow(unsafe_code)]

use crate::others::{Folder, GPU, Other, Role, TOTAL, free};
use bursar_core::{Bytes, Driver, Status};
use bursar_sim::Sim;
use std::process::Command;

pub(crate) const TRIALS: &[(&str, fn())] = &[
    ("l5_what_one_process_holds_is_not_free_to_another", what_one_process_holds_is_not_free_to_another),
    ("l5_processes_get_together_exactly_what_there_is", processes_get_together_exactly_what_there_is),
    ("l5_of_processes_that_want_everything_one_has_it", of_processes_that_want_everything_one_has_it),
    ("l5_every_kind_of_memory_counts_and_comes_back", every_kind_of_memory_counts_and_comes_back),
    ("l5_whoever_only_looks_leaves_no_trace", whoever_only_looks_leaves_no_trace),
    ("l6_a_killed_process_gives_everything_back", a_killed_process_gives_everything_back),
    ("l6_a_stopped_process_keeps_what_it_holds", a_stopped_process_keeps_what_it_holds),
    ("l6_processes_that_are_killed_while_they_allocate_leave_nothing", killed_while_they_allocate),
];

fn what_one_process_holds_is_not_free_to_another() {
    let folder = Folder::new();
    let sim = folder.sim();
    let mut other = Other::start(Role::Hold(48 << 20), &folder.0);
    assert_eq!(other.says(), (48u64 << 20).to_string());
    assert_eq!(free(&sim), Bytes::mib(16));
    let refused = sim.allocate(GPU, (16 << 20) + 1).expect_err("the other has it");
    assert_eq!(refused.status, Status::OutOfMemory);
    sim.allocate(GPU, 16 << 20).expect("an exact fit");
    assert_eq!(free(&sim), Bytes::ZERO);
    other.end();
    assert_eq!(free(&sim), Bytes::mib(48));
    drop(sim);
    assert!(folder.is_empty(), "the last to leave takes the folder along");
}

fn processes_get_together_exactly_what_there_is() {
    const UNIT: u64 = 256 << 10;
    let folder = Folder::new();
    let mut others: Vec<Other> = (0..6).map(|_| Other::start(Role::Grab(UNIT), &folder.0)).collect();
    let held = others.iter_mut().map(|other| other.says().parse::<u64>().expect("a size"));
    assert_eq!(held.sum::<u64>(), TOTAL.get());
    assert_eq!(free(&folder.sim()), Bytes::ZERO);
}

fn of_processes_that_want_everything_one_has_it() {
    let folder = Folder::new();
    let mut others: Vec<Other> = (0..4).map(|_| Other::start(Role::Own(1000), &folder.0)).collect();
    for other in &mut others {
        assert_eq!(other.says(), "0", "so often somebody else had it too");
    }
}

fn every_kind_of_memory_counts_and_comes_back() {
    for seed in [None, Some(3), Some(4)] {
        let folder = Folder::new();
        let builder = Sim::builder().device(TOTAL).named("shared").shared_in(&folder.0);
        let sim = seed.map_or(builder.clone().immediate(), |seed| builder.seed(seed)).build();
        let watch = folder.sim();
        let stream = sim.stream_create(GPU, 0).expect("a stream");
        let direct = sim.allocate(GPU, 1 << 20).expect("room");
        assert_eq!(free(&watch), Bytes::mib(63));
        // SAFETY: the stream is live.
        let ordered = unsafe { sim.allocate_async(GPU, stream, 2 << 20) }.expect("room");
        assert_eq!(free(&watch), Bytes::mib(61));
        let pages = sim.pages_create(GPU, 4 << 20).expect("room");
        assert_eq!((free(&watch), free(&sim)), (Bytes::mib(57), Bytes::mib(57)));
        // SAFETY: an allocation of this device, freed once.
        unsafe { sim.free(GPU, direct) }.expect("its own");
        // SAFETY: as above, on a live stream.
        unsafe { sim.free_async(GPU, stream, ordered) }.expect("its own");
        // SAFETY: the stream is live.
        unsafe { sim.stream_synchronize(GPU, stream) }.expect("works");
        assert_eq!(free(&watch), Bytes::mib(60));
        // SAFETY: pages of this device, mapped nowhere, released once.
        unsafe { sim.pages_release(GPU, pages) }.expect("its own");
        assert_eq!((free(&watch), free(&sim)), (TOTAL, TOTAL));
    }
}

fn whoever_only_looks_leaves_no_trace() {
    let folder = Folder::new();
    let (one, two) = (folder.sim(), folder.sim());
    assert_eq!((free(&one), free(&two)), (TOTAL, TOTAL));
    assert!(folder.is_empty());
    one.allocate(GPU, 4096).expect("room");
    assert_eq!(free(&two), TOTAL.saturating_sub(Bytes(4096)));
    drop(one);
    assert_eq!(free(&two), TOTAL);
    assert!(folder.is_empty());
}

fn a_killed_process_gives_everything_back() {
    let folder = Folder::new();
    let sim = folder.sim();
    sim.allocate(GPU, 4096).expect("room");
    let before = free(&sim);
    for _ in 0..4 {
        let mut other = Other::start(Role::Hold(32 << 20), &folder.0);
        assert_eq!(other.says(), (32u64 << 20).to_string());
        assert_eq!(free(&sim), before.saturating_sub(Bytes::mib(32)));
        other.kill();
        assert_eq!(free(&sim), before);
    }
    sim.allocate(GPU, before.get()).expect("all of it came back");
}

fn a_stopped_process_keeps_what_it_holds() {
    let folder = Folder::new();
    let sim = folder.sim();
    let mut other = Other::start(Role::Hold(32 << 20), &folder.0);
    assert_eq!(other.says(), (32u64 << 20).to_string());
    let stopped = Command::new("sh").args(["-c", &format!("kill -STOP {}", other.id())]).status();
    assert!(stopped.expect("a shell").success());
    assert_eq!(free(&sim), Bytes::mib(32));
    assert!(sim.allocate(GPU, 33 << 20).is_err());
    other.kill();
    assert_eq!(free(&sim), TOTAL);
}

fn killed_while_they_allocate() {
    let folder = Folder::new();
    let sim = folder.sim();
    for _ in 0..8 {
        let others: Vec<Other> = (0..3).map(|_| Other::start(Role::Grab(64 << 10), &folder.0)).collect();
        while free(&sim) == TOTAL {
            std::thread::yield_now();
        }
        others.into_iter().for_each(Other::kill);
        assert_eq!(free(&sim), TOTAL, "whatever they were doing");
    }
    sim.allocate(GPU, TOTAL.get()).expect("all of it");
}
