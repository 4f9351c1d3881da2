//! The memory reserved for workers: it can be allocated, and goes back.

use super::Named;
use super::rig::{Ended, Rig, Running, end};
use super::roles::{self, beside, within};
use rustix::process::Signal;
use std::collections::BTreeMap;

pub(crate) const TRIALS: &[Named] = &[
    ("l3_a_worker_draws_its_share_and_not_a_byte_more", a_worker_draws_its_share),
    ("l3_a_bursar_program_in_a_worker_draws_on_its_share", a_bursar_program_draws_on_its_share),
    ("l3_a_worker_that_is_started_again_draws_the_same_share", a_worker_that_is_started_again),
    ("f10_workers_of_the_library_are_told_what_those_of_a_run_are", workers_of_the_library),
    ("f5_two_runs_started_together_never_promise_the_same_bytes", two_runs_started_together),
    ("f5_what_a_foreign_program_took_is_promised_to_nobody", what_a_foreign_program_took),
    ("f5_a_second_run_is_refused_with_the_reason", a_second_run_is_refused),
    ("l4_more_workers_start_when_another_holder_ends", more_workers_start_when_another_holder_ends),
    ("l4_elastic_runs_every_worker_as_room_comes", elastic_runs_every_worker),
    ("l4_a_run_that_waits_for_room_ends_when_asked", a_run_that_waits_for_room_ends),
    ("l4_what_can_never_fit_is_refused_though_the_run_may_wait", what_can_never_fit_is_refused),
];

fn a_worker_draws_its_share(rig: &Rig) {
    let end = rig.gate("end");
    let mut run = Running::start(within(rig, "--want 4 --per-worker 20GiB", roles::DRAW));
    run.lines("drew 20 GiB of gpu0", 2);
    run.lines("drew 20 GiB of gpu1", 2);
    for reading in rig.readings() {
        assert_eq!((reading.held.get() >> 30, reading.undrawn.get()), (40, 0), "{reading:?}");
    }
    drop(end);
    let ended = run.end();
    assert_eq!(ended.code(), 0, "{ended:?}");
}

/// Returns what each worker was told, as lines `worker NAME=VALUE`; of tokens and of what describes the simulation the name.
fn told(ended: &Ended) -> Vec<String> {
    let of_worker = |line: &String| {
        let (worker, variable) = line.strip_prefix("[worker ")?.split_once("] ")?;
        let (name, value) = variable.split_once('=')?;
        let is_told = name.starts_with("BURSAR_") && name != roles::VARIABLE || name == "CUDA_VISIBLE_DEVICES";
        let is_alike = !name.starts_with("BURSAR_RESERVATION") && name != "BURSAR_SIM_DEVICES";
        is_told.then(|| format!("{worker} {name}={}", if is_alike { value } else { "" }))
    };
    let mut told: Vec<String> = ended.lines.iter().filter_map(of_worker).collect();
    told.sort();
    told
}

fn workers_of_the_library(rig: &Rig) {
    let library = end(beside(rig, roles::START));
    assert_eq!(library.code(), 0, "{library:?}");
    let run = end(rig.run("--label embed --fixed 6GiB --per-worker 10GiB --want 3", &["env"]));
    assert_eq!((run.code(), told(&run)), (0, told(&library)), "{run:?}");
    assert!(told(&run).iter().any(|line| line == "2 BURSAR_LABEL=embed"), "{run:?}");
    assert_eq!(told(&run).iter().filter(|line| line.contains("BURSAR_RESERVATION_SHARED")).count(), 3, "{run:?}");
    assert!(library.has("labels [[\"embed\"]]") && library.has("share 10 GiB \"embed\""), "{library:?}");
}

fn a_bursar_program_draws_on_its_share(rig: &Rig) {
    let bench = |bytes| {
        let program =
            [env!("CARGO_BIN_EXE_bursar"), "bench", "pairs", "--pairs", "100", "--threads", "1", "--bytes", bytes];
        end(rig.run("--per-worker 1GiB --devices 0", &program))
    };
    let within = bench("1MiB");
    assert_eq!(within.code(), 0, "{within:?}");
    let beyond = bench("2GiB");
    assert_eq!(beyond.code(), 1, "{beyond:?}");
    assert!(beyond.has("of 1 GiB left"), "{beyond:?}");
}

fn a_worker_that_is_started_again(rig: &Rig) {
    let this = std::env::current_exe().expect("this program");
    let script =
        format!("[ -e again ] || {{ {0} >&2 & cat drawn; touch again; kill -9 $$; }}; exec {0}", this.display());
    let (_end, drawn) = (rig.gate("end"), rig.gate("drawn"));
    let mut command = rig.shell("--per-worker 56GiB --devices 0 --restart 1", &script);
    command.env(roles::VARIABLE, roles::DRAW);
    let mut run = Running::start(command);
    run.line("drew 56 GiB");
    drop(drawn);
    run.line("started again (1 of 1)");
    run.lines("drew 56 GiB", 2);
    run.signal(Signal::TERM);
    assert_eq!(run.end().code(), 143);
}

/// Two runs want more than half each. Their workers draw all that is reserved for them at once: a device has 80 GiB, and no
/// more.
fn two_runs_started_together(rig: &Rig) {
    let tries = std::env::var("BURSAR_RUN_TRIES").ok().and_then(|tries| tries.parse().ok()).unwrap_or(5);
    for attempt in 0..tries {
        let (draw, end) = (rig.gate("draw"), rig.gate("end"));
        let start = || Running::start(within(rig, "--want 12 --per-worker 8GiB --headroom 1", roles::DRAW));
        let mut runs = [start(), start()];
        let fits = runs.each_mut().map(|run| {
            let line = run.line(" fit");
            line.split_whitespace().find_map(|word| word.parse::<usize>().ok()).expect("a number")
        });
        assert!((13..=20).contains(&fits.iter().sum::<usize>()), "try {attempt}: {fits:?}");
        runs.iter_mut().zip(fits).for_each(|(run, fit)| drop(run.lines("] seated", fit)));
        drop(draw);
        let mut drawn = BTreeMap::new();
        for (run, fit) in runs.iter_mut().zip(fits) {
            for line in run.lines("] drew 8 GiB of ", fit) {
                *drawn.entry(line.rsplit(' ').next().map(str::to_owned)).or_insert(0) += 8;
            }
        }
        assert!(drawn.values().all(|gib| *gib <= 80), "try {attempt}: {drawn:?}");
        drop(end);
        for run in runs {
            let ended = run.end();
            assert_eq!(ended.code(), 0, "try {attempt}: {ended:?}");
        }
        rig.assert_nothing_is_left();
    }
}

fn what_a_foreign_program_took(rig: &Rig) {
    let mut foreign = Running::start(beside(rig, roles::GRAB));
    foreign.line("grabbed");
    let end = rig.gate("end");
    let mut run = Running::start(within(rig, "--want 99 --per-worker 10GiB --headroom 1", roles::DRAW));
    run.line("12 of 99 workers fit: 4 on gpu0 and 8 on gpu1.");
    run.lines("] drew 10 GiB", 12);
    drop(end);
    assert_eq!(run.end().code(), 0);
    foreign.end();
}

fn a_second_run_is_refused(rig: &Rig) {
    let gate = rig.gate("gate");
    let mut first = Running::start(rig.shell("--want 2 --per-worker 50GiB", "echo ready; cat gate"));
    first.lines("ready", 2);
    let second = end(rig.shell("--want 2 --per-worker 50GiB", "echo never"));
    assert_eq!((second.code(), second.count("[worker")), (1, 0), "{second:?}");
    assert!(
        second.has("one worker of 50 GiB exceeds the VRAM budget of 6 GiB on gpu0 beside 50 GiB that others have"),
        "{second:?}"
    );
    drop(gate);
    assert_eq!(first.end().code(), 0);
}

fn more_workers_start_when_another_holder_ends(rig: &Rig) {
    let mut other = Running::start(beside(rig, roles::RESERVE));
    other.line("reserved");
    let gate = rig.gate("gate");
    let options = "--want 6 --per-worker 10GiB --headroom 0.9 --elastic";
    let mut run = Running::start(rig.shell(options, "echo in {worker} of {workers}; cat gate"));
    run.lines("in ", 2);
    other.end();
    for worker in 0..6 {
        run.line(&format!("[worker {worker}] in {worker} of 6"));
    }
    assert_eq!(rig.undrawn_gib(), 60);
    drop(gate);
    let ended = run.end();
    assert_eq!((ended.code(), ended.count("6 workers ended well")), (0, 1), "{ended:?}");
}

/// There is room for one worker on each device at a time: of those that have started, all but two have ended.
fn elastic_runs_every_worker(rig: &Rig) {
    // A second worker of 30 GiB would fit beside the first, but the headroom forbids it; one of 50 GiB would not fit.
    for each in ["30GiB", "50GiB"] {
        let ended = end(rig.shell(&format!("--want 8 --per-worker {each} --elastic"), "echo in; echo out"));
        assert_eq!((ended.code(), ended.count("] in"), ended.count("] out")), (0, 8, 8), "{each}: {ended:?}");
        let mut within = 0i32;
        for line in ended.lines.iter().filter(|line| line.starts_with("[worker")) {
            within += if line.ends_with("in") { 1 } else { -1 };
            assert!((0..=2).contains(&within), "{each}: {ended:?}");
        }
    }
}

fn a_run_that_waits_for_room_ends(rig: &Rig) {
    let mut other = Running::start(beside(rig, roles::RESERVE));
    other.line("reserved");
    let mut run = Running::start(rig.shell("--per-worker 50GiB --elastic", "echo never"));
    run.line("waiting for room");
    while rig.readings().iter().all(|reading| reading.waiting.is_empty()) {
        std::thread::yield_now();
    }
    run.signal(Signal::INT);
    let ended = run.end();
    assert_eq!((ended.code(), ended.count("never")), (130, 0), "{ended:?}");
    assert!(rig.readings().iter().all(|reading| reading.waiting.is_empty()));
    other.end();
}

fn what_can_never_fit_is_refused(rig: &Rig) {
    let ended = end(rig.shell("--per-worker 60GiB --elastic", "echo never"));
    assert_eq!((ended.code(), ended.count("[worker")), (1, 0), "{ended:?}");
}
