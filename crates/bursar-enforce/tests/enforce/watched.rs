//! What the ledger tells of a program that knows nothing of it.

use crate::scene::{Scene, program};
use bursar_core::{Bytes, DeviceId, Driver};
use bursar_ledger::{Delegation, ProcessReading, Reading, RefusalReason};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

/// Starts a program that asks so often for so much in vain, holds 8 MiB and waits.
fn start(scene: &Scene, share: &Delegation, refused: Bytes, times: u64) -> Child {
    let mut command = scene.command(&program("watched.c", &[]), share);
    command.args([refused.get().to_string(), times.to_string()]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("text");
    assert_eq!(line, "ready\n");
    child
}

fn process(reading: &Reading, child: &Child) -> ProcessReading {
    reading.processes.iter().find(|process| process.pid == child.id()).expect("it has the ledger open").clone()
}

#[test]
fn m4_requests_that_are_refused_to_a_program_are_counted_once() {
    let scene = Scene::new();
    let share = scene.share(Bytes::mib(64));
    let mut child = start(&scene, &share, Bytes::mib(57), 3);
    let reading = scene.ledger.reading().expect("a ledger");
    assert_eq!((reading.refused.total(), reading.refused.of(RefusalReason::Share)), (3, 3));
    assert_eq!(process(&reading, &child).refused, 3);
    for refusal in &reading.refusals {
        let figures = (refusal.requested, refusal.available, refusal.limit);
        assert_eq!(figures, (Bytes::mib(57), Bytes::mib(56), Bytes::mib(64)));
        assert_eq!((refusal.pid, &*refusal.name), (child.id(), &*process(&reading, &child).name));
    }
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
    scene.assert_returned(&share);
}

#[test]
fn m4_a_request_that_the_driver_has_no_memory_for_is_the_devices() {
    let scene = Scene::new();
    let share = scene.share(Bytes::gib(1));
    scene.driver.allocate(DeviceId(0), Bytes::mib(7800).get()).expect("room for others");
    let mut child = start(&scene, &share, Bytes::mib(512), 2);
    let reading = scene.ledger.reading().expect("a ledger");
    assert_eq!((reading.refused.total(), reading.refused.of(RefusalReason::Device)), (2, 2));
    let last = &reading.refusals[0];
    assert_eq!((last.requested, last.available, last.limit), (Bytes::mib(512), Bytes::mib(384), Bytes::gib(8)));
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn m5_a_program_is_shown_with_what_it_holds_and_held_until_it_is_killed() {
    let scene = Scene::new();
    let share = scene.share(Bytes::mib(64));
    let mut child = start(&scene, &share, Bytes::mib(57), 1);
    let reading = scene.ledger.reading().expect("a ledger");
    let shown = process(&reading, &child);
    let usage = shown.usage.expect("it is published");
    assert_eq!((usage.live, usage.live, usage.cached), (shown.held, Bytes::mib(8), Bytes::ZERO));
    assert_eq!(usage.peak, Bytes::mib(12));
    child.kill().expect("it is ours");
    child.wait().expect("it ends");
    let after = scene.ledger.reading().expect("a ledger");
    assert!(after.processes.iter().all(|process| process.pid != child.id() && process.usage.is_none()));
    assert_eq!((after.refused, after.refusals), (reading.refused, reading.refusals));
}
