//! The ends of runs, after which nothing of them is left.

use super::Named;
use super::rig::{PATIENCE, Rig, Running, end};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, prlimit, waitpid};
use std::io::Read;
use std::time::Instant;

pub(crate) const TRIALS: &[Named] = &[
    ("a_signal_reaches_every_process_of_every_worker", a_signal_reaches_every_process),
    ("whoever_cleans_up_has_its_time_though_its_parent_has_ended", whoever_cleans_up_has_its_time),
    ("whoever_does_not_end_in_time_is_killed", whoever_does_not_end_in_time_is_killed),
    ("asking_twice_kills_at_once", asking_twice_kills_at_once),
    ("fail_fast_ends_the_others", fail_fast_ends_the_others),
    ("workers_that_failed_are_started_again_so_often_as_was_said", workers_are_started_again),
    ("a_worker_that_cannot_be_started_again_ends_the_run", a_worker_that_cannot_be_started_again),
    ("l6_a_worker_that_is_killed_leaves_nothing", a_worker_that_is_killed_leaves_nothing),
    ("what_a_worker_leaves_behind_is_ended", what_a_worker_leaves_behind_is_ended),
    ("l6_a_run_that_is_killed_takes_its_workers_along", a_run_that_is_killed_takes_its_workers_along),
    ("a_command_that_does_not_exist_leaves_nothing", a_command_that_does_not_exist),
    ("a_want_of_ten_thousand_leaves_nothing", a_want_of_ten_thousand),
    ("a_run_is_stopped_and_goes_on_with_its_workers", a_run_is_stopped_and_goes_on),
    ("signals_that_were_to_be_ignored_stay_ignored", signals_that_were_to_be_ignored),
    ("f7_signals_that_were_blocked_are_heard", signals_that_were_blocked_are_heard),
    ("output_that_nobody_reads_keeps_no_run_that_is_told_to_end", output_that_nobody_reads),
    ("a_want_of_a_hundred_million_is_refused_before_anything_is_made", a_want_of_a_hundred_million),
];

/// A script that waits for a signal, however soon it comes: a shell handles a signal that comes just before a `read` only
/// after that.
pub(crate) const AWAITS_A_SIGNAL: &str = "while :; do sleep 8888 & wait $!; done";

/// A script that kills the `sleep` that was waited for: it may have started after the signal, and ignores SIGINT, as
/// everything in the background does.
pub(crate) const ENDS_THE_WAIT: &str = "[ -z \"$!\" ] || kill -9 $! 2>/dev/null";

/// Returns a script that prints which signal ends it.
fn says(who: &str, then: &str) -> String {
    let ends = |signal: &str| format!("trap 'echo {who} {signal}; {ENDS_THE_WAIT}; exit 9' {signal}");
    format!("{}; {}; echo {who} ready; {then}", ends("INT"), ends("TERM"))
}

fn a_signal_reaches_every_process(rig: &Rig) {
    std::fs::write(rig.path("child.sh"), says("child", AWAITS_A_SIGNAL)).expect("a folder");
    for (signal, name, code) in [(Signal::INT, "INT", 130), (Signal::TERM, "TERM", 143), (Signal::HUP, "", 129)] {
        let mut run = Running::start(rig.shell("--want 3 --per-worker 1GiB", &says("parent", "sh child.sh")));
        run.lines("child ready", 3);
        run.signal(signal);
        let ended = run.end();
        assert_eq!(ended.code(), code, "{ended:?}");
        for who in (0..3).flat_map(|worker| ["parent", "child"].map(|who| format!("[worker {worker}] {who} {name}"))) {
            assert!(name.is_empty() || ended.has(&who), "{who}: {ended:?}");
        }
        rig.assert_nothing_is_left();
    }
}

fn whoever_cleans_up_has_its_time(rig: &Rig) {
    let gate = rig.gate("gate");
    let script = format!(
        "(trap '{ENDS_THE_WAIT}; echo saving; cat gate; echo saved; exit' TERM; echo child; {AWAITS_A_SIGNAL}) &
         true & wait $!; trap '{ENDS_THE_WAIT}; exit 1' TERM; echo parent; {AWAITS_A_SIGNAL}"
    );
    let mut run = Running::start(rig.shell("--per-worker 1GiB --grace 1000", &script));
    run.line("child");
    run.line("parent");
    run.signal(Signal::TERM);
    run.line("saving");
    drop(gate);
    let ended = run.end();
    assert_eq!((ended.code(), ended.count("saved")), (143, 1), "{ended:?}");
}

fn whoever_does_not_end_in_time_is_killed(rig: &Rig) {
    let _gate = rig.gate("gate");
    let script = "trap '' INT TERM; echo deaf; while :; do read x < gate; done";
    let mut run = Running::start(rig.shell("--want 2 --per-worker 1GiB --grace 0.2 --json", script));
    run.lines("deaf", 2);
    run.signal(Signal::TERM);
    let ended = run.end();
    assert_eq!((ended.code(), ended.count(r#""status":"stopped","exit_code":null,"signal":9"#)), (143, 2), "{ended:?}");
}

fn asking_twice_kills_at_once(rig: &Rig) {
    let _gate = rig.gate("gate");
    let script = "trap '' INT TERM; echo deaf; while :; do read x < gate; done";
    let mut run = Running::start(rig.shell("--want 2 --per-worker 1GiB --grace 100000", script));
    run.lines("deaf", 2);
    run.signal(Signal::INT);
    run.line("ending the workers");
    run.signal(Signal::INT);
    assert_eq!(run.end().code(), 130);
}

fn fail_fast_ends_the_others(rig: &Rig) {
    let (_never, gate) = (rig.gate("never"), rig.gate("gate"));
    let script = "echo ready; [ {worker} = 1 ] && { cat gate; exit 5; }; while :; do read x < never; done";
    let mut run = Running::start(rig.shell("--want 3 --per-worker 1GiB --fail-fast --json", script));
    run.lines("ready", 3);
    drop(gate);
    let ended = run.end();
    assert_eq!(ended.code(), 1, "{ended:?}");
    assert!(ended.has("1 of 3 workers failed: worker 1 ended with status 5"), "{ended:?}");
    assert_eq!((ended.count(r#""status":"failed""#), ended.count(r#""status":"stopped""#)), (1, 2), "{ended:?}");
}

fn workers_are_started_again(rig: &Rig) {
    let script =
        "echo try; n=$(cat n{worker} 2>/dev/null || echo 0); echo $((n+1)) > n{worker}; [ $n -ge $((2+{worker})) ]";
    let ended = end(rig.shell("--want 2 --per-worker 1GiB --restart 2", script));
    assert_eq!(ended.code(), 1, "{ended:?}");
    assert_eq!((ended.count("[worker 0] try"), ended.count("[worker 1] try")), (3, 3), "{ended:?}");
    assert!(ended.has("1 of 2 workers failed: worker 1 ended with status 1"), "{ended:?}");
    let ended = end(rig.run("--per-worker 1GiB --restart 3", &["no-such-command"]));
    assert_eq!((ended.code(), ended.count("started again")), (2, 0), "{ended:?}");
}

/// Once the last worker cannot be started, no event comes that would wake the run: it must end by itself.
fn a_worker_that_cannot_be_started_again(rig: &Rig) {
    let gate = rig.gate("gate");
    let mut run = Running::start(rig.shell("--per-worker 1GiB --restart 1", "echo supervisor $PPID; cat gate; exit 1"));
    let supervisor =
        run.line("supervisor ").rsplit(' ').next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    // Standard input, output and error, which are open already.
    let no_more_files = Rlimit { current: Some(3), maximum: Some(3) };
    prlimit(supervisor, Resource::Nofile, no_more_files).expect("it is ours");
    drop(gate);
    let ended = run.end();
    assert_eq!(ended.code(), 3, "{ended:?}");
    assert!(ended.has("sh could not be started: Too many open files"), "{ended:?}");
}

fn a_worker_that_is_killed_leaves_nothing(rig: &Rig) {
    let gate = rig.gate("gate");
    let script = "(echo below; while :; do read x < gate; done) & echo pid $$; cat gate";
    let mut run = Running::start(rig.shell("--want 2 --per-worker 10GiB", script));
    run.lines("below", 2);
    let pids = run.lines("] pid ", 2);
    assert_eq!(rig.undrawn_gib(), 20);
    let victim = pids.iter().find(|line| line.starts_with("[worker 1]")).expect("worker 1");
    let victim: i32 = victim.rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a number");
    kill_process(Pid::from_raw(victim).expect("a number"), Signal::KILL).expect("it runs");
    run.line("bursar: worker 1 was ended by SIGKILL");
    assert_eq!(rig.undrawn_gib(), 10, "its share is back while the other still runs");
    drop(gate);
    let ended = run.end();
    assert_eq!((ended.code(), ended.count("1 of 2 workers failed")), (1, 1), "{ended:?}");
}

fn what_a_worker_leaves_behind_is_ended(rig: &Rig) {
    let _never = rig.gate("never");
    let waits = "while :; do read x < never; done";
    let script = format!("({waits}) & setsid sh -c 'setsid sh -c \"{waits}\" & echo away; {waits}' & cat never.too");
    let gate = rig.gate("never.too");
    let mut run = Running::start(rig.shell("--want 2 --per-worker 1GiB", &script));
    run.lines("away", 2);
    drop(gate);
    let ended = run.end();
    assert_eq!(ended.code(), 0, "{ended:?}");
}

fn a_run_that_is_killed_takes_its_workers_along(rig: &Rig) {
    let _never = rig.gate("never");
    let held = rig.gate("held");
    let script =
        "exec 9> held; (echo below; while :; do read x < never; done) & echo above; while :; do read x < never; done";
    let mut run = Running::start(rig.shell("--want 2 --per-worker 10GiB", script));
    run.lines("below", 2);
    run.lines("above", 2);
    let mut ends = std::fs::File::open(rig.path("held")).expect("a pipe");
    drop(held);
    run.signal(Signal::KILL);
    // The read ends when the last process that has the pipe open has ended.
    let (tell, over) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(ends.read_to_end(&mut Vec::new())));
    over.recv_timeout(PATIENCE).expect("the workers end").expect("a pipe");
    assert_eq!(run.end().status.code(), None);
    let until = Instant::now() + PATIENCE;
    while !rig.processes().is_empty() && Instant::now() < until {
        std::thread::yield_now();
    }
}

fn a_command_that_does_not_exist(rig: &Rig) {
    let ended = end(rig.run("--want 8 --per-worker 10GiB --elastic", &["./no/such/command"]));
    assert_eq!(ended.code(), 2, "{ended:?}");
    assert!(ended.has("./no/such/command could not be started: No such file or directory"), "{ended:?}");
    assert_eq!(ended.count("[worker"), 0, "{ended:?}");
}

fn a_want_of_ten_thousand(rig: &Rig) {
    let ended = end(rig.shell("--want 10000 --per-worker 1GiB", "echo here"));
    assert_eq!((ended.code(), ended.count("] here")), (0, 112), "{ended:?}");
    assert!(ended.has("112 of 10000 workers fit"), "{ended:?}");
    rig.assert_nothing_is_left();
    let many = "ulimit -n 1000; exec \"$0\" \"$@\"";
    let run = rig.run("--want 10000 --per-worker 1KiB --available 1GiB --pool ram --headroom 1", &["true"]);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", many]).arg(run.get_program()).args(run.get_args());
    rig.place(&mut limited);
    let ended = end(limited);
    assert_eq!((ended.code(), ended.count("[worker")), (3, 0), "{ended:?}");
    assert!(ended.has("10000 workers need") || ended.has("has no room for more"), "{ended:?}");
}

/// The limit on virtual memory makes it fail to allocate a hundred million of anything.
fn a_want_of_a_hundred_million(rig: &Rig) {
    for options in ["", "--elastic", "--pool ram --available 1GiB --headroom 1 --per-worker 1"] {
        let run = rig.run(&format!("--want 100000000 {options}"), &["true"]);
        let mut limited = std::process::Command::new("sh");
        limited.args(["-c", "ulimit -v 2000000; exec \"$0\" \"$@\""]).arg(run.get_program()).args(run.get_args());
        rig.place(&mut limited);
        let ended = end(limited);
        assert_eq!((ended.code(), ended.count("[worker")), (3, 0), "{options}: {ended:?}");
        assert!(ended.has("100000000 workers need"), "{options}: {ended:?}");
        rig.assert_nothing_is_left();
    }
}

/// Each worker writes less than fits into its pipe, so that it ends, and both together more than fits into ours.
fn output_that_nobody_reads(rig: &Rig) {
    for twice in [false, true] {
        let script = "head -c 60000 /dev/zero; head -c 60000 /dev/zero >&2; touch written{worker}";
        let mut command = rig.shell("--want 2 --per-worker 10GiB --grace 100000", script);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut run = command.spawn().expect("the command was built");
        let until = Instant::now() + PATIENCE;
        while !(rig.path("written0").exists() && rig.path("written1").exists() && rig.undrawn_gib() == 0) {
            assert!(Instant::now() < until, "the workers do not end");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for _ in 0..if twice { 2 } else { 1 } {
            kill_process(Pid::from_child(&run), Signal::TERM).expect("it runs");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(super::rig::ends(&mut run).code(), Some(143), "twice: {twice}");
        (0..2).for_each(|worker| std::fs::remove_file(rig.path(&format!("written{worker}"))).expect("written"));
    }
}

fn a_run_is_stopped_and_goes_on(rig: &Rig) {
    let gate = rig.gate("gate");
    // A shell that is stopped while it starts a program waits for that one, and does not count as stopped; so it reads itself.
    let mut run = Running::start(rig.shell("--per-worker 1GiB", "echo pid $$; read x < gate; echo on"));
    let worker = run.line("] pid ").rsplit(' ').next().map(str::to_owned).expect("a number");
    run.signal(Signal::TSTP);
    let stopped = waitpid(Some(run.pid()), WaitOptions::UNTRACED).expect("it is ours").expect("it was stopped");
    assert!(stopped.1.stopped());
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{worker}/stat")).expect("the worker is there");
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next())
    };
    let until = Instant::now() + PATIENCE;
    while state() != Some('T') {
        assert!(Instant::now() < until, "the worker was not stopped");
        std::thread::yield_now();
    }
    run.signal(Signal::CONT);
    drop(gate);
    let ended = run.end();
    assert_eq!((ended.code(), ended.count("[worker 0] on")), (0, 1), "{ended:?}");
}

/// Returns the command of `run`, started with these signals blocked.
fn blocking(rig: &Rig, signals: &str, run: &std::process::Command) -> std::process::Command {
    let mut blocking = std::process::Command::new("env");
    blocking.arg(format!("--block-signal={signals}")).arg(run.get_program()).args(run.get_args());
    rig.place(&mut blocking);
    blocking
}

/// A program that starts a run may have signals blocked, as threads of daemons do. The run handles the ends of its workers
/// and requests to end nevertheless.
fn signals_that_were_blocked_are_heard(rig: &Rig) {
    let quick = rig.shell("--per-worker 1GiB", "grep SigBlk /proc/self/status; echo on");
    let ended = end(blocking(rig, "CHLD,TERM,INT,HUP,QUIT,USR1", &quick));
    assert_eq!(ended.code(), 0, "{ended:?}");
    assert!(ended.has("SigBlk:\t0000000000000000") && ended.has("[worker 0] on"), "{ended:?}");
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let waits = rig.shell("--per-worker 1GiB", &format!("echo ready; {AWAITS_A_SIGNAL}"));
        let mut run = Running::start(blocking(rig, "CHLD,TERM,INT,HUP,QUIT", &waits));
        run.line("ready");
        run.signal(signal);
        let ended = run.end();
        assert_eq!(ended.code(), code, "{ended:?}");
    }
    rig.assert_nothing_is_left();
}

/// Like `nohup`, or a script that starts a run in the background: the run and its workers ignore the signals that were
/// ignored when it was started, and no others.
fn signals_that_were_to_be_ignored(rig: &Rig) {
    let gate = rig.gate("gate");
    let run =
        rig.shell("--per-worker 1GiB", "kill -HUP $$; kill -INT $$; echo ready; cat gate; echo on; kill -TERM $$");
    let mut ignoring = std::process::Command::new("sh");
    ignoring.args(["-c", "trap '' HUP INT; exec \"$0\" \"$@\""]).arg(run.get_program()).args(run.get_args());
    rig.place(&mut ignoring);
    let mut run = Running::start(ignoring);
    run.line("ready");
    run.signal(Signal::HUP);
    run.signal(Signal::INT);
    drop(gate);
    let ended = run.end();
    assert_eq!((ended.code(), ended.count("[worker 0] on")), (1, 1), "{ended:?}");
    assert!(ended.has("worker 0 was ended by SIGTERM"), "{ended:?}");
}
