//! Programs that are killed while they sleep and wake.

use crate::Named;
use crate::rig::{GPU, Rig, ended};
use bursar::Bytes;
use bursar::sim::Random;
use std::time::Duration;

pub(crate) const TRIALS: &[Named] = &[
    ("z11_a_program_that_is_killed_asleep_leaves_nothing", a_program_that_is_killed_asleep_leaves_nothing),
    ("z11_a_program_that_is_killed_at_any_moment_leaves_nothing", killed_at_any_moment_leaves_nothing),
];

/// Checks that nobody holds, keeps or waits for anything.
fn assert_nothing_is_left(rig: &Rig) {
    let (device, host) = (rig.reading(), rig.host_reading());
    assert_eq!((device.held, device.undrawn), (Bytes::ZERO, Bytes::ZERO), "{:?}", device.processes);
    assert_eq!((host.held, host.undrawn), (Bytes::ZERO, Bytes::ZERO), "{:?}", host.processes);
    assert!(device.waiting.is_empty() && device.processes.is_empty(), "{:?}", device.processes);
    assert_eq!(rig.free(), GPU);
}

fn a_program_that_is_killed_asleep_leaves_nothing(rig: &Rig) {
    for more in [&[][..], &["--keep-place"]] {
        let mut program = rig.start(40);
        rig.asked("sleep", &program, more);
        assert!(rig.host_reading().held >= Bytes::mib(40));
        program.kill();
        assert_nothing_is_left(rig);
    }
    let (mut asleep, mut other) = (rig.start(60), rig.start(8));
    rig.asked("sleep", &asleep, &[]);
    other.say("take");
    let pid = asleep.child.id().to_string();
    let asking = rig.command(&["wake", &pid, "--timeout", "600"]).spawn().expect("the command was built");
    rig.wait_until("waiting", |reading| !reading.waiting.is_empty());
    asleep.kill();
    assert_eq!(ended(asking).status.code(), Some(1));
    other.kill();
    assert_nothing_is_left(rig);
}

/// Kills programs while commands put them to sleep and wake them, after times that reach from before the first to after it.
fn killed_at_any_moment_leaves_nothing(rig: &Rig) {
    let kills = std::env::var("BURSAR_SLEEP_KILLS").map_or(12, |kills| kills.parse().expect("a number"));
    let mut random = Random::new(1);
    for kill in 0..kills {
        let mut program = rig.start(40);
        let pid = program.child.id().to_string();
        let mut words = vec!["sleep", pid.as_str()];
        if random.below(2) == 0 {
            words.push("--keep-place");
        }
        if random.below(2) == 0 {
            assert!(ended(rig.command(&words).spawn().expect("the command was built")).status.success());
            words = vec!["wake", pid.as_str()];
        }
        let asking = rig.command(&words).spawn().expect("the command was built");
        std::thread::sleep(Duration::from_micros(random.below(40_000)));
        program.kill();
        let output = ended(asking);
        assert!(matches!(output.status.code(), Some(0 | 1)), "kill {kill}: {output:?}");
        assert_nothing_is_left(rig);
    }
}
