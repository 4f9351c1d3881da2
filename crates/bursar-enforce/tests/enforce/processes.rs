//! Processes that fork, execute, end late and are killed.

use crate::scene::{Scene, library, program, runs};
use bursar_core::{Bytes, Driver};
use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

fn ends(what: &str) -> Scene {
    let scene = Scene::new();
    let share = scene.share(Bytes::mib(64));
    runs(scene.command(&program("processes.c", &[]), &share).arg(what));
    scene.assert_returned(&share);
    scene
}

#[test]
fn e5_a_forked_child_is_told_by_status_and_its_parent_goes_on() {
    ends("forks");
    ends("forks-first");
    ends("forks-after-looking");
}

#[test]
fn e5_children_share_the_share_and_exec_returns_it() {
    ends("shares");
    ends("executes");
}

#[test]
fn e5_threads_that_end_late_and_exits_anywhere_return_everything() {
    for what in ["ends-late", "exits", "exits-in-callback"] {
        ends(what);
    }
}

#[test]
fn e2_contexts_that_threads_destroy_leave_nothing_charged() {
    ends("destroys-contexts");
}

#[test]
fn e1_threads_that_fill_a_pool_at_once_stay_inside_the_share() {
    ends("fills-pool");
}

#[test]
fn e7_errno_is_left_as_it_was() {
    ends("keeps-errno");
}

/// Sixteen programs with four threads each, one of which is killed every 50 ms. `BURSAR_ENFORCE_STORM_MS=30000` makes it long.
#[test]
fn e5_programs_that_are_killed_in_a_storm_return_everything() {
    let scene = Scene::new();
    let limit = Bytes::mib(256);
    let share = scene.share(limit);
    let storm = program("storm.c", &[]);
    let lasts = std::env::var("BURSAR_ENFORCE_STORM_MS").ok().and_then(|text| text.parse().ok()).unwrap_or(5_000);
    let mut seed = 0;
    let mut start = || -> Child {
        seed += 1;
        let mut command = scene.command(&storm, &share);
        let said = fs::File::options().append(true).create(true).open(scene.folder.join("said")).expect("a file");
        command.args(["4", &seed.to_string(), "600"]).stdout(Stdio::null()).stderr(said);
        command.spawn().expect("it starts")
    };
    let mut children: Vec<Child> = (0..16).map(|_| start()).collect();
    let ends = Instant::now() + Duration::from_millis(lasts);
    let mut most = Bytes::ZERO;
    for round in 0.. {
        let (held, used) = (share.held(), scene.driver.memory(bursar_core::DeviceId(0)).expect("a device").used());
        assert!(held <= limit && used <= limit, "{held} are charged and {used} given out of {limit}");
        most = most.max(used);
        if Instant::now() >= ends {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        let at = round % children.len();
        if round % 5 == 0 {
            children[at].kill().expect("it runs");
            let ended = children[at].wait().expect("it is ours");
            let said = || fs::read_to_string(scene.folder.join("said")).unwrap_or_default();
            assert!(ended.code().is_none(), "a program ended by itself: {ended}\n{}", said());
            children[at] = start();
        }
    }
    for mut child in children {
        child.kill().expect("it runs");
        child.wait().expect("it is ours");
    }
    assert!(most > Bytes::mib(64), "at most {most} was taken");
    scene.assert_returned(&share);
}

#[test]
fn e7_a_program_that_never_touches_cuda_is_not_affected() {
    let scene = Scene::new();
    let share = scene.share(Bytes::mib(64));
    let plain = program("plain.c", &[]);
    let bare = runs(&mut scene.bare(&plain));
    for token in [None, Some(share.token()), Some("rubbish".to_owned())] {
        let mut command = scene.bare(&plain);
        command.env("LD_PRELOAD", library("bursar_enforce"));
        command.envs(token.map(|token| ("BURSAR_RESERVATION", token)));
        assert_eq!(runs(&mut command), bare);
    }
    let script = "for i in 1 2 3; do echo $i; done; exec sh -c 'echo $((6 * 7))'";
    let mut shell = scene.command("/bin/sh".as_ref(), &share);
    assert_eq!(runs(shell.args(["-c", script])).stdout, b"1\n2\n3\n42\n");
    let reading = scene.ledger.reading().expect("a ledger");
    assert_eq!(reading.processes.len(), 1, "only this process has the ledger open");
}

#[test]
fn e5_a_program_that_aborts_at_any_step_returns_everything() {
    let scene = Scene::new();
    let share = scene.share(Bytes::mib(64));
    let program = program("steps.c", &[]);
    let counted = runs(&mut scene.command(&program, &share)).stdout;
    let steps: u64 = String::from_utf8_lossy(&counted).trim().parse().expect("a number");
    assert!(steps >= 20, "{steps} steps");
    let mut most = Bytes::ZERO;
    for step in 0..steps {
        let output = scene.command(&program, &share).arg(step.to_string()).output().expect("it starts");
        assert_eq!(output.status.code(), None, "step {step} aborts: {output:?}");
        most = most.max(share.held());
        scene.assert_returned(&share);
    }
    assert!(most > Bytes::mib(1), "the dead had {most} when they died");
}
