//! Programs that are asked, and those that cannot be.

use crate::Named;
use crate::rig::{Rig, ended, text};
use bursar::Bytes;
use rustix::process::{Pid, Signal, kill_process};
use std::process::Output;
use std::time::{Duration, Instant};

pub(crate) const TRIALS: &[Named] = &[
    ("z10_a_program_is_put_to_sleep_and_woken_by_another_process", a_program_is_put_to_sleep_and_woken),
    ("z10_whoever_keeps_his_place_stays_charged", whoever_keeps_his_place_stays_charged),
    ("z8_a_place_is_taken_for_what_sleeps_already", a_place_is_taken_for_what_sleeps_already),
    ("z10_people_are_told_how_much_went_where", people_are_told_how_much_went_where),
    ("z10_what_cannot_be_asked_is_refused_by_name", what_cannot_be_asked_is_refused_by_name),
    ("z10_work_under_way_is_waited_for", work_under_way_is_waited_for),
    ("z10_a_wake_that_is_refused_names_who_has_the_memory", a_wake_that_is_refused_names_holders),
    ("z10_ctrl_c_ends_a_wait_in_the_queue", ctrl_c_ends_a_wait_in_the_queue),
    ("z10_the_death_of_who_asks_ends_a_wait_in_the_queue", the_death_of_who_asks_ends_a_wait),
    ("z10_the_death_of_who_is_asked_is_told", the_death_of_who_is_asked_is_told),
    ("z10_a_stopped_program_is_named_and_not_asked_later", a_stopped_program_is_not_asked_later),
    ("z10_a_program_that_wakes_itself_goes_on", a_program_that_wakes_itself_goes_on),
    ("z10_ctrl_c_ends_a_wait_for_work", ctrl_c_ends_a_wait_for_work),
    ("z10_the_death_of_who_asks_ends_a_wait_for_work", the_death_of_who_asks_ends_a_wait_for_work),
    ("z10_a_request_comes_after_the_one_before_within_its_time", a_request_comes_after_the_one_before),
];

fn failed(output: &Output, status: i32, says: &str) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{error}");
    assert!(error.contains(says), "{error:?} says nothing of {says:?}");
}

fn a_program_is_put_to_sleep_and_woken(rig: &Rig) {
    let mut program = rig.start(40);
    let (held, free) = (rig.reading().held, rig.free());
    let slept = rig.asked("sleep", &program, &[]);
    assert!(slept["moved"].as_u64() >= Some(40 << 20) && slept["copied"].as_u64() >= Some(40 << 20), "{slept}");
    assert_eq!((rig.reading().held, rig.reading().undrawn), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!(rig.free(), free + held);
    assert_eq!(program.say("state"), "asleep");
    assert!(rig.host_reading().held >= Bytes::mib(40), "contents are charged to the host");

    // It waits until it is awake.
    program.tell("check");
    let woken = rig.asked("wake", &program, &[]);
    assert_eq!((&woken["moved"], &woken["copied"]), (&slept["moved"], &slept["copied"]));
    assert_eq!(program.answer(), "right");
    assert_eq!(rig.reading().held, held);
}

fn whoever_keeps_his_place_stays_charged(rig: &Rig) {
    let mut program = rig.start(40);
    let (held, free) = (rig.reading().held, rig.free());
    rig.asked("sleep", &program, &["--keep-place"]);
    assert_eq!(rig.reading().held, held);
    assert_eq!(rig.free(), free + held, "the device has it all the same");
    rig.asked("wake", &program, &["--timeout", "0"]);
    assert_eq!(program.say("check"), "right");
}

fn people_are_told_how_much_went_where(rig: &Rig) {
    let program = rig.start(8);
    let output = rig.ask("sleep", &program, &[]);
    let printed = text(&output.stdout);
    let pid = program.child.id();
    assert!(printed.contains(&format!("(pid {pid}) is asleep")), "{printed}");
    assert!(
        printed.contains("8 MiB went back to") && printed.contains("8 MiB of contents to host memory"),
        "{printed}"
    );
}

fn what_cannot_be_asked_is_refused_by_name(rig: &Rig) {
    let ask = |words: &[&str]| ended(rig.command(words).spawn().expect("the command was built"));
    // No number is larger on any Linux.
    failed(&ask(&["sleep", "4194304"]), 1, "there is no process 4194304");
    let me = std::process::id().to_string();
    failed(&ask(&["wake", &me]), 1, "has no ledger open");
    failed(&ask(&["sleep", "4711x"]), 2, "invalid");

    let mut program = rig.start(8);
    failed(&rig.ask("wake", &program, &[]), 1, "is awake already");
    rig.asked("sleep", &program, &[]);
    failed(&rig.ask("sleep", &program, &[]), 1, "is asleep already");
    rig.asked("wake", &program, &[]);
    assert_eq!(program.say("deaf"), "deaf");
    failed(&rig.ask("sleep", &program, &[]), 1, "does not let others put its memory to sleep");
    assert_eq!(program.say("state"), "awake");
}

fn a_place_is_taken_for_what_sleeps_already(rig: &Rig) {
    let mut program = rig.start(8);
    rig.asked("sleep", &program, &[]);
    rig.wait_until("away", |reading| reading.held == Bytes::ZERO);
    for _ in 0..2 {
        let kept = rig.ask("sleep", &program, &["--keep-place"]);
        assert!(kept.status.success(), "{}", text(&kept.stderr));
        assert!(text(&kept.stdout).contains("is asleep already, and its place is kept"), "{}", text(&kept.stdout));
        rig.wait_until("kept", |reading| reading.held == Bytes::mib(8));
    }
    rig.asked("wake", &program, &[]);
    assert_eq!(program.say("check"), "right");
}

fn work_under_way_is_waited_for(rig: &Rig) {
    let mut program = rig.start(8);
    assert_eq!(program.say("work"), "working");
    failed(&rig.ask("sleep", &program, &["--timeout", "0.05"]), 1, "1 stretch of work stays awake");
    assert_eq!(program.say("rest"), "rested");
    assert_eq!(program.say("state"), "awake");

    assert_eq!(program.say("work"), "working");
    let pid = program.child.id().to_string();
    let asking = rig.command(&["sleep", &pid]).spawn().expect("the command was built");
    assert_eq!(program.say("rest"), "rested");
    assert!(ended(asking).status.success());
    assert_eq!(program.say("state"), "asleep");
}

fn a_wake_that_is_refused_names_holders(rig: &Rig) {
    let (mut program, mut other) = (rig.start(60), rig.start(8));
    rig.asked("sleep", &program, &[]);
    let taken: u64 = other.say("take").parse().expect("a number");
    assert!(taken >= 60 << 20);
    let refused = rig.ask("wake", &program, &["--timeout", "0"]);
    failed(&refused, 1, "was refused 60 MiB to wake with");
    failed(&refused, 1, &format!("(pid {})", other.child.id()));
    assert_eq!(program.say("state"), "asleep");
    assert_eq!(other.say("free"), "freed");
    rig.asked("wake", &program, &[]);
    assert_eq!(program.say("check"), "right");
}

/// Starts a wake that waits in the queue, lets `end` end the command, and checks that nothing is left of it.
fn wait_in_the_queue(rig: &Rig, signal: Signal, status: Option<i32>) {
    let (mut program, mut other) = (rig.start(60), rig.start(8));
    rig.asked("sleep", &program, &[]);
    other.say("take");
    let pid = program.child.id().to_string();
    let asking = rig.command(&["wake", &pid, "--timeout", "600"]).spawn().expect("the command was built");
    rig.wait_until("waiting", |reading| !reading.waiting.is_empty());
    kill_process(Pid::from_child(&asking), signal).expect("it is ours");
    assert_eq!(ended(asking).status.code(), status);
    rig.wait_until("gone from the queue", |reading| reading.waiting.is_empty());
    other.say("free");
    assert_eq!(program.say("state"), "asleep");
    rig.asked("wake", &program, &[]);
    assert_eq!(program.say("check"), "right");
}

fn ctrl_c_ends_a_wait_in_the_queue(rig: &Rig) {
    wait_in_the_queue(rig, Signal::INT, Some(128 + 2));
}

fn the_death_of_who_asks_ends_a_wait(rig: &Rig) {
    wait_in_the_queue(rig, Signal::KILL, None);
}

/// Starts a sleep that waits for work, ends the command, and checks that the program stays awake when its work has ended.
fn wait_for_work(rig: &Rig, signal: Signal, status: Option<i32>, says: &str) {
    let mut program = rig.start(8);
    assert_eq!(program.say("work"), "working");
    let pid = program.child.id().to_string();
    let asking = rig.command(&["sleep", &pid, "--timeout", "600"]).spawn().expect("the command was built");
    rig.wait_until_busy(&program);
    kill_process(Pid::from_child(&asking), signal).expect("it is ours");
    let output = ended(asking);
    assert_eq!(output.status.code(), status);
    assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
    assert_eq!(program.say("rest"), "rested");
    // Comes after whatever is left of the request.
    failed(&rig.ask("wake", &program, &[]), 1, "is awake already");
    assert_eq!(program.say("check"), "right");
}

fn ctrl_c_ends_a_wait_for_work(rig: &Rig) {
    wait_for_work(rig, Signal::INT, Some(128 + 2), "had not begun, and is as it was");
}

fn the_death_of_who_asks_ends_a_wait_for_work(rig: &Rig) {
    wait_for_work(rig, Signal::KILL, None, "");
}

fn the_death_of_who_is_asked_is_told(rig: &Rig) {
    let mut program = rig.start(8);
    assert_eq!(program.say("work"), "working");
    let pid = program.child.id().to_string();
    let asking = rig.command(&["sleep", &pid, "--timeout", "600"]).spawn().expect("the command was built");
    rig.wait_until("asked", |reading| reading.processes.len() == 2);
    program.kill();
    let output = ended(asking);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert_eq!(rig.reading().held, Bytes::ZERO);
}

fn a_stopped_program_is_not_asked_later(rig: &Rig) {
    let mut program = rig.start(8);
    program.signal(Signal::STOP);
    failed(&rig.ask("sleep", &program, &["--timeout", "0"]), 1, "is stopped");
    program.signal(Signal::CONT);
    assert_eq!(program.say("state"), "awake");
    assert_eq!(program.say("check"), "right");
}

fn a_program_that_wakes_itself_goes_on(rig: &Rig) {
    let mut program = rig.start(8);
    rig.asked("sleep", &program, &[]);
    assert_eq!(program.say("wake"), (8 << 20).to_string());
    assert_eq!(program.say("check"), "right");
    rig.asked("sleep", &program, &[]);
}

/// A command that finds a program busy waits for it: until its time is over, until a signal comes, or until it is its turn.
fn a_request_comes_after_the_one_before(rig: &Rig) {
    let mut program = rig.start(8);
    assert_eq!(program.say("work"), "working");
    let pid = program.child.id().to_string();
    let start = |words: &[&str]| rig.command(words).spawn().expect("the command was built");
    let sleeping = start(&["sleep", &pid, "--timeout", "600"]);
    rig.wait_until_busy(&program);

    let began = Instant::now();
    failed(&rig.ask("wake", &program, &["--timeout", "0.5"]), 1, "is busy with another request");
    assert!(began.elapsed() >= Duration::from_millis(500), "it waits for {:?} only", began.elapsed());

    let waking = ["wake", &pid, "--timeout", "600"];
    let interrupted = start(&waking);
    rig.wait_until("asked by two", |reading| reading.processes.len() == 3);
    kill_process(Pid::from_child(&interrupted), Signal::INT).expect("it is ours");
    assert_eq!(ended(interrupted).status.code(), Some(128 + 2));

    let waking = start(&waking);
    rig.wait_until("asked by two", |reading| reading.processes.len() == 3);
    assert_eq!(program.say("rest"), "rested");
    for command in [sleeping, waking] {
        let output = ended(command);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    assert_eq!((program.say("state"), program.say("check")), ("awake".to_owned(), "right".to_owned()));
}
