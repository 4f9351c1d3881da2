//! A program in C that was never told about Bursar: K1 as it sees the driver, and K3 with several of it, some of them killed.

mod programs;
mod rig;

use programs::{Program, succeeded};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

const GIB: u64 = 1 << 30;

static PROGRAM: Program = Program::new("program.c");

fn prepared(mode: &str, devices: &str) -> Command {
    PROGRAM.prepared(mode, devices)
}

fn free(devices: &str) -> u64 {
    let said = succeeded(&prepared("free", devices).output().expect("a program"));
    said.trim().parse().expect("a number")
}

/// Starts a process that holds memory, and waits until it does.
fn holder(devices: &str, bytes: u64) -> Child {
    let mut command = prepared("hold", devices);
    let mut child = command
        .arg(bytes.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a program");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    if line.trim() != "held" {
        let mut why = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut why).expect("a reason");
        panic!("{why}");
    }
    child
}

#[test]
fn k1_a_program_in_c_finds_memory_order_and_captures_as_on_hardware() {
    let output = prepared("all", "1x1GiB").output().expect("a program");
    succeeded(&output);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.matches("device code cannot be loaded").count(), 1, "said once: {said}");
    let hazards = PROGRAM.folder().join("hazards-all");
    for seed in 0..10 {
        let mut seeded = prepared("all", "1x1GiB");
        seeded.env("BURSAR_SEED", seed.to_string()).env("BURSAR_HAZARDS", &hazards);
        succeeded(&seeded.output().expect("a program"));
        let found = std::fs::read_to_string(&hazards).expect("a file");
        assert_eq!(found, "driver call from a host function: cuMemGetInfo_v2\n", "seed {seed}");
        std::fs::remove_file(&hazards).expect("a file");
    }
}

#[test]
fn k1_a_process_that_is_forked_off_is_told_so() {
    for devices in ["1x1GiB", "1x1GiB@forked"] {
        succeeded(&prepared("fork", devices).output().expect("a program"));
    }
}

#[test]
fn k1_devices_that_make_no_sense_are_no_devices_and_the_reason_is_said() {
    let output = prepared("free", "many").output().expect("a program");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("BURSAR_SIM_DEVICES") && said.contains("2x80GiB"), "{said}");
    assert!(said.contains("cuInit(0) returned 100"), "{said}");
}

#[test]
fn k1_a_context_takes_the_memory_that_it_is_said_to_take() {
    let mut command = prepared("free", "1x1GiB");
    let said = succeeded(&command.env("BURSAR_SIM_CONTEXT", "300MiB").output().expect("a program"));
    assert_eq!(said.trim(), (GIB - (300 << 20)).to_string());
}

#[test]
fn k1_what_nothing_orders_is_written_to_the_file_that_is_named() {
    let folder = PROGRAM.folder();
    let report = |mode: &str| {
        let path = folder.join(format!("hazards-{mode}"));
        for seed in ["0", "1"] {
            let mut command = prepared(mode, "1x1GiB");
            command.env("BURSAR_HAZARDS", &path).env("BURSAR_SEED", seed);
            succeeded(&command.output().expect("a program"));
        }
        std::fs::read_to_string(&path).expect("the file is made even where nothing is found")
    };
    assert_eq!(report("ordered"), "");
    let found = report("race");
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(lines.len(), 2, "one line a run: {found}");
    assert!(lines.iter().all(|line| line.starts_with("conflicting accesses on gpu0")), "{found}");
}

#[test]
fn k3_processes_share_memory_which_counts_for_its_owner() {
    succeeded(&prepared("share", "1x1GiB@shared").output().expect("a program"));
    let unnamed = prepared("share", "1x1GiB").output().expect("a program");
    let said = String::from_utf8_lossy(&unnamed.stderr).into_owned();
    assert!(said.contains("cuIpcGetMemHandle(&handle, linear + 5) returned 801"), "{said}");
    assert!(said.contains("only devices with a name"), "{said}");
}

#[test]
fn k3_devices_with_a_name_are_one_device_and_the_dead_give_back_what_they_held() {
    let devices = "1x4GiB@k3";
    let mut held = [1, 2].map(|gib| holder(devices, gib * GIB));
    assert_eq!(free(devices), GIB);
    assert_eq!(free("1x4GiB"), 4 * GIB, "devices without a name are nobody else's");
    assert_eq!(free("1x4GiB@other"), 4 * GIB);
    let refused = prepared("hold", devices).arg((GIB + 1).to_string()).output().expect("a program");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("returned 2 "), "refused for want of memory: {said}");
    // One is killed, the other ends by itself.
    held[1].kill().expect("it runs");
    held[1].wait().expect("it was killed");
    assert_eq!(free(devices), 3 * GIB);
    drop(held[0].stdin.take());
    assert!(held[0].wait().expect("it ends").success());
    assert_eq!(free(devices), 4 * GIB);
}
