//! Runs that are killed, after which nothing of them is left.

use super::Named;
use super::ends::{AWAITS_A_SIGNAL, ENDS_THE_WAIT};
use super::rig::{PATIENCE, Rig, Running, end};
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const TRIALS: &[Named] = &[
    ("f7_a_run_that_is_killed_at_any_moment_leaves_nothing", killed_at_any_moment),
    ("f7_whichever_processes_of_a_run_are_killed_it_leaves_nothing", whichever_processes_are_killed),
    ("f7_whichever_two_are_killed_at_any_moment_nothing_is_left", whichever_two_at_any_moment),
    ("f7_a_run_that_is_killed_while_it_is_stopped_leaves_nothing", killed_while_it_is_stopped),
    ("a_supervisor_that_is_stopped_goes_on_and_ends_when_told_to", a_supervisor_that_is_stopped_goes_on),
    ("a_run_that_is_told_to_end_at_any_moment_ends", told_to_end_at_any_moment),
    ("whoever_signals_all_processes_of_a_run_has_asked_once", signalling_all_asks_once),
    ("f7_what_was_there_before_a_run_is_left_alone", what_was_there_before_is_left_alone),
    ("a_worker_has_no_file_of_the_run_and_starts_as_any_program", a_worker_starts_as_any_program),
];

/// A script that leaves processes behind in every way: in its group, without a parent, in a session of their own, and both.
const SCATTERS: &str = "sleep 8888 & (sleep 8888 &); setsid sh -c 'sleep 8888 & exec sleep 8888' & \
                        (setsid sh -c '(sleep 8888 &); echo scattered; exec sleep 8888' &); exec sleep 8888";

/// Waits until no process with the folder in its environment is left, and nothing is charged. A process that ends loses its
/// environment a moment before its ledgers are closed.
fn wait_until_nothing_is_left(rig: &Rig, what: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let left = [rig.processes(), rig.charged()].concat();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "{what}: {left:#?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Numbers that look drawn, the same for a seed.
struct Draws(u64);

impl Draws {
    /// One below `bound`: SplitMix64.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound
    }
}

/// Returns how many runs to kill.
fn kills() -> u32 {
    std::env::var("BURSAR_RUN_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(30)
}

fn killed_at_any_moment(rig: &Rig) {
    let seed = std::process::id().into();
    let mut draws = Draws(seed);
    for kill in 0..kills() {
        let mut command = rig.shell("--want 6 --per-worker 10GiB", SCATTERS);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let after = Duration::from_micros(draws.below(200_000));
        let mut run = command.spawn().expect("the command was built");
        std::thread::sleep(after);
        run.kill().expect("it runs");
        run.wait().expect("it is ours");
        wait_until_nothing_is_left(rig, &format!("kill {kill} after {after:?}, seed {seed}"));
    }
}

/// Returns the process of a run that has this role, while it exists.
fn find_role(rig: &Rig, name: &str) -> Option<Pid> {
    let found = rig.processes().into_iter().find(|process| process.contains(name))?;
    found.split(['/', ':']).find_map(|part| part.parse().ok()).and_then(Pid::from_raw)
}

fn role(rig: &Rig, name: &str) -> Pid {
    find_role(rig, name).unwrap_or_else(|| panic!("{name}: {:#?}", rig.processes()))
}

/// Kills two of the three, in any order and any time apart, except one that has not started or has ended meanwhile.
fn whichever_two_at_any_moment(rig: &Rig) {
    let seed = std::process::id().into();
    let mut draws = Draws(seed);
    for kill in 0..kills() {
        let mut run = rig.shell("--want 3 --per-worker 10GiB", SCATTERS);
        let run = run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut run = run.spawn().expect("the command was built");
        let (after, gap) = (Duration::from_micros(draws.below(100_000)), Duration::from_micros(draws.below(500)));
        std::thread::sleep(after);
        let foreground = Some(Pid::from_child(&run));
        let mut three = [foreground, find_role(rig, "run:watchdog"), find_role(rig, "run:supervisor")];
        three.rotate_left(draws.below(3) as usize);
        if draws.below(2) == 0 {
            three.swap(0, 1);
        }
        for victim in three[..2].iter().flatten() {
            let _ = kill_process(*victim, Signal::KILL);
            std::thread::sleep(gap);
        }
        if three[2] == foreground && three[..2].contains(&None) {
            run.kill().expect("it was not waited for");
        }
        super::rig::ends(&mut run);
        let what = format!("kill {kill} of {three:?} after {after:?}, {gap:?} apart, seed {seed}");
        wait_until_nothing_is_left(rig, &what);
    }
}

fn whichever_processes_are_killed(rig: &Rig) {
    let sets: [&[&str]; 8] = [
        &["run:watchdog"],
        &["run:supervisor"],
        &["bursar run", "run:watchdog"],
        &["run:watchdog", "bursar run"],
        &["bursar run", "run:supervisor"],
        &["run:supervisor", "bursar run"],
        &["run:watchdog", "run:supervisor"],
        &["run:supervisor", "run:watchdog"],
    ];
    for set in sets {
        let mut run = Running::start(rig.shell("--want 2 --per-worker 10GiB", SCATTERS));
        run.lines("scattered", 2);
        let victims = set.iter().map(|name| role(rig, name)).collect::<Vec<_>>();
        // The second may have ended because of the first; it has not been waited for, so its number is not reused.
        for victim in victims {
            let _ = kill_process(victim, Signal::KILL);
        }
        let ended = run.end();
        // `bursar run`, killed second, may have ended by itself.
        let expected: &[Option<i32>] = match set {
            ["bursar run", ..] => &[None],
            [_, "bursar run"] => &[None, Some(137)],
            _ => &[Some(137)],
        };
        assert!(expected.contains(&ended.status.code()), "{set:?}: {ended:?}");
        wait_until_nothing_is_left(rig, &format!("{set:?}"));
    }
    let mut command = rig.shell("--want 2 --per-worker 10GiB", SCATTERS);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut run = Running::start(command);
    run.lines("scattered", 2);
    kill_process_group(run.pid(), Signal::KILL).expect("it runs");
    assert_eq!(run.end().status.code(), None);
    wait_until_nothing_is_left(rig, "its process group");
}

fn killed_while_it_is_stopped(rig: &Rig) {
    for stopped in ["bursar run", "run:watchdog", "run:supervisor"] {
        for killed in ["bursar run", "run:watchdog", "run:supervisor"] {
            let mut run = Running::start(rig.shell("--want 2 --per-worker 10GiB", SCATTERS));
            run.lines("scattered", 2);
            kill_process(role(rig, stopped), Signal::STOP).expect("it runs");
            kill_process(role(rig, killed), Signal::KILL).expect("it is there");
            if stopped == "bursar run" && stopped != killed {
                run.signal(Signal::CONT);
            }
            run.end();
            wait_until_nothing_is_left(rig, &format!("{stopped} was stopped and {killed} killed"));
        }
    }
}

fn a_supervisor_that_is_stopped_goes_on(rig: &Rig) {
    let mut run = Running::start(rig.shell("--per-worker 1GiB", "kill -STOP $PPID; echo stopped; exec sleep 8888"));
    run.line("stopped");
    kill_process(role(rig, "run:watchdog"), Signal::STOP).expect("it runs");
    run.signal(Signal::TERM);
    assert_eq!(run.end().code(), 143);
}

fn told_to_end_at_any_moment(rig: &Rig) {
    let seed = std::process::id().into();
    let mut draws = Draws(seed);
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)].repeat(4) {
        // Programs that a script starts in the background ignore SIGINT.
        let run = Running::start(rig.shell("--want 6 --per-worker 10GiB --grace 0.1", SCATTERS));
        let after = Duration::from_micros(draws.below(100_000));
        std::thread::sleep(after);
        run.signal(signal);
        let ended = run.end();
        // Before it handles signals it ends as any program does.
        let ends = [Some(code), None];
        assert!(ends.contains(&ended.status.code()), "{signal:?} after {after:?}, seed {seed}: {ended:?}");
        wait_until_nothing_is_left(rig, &format!("{signal:?} after {after:?}, seed {seed}"));
    }
}

/// A service manager signals all processes of a service at once: workers have their grace nevertheless.
fn signalling_all_asks_once(rig: &Rig) {
    let gate = rig.gate("gate");
    let saves = format!("{ENDS_THE_WAIT}; echo saving; cat gate; echo saved; exit");
    let script = format!("trap '{saves}' TERM; echo ready; {AWAITS_A_SIGNAL}");
    let mut run = Running::start(rig.shell("--per-worker 1GiB --grace 1000", &script));
    run.line("ready");
    for name in ["run:supervisor", "run:watchdog", "bursar run"] {
        kill_process(role(rig, name), Signal::TERM).expect("it runs");
    }
    run.line("saving");
    run.line("ending the workers");
    drop(gate);
    let ended = run.end();
    assert_eq!((ended.code(), ended.count("saved")), (143, 1), "{ended:?}");
}

fn a_worker_starts_as_any_program(rig: &Rig) {
    let script =
        "for file in /proc/$$/fd/*; do echo \"file $(readlink $file)\"; done; grep -E 'Sig(Ign|Blk)' /proc/self/status";
    let shown = |command: Command| {
        let lines = end(command).lines.into_iter();
        let lines = lines.map(|line| line.trim_start_matches("[worker 0] ").to_owned());
        // Pipes have numbers, which differ, and the shell has the script open.
        let mut lines: Vec<_> = lines
            .filter(|line| line.starts_with("file") || line.starts_with("Sig"))
            .map(|line| line.split(":[").next().unwrap_or_default().to_owned())
            .collect();
        lines.sort();
        lines
    };
    let mut plain = Command::new("sh");
    plain.args(["-c", &format!("exec 0</dev/null; {script}")]);
    rig.place(&mut plain);
    assert_eq!(shown(rig.shell("--per-worker 1GiB", script)), shown(plain));
}

/// A run replaces a shell that has a child: whether the run ends or is killed, the child continues.
fn what_was_there_before_is_left_alone(rig: &Rig) {
    for is_killed in [false, true] {
        let never = rig.gate("never");
        let script = "setsid sleep 8888 & echo ready; if [ -e stay ]; then exec sleep 8888; fi";
        let run = rig.shell("--per-worker 1GiB", script);
        let stay = rig.path("stay");
        if is_killed {
            std::fs::write(&stay, "").expect("a folder");
        }
        let before = "(sh -c 'read x < never' & read x < never) & echo before $!; exec \"$0\" \"$@\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", before]).arg(run.get_program()).args(run.get_args());
        rig.place(&mut shell);
        let mut run = Running::start(shell);
        let before = run.line("before ").rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a number");
        let before = Pid::from_raw(before).expect("a process");
        run.line("ready");
        if is_killed {
            run.signal(Signal::KILL);
        }
        let status = run.status();
        assert_eq!(status.code(), (!is_killed).then_some(0));
        let until = Instant::now() + PATIENCE;
        let left = loop {
            let left = rig.processes();
            if left.len() <= 2 {
                break left;
            }
            assert!(Instant::now() < until, "more than the two that were there before: {left:#?}");
            std::thread::sleep(Duration::from_millis(1));
        };
        test_kill_process(before).unwrap_or_else(|error| panic!("{error}: {left:#?}"));
        assert_eq!(left.len(), 2, "both processes that were there before: {left:#?}");
        drop(never);
        wait_until_nothing_is_left(rig, "after the others ended");
    }
}
