//! `bursar ledger` as its users meet it: on named simulated devices, with other processes that hold memory of them. This
//! program starts itself again as those.
#![forbid(unsafe_code)]

mod common;

use bursar::ledger::{Ledger, Priority, ReserveOptions};
use bursar::prelude::*;
use bursar::sim::Sim;
use common::Folder;
use libtest_mimic::{Arguments, Trial};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

type Run = fn(&Folder);

const TRIALS: &[(&str, Run)] = &[
    ("l5_an_absent_ledger_is_shown_as_zeros_and_nothing_is_made", an_absent_ledger_is_shown_as_zeros),
    ("l5_show_says_who_holds_what_since_when", show_says_who_holds_what_since_when),
    ("l5_devices_without_a_name_have_no_ledger", devices_without_a_name_have_no_ledger),
    ("l6_whoever_was_killed_is_not_shown", whoever_was_killed_is_not_shown),
    ("l8_memory_taken_outside_the_ledger_is_unmanaged", memory_taken_outside_the_ledger_is_unmanaged),
    ("l8_limits_are_set_by_ordinal_and_by_uuid", limits_are_set_by_ordinal_and_by_uuid),
    ("l4_show_says_who_waits", show_says_who_waits),
    ("l7_clear_refuses_while_somebody_holds_something", clear_refuses_while_somebody_holds_something),
    ("l7_a_ledger_that_cannot_be_read_is_named", a_ledger_that_cannot_be_read_is_named),
    ("l7_the_name_of_a_file_writes_no_colours_of_its_own", the_name_of_a_file_writes_no_colours),
    ("l7_a_ledger_that_cannot_be_read_hides_no_other_and_fails", a_ledger_that_cannot_be_read_hides_no_other),
    ("l7_a_pipe_in_place_of_a_ledger_is_refused_and_not_waited_for", a_pipe_in_place_of_a_ledger),
    ("l7_the_remedy_for_a_corrupt_ledger_is_the_ledgers", the_remedy_for_a_corrupt_ledger),
    ("l8_the_hosts_ledger_is_made_by_its_limit", the_hosts_ledger_is_made_by_its_limit),
    ("devices_that_make_no_sense_are_wrong_usage", devices_that_make_no_sense_are_wrong_usage),
];

const ROLE: &str = "BURSAR_TEST_ROLE";
const GPU: Bytes = Bytes::gib(8);
/// A label that would write lines and colours of its own.
const LABEL: &str = "two\nlines\u{1b}[31m";

/// The time after which a trial fails instead of hanging; nothing here takes as long.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        return play(&role);
    }
    let trial = |&(name, run): &(&str, Run)| {
        Trial::test(name, move || {
            run(&Folder::new());
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), TRIALS.iter().map(trial).collect()).exit_code()
}

/// Runs as one of the other processes: takes memory, prints a line, and waits for its input to end.
#[allow(clippy::print_stdout, reason = "one process reads what another prints")]
fn play(role: &str) -> ExitCode {
    let sim = Sim::builder().immediate().device(GPU).named("cli").build();
    let context = DeviceContext::open(sim, DeviceId(0)).expect("a device");
    let stack = match role {
        "unmanaged" => None,
        _ => Some(Stack::new().layer(Ledgers::default().budget()).over(leaf::Direct).build(&context).expect("a stack")),
    };
    let stream = context.default_stream();
    let block = stack.as_ref().map(|memory| memory.allocate(2 << 30, 256, stream, tag!("held")).expect("room"));
    let ledger = Ledger::for_device(&context).expect("a ledger");
    let aside = match role {
        "holder" => {
            let options = ReserveOptions::new().label(LABEL);
            Some(ledger.reserve_with(Bytes::gib(1), &options).expect("room"))
        }
        "unmanaged" => {
            context.driver().allocate(DeviceId(0), 3 << 30).expect("room");
            None
        }
        _ => None,
    };
    println!("ready");
    std::io::stdout().flush().expect("the other side listens");
    if role == "waiter" {
        let _ = ledger.reserve_within(GPU, Duration::from_secs(600), Priority::default());
    }
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the other side ends it");
    drop(aside);
    if let (Some(memory), Some(block)) = (stack, block) {
        memory.deallocate(block, stream).expect("its own");
    }
    ExitCode::SUCCESS
}

impl Folder {
    fn bursar(&self, arguments: &[&str]) -> Output {
        self.bursar_on("1x8GiB@cli", arguments)
    }

    fn bursar_on(&self, devices: &str, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_bursar"))
            .args(["--driver", "sim", "--sim-devices", devices])
            .args(arguments)
            .env_remove("BURSAR_DRIVER")
            .env("BURSAR_LEDGER_DIR", &self.0)
            .env("NO_COLOR", "1")
            .output()
            .expect("the command was built")
    }

    /// Runs `bursar` with these words, and kills it if it takes longer than the timeout.
    fn bursar_within(&self, patience: Duration, words: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
        command.args(["--driver", "sim", "--sim-devices", "1x8GiB@cli"]).args(words.split_whitespace());
        command.env_remove("BURSAR_DRIVER").env("BURSAR_LEDGER_DIR", &self.0).env("NO_COLOR", "1");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command was built");
        let until = Instant::now() + patience;
        while child.try_wait().expect("it is ours").is_none() {
            if Instant::now() >= until {
                child.kill().expect("it is ours");
                panic!("{words} does not end");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait_with_output().expect("it has ended")
    }

    /// Returns the only device in the output of `arguments`.
    fn device(&self, arguments: &[&str]) -> Value {
        let output = self.bursar(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        let value: Value = serde_json::from_slice(&output.stdout).expect("one JSON value and nothing else");
        let devices = value["devices"].as_array().expect("a list");
        assert_eq!(devices.len(), 1, "{value}");
        devices[0].clone()
    }

    fn show(&self) -> Value {
        self.device(&["ledger", "show"])
    }

    fn start(&self, role: &str) -> Other {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .env(ROLE, role)
            .env("BURSAR_LEDGER_DIR", &self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("text");
        assert_eq!(line, "ready\n");
        Other(child)
    }
}

/// Another process, killed when dropped.
struct Other(Child);

impl Other {
    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("it was started").success());
    }

    fn kill(mut self) {
        self.0.kill().expect("it is alive");
        self.0.wait().expect("it was started");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Returns the figures of a device: limit, held, undrawn, unmanaged, in GiB.
fn figures(device: &Value) -> [u64; 4] {
    ["limit", "held", "undrawn", "unmanaged"].map(|field| {
        let bytes = device[field].as_u64().unwrap_or_else(|| panic!("{field} in {device}"));
        assert_eq!(bytes % (1 << 30), 0, "{field} in {device}");
        bytes >> 30
    })
}

fn an_absent_ledger_is_shown_as_zeros(folder: &Folder) {
    let shown = folder.show();
    assert_eq!(figures(&shown), [8, 0, 0, 0]);
    assert_eq!((&shown["ordinal"], &shown["processes"]), (&0.into(), &Value::Array(Vec::new())));
    let listed = folder.device(&["devices"]);
    assert_eq!(
        [&listed["held"], &listed["undrawn"], &listed["unmanaged"], &listed["ledger_error"]],
        [&Value::from(0), &0.into(), &0.into(), &Value::Null]
    );
    assert_eq!(listed["uuid"], shown["uuid"]);
    folder.device(&["ledger", "clear", "0"]);
    let output = folder.bursar(&["ledger", "show"]);
    assert!(text(&output.stdout).contains("0 B held of 8 GiB"), "{}", text(&output.stdout));
    let made = std::fs::read_dir(&folder.0).expect("it is there").next();
    assert!(made.is_none(), "looking made {made:?}");
}

fn show_says_who_holds_what_since_when(folder: &Folder) {
    let other = folder.start("holder");
    let shown = folder.show();
    assert_eq!(figures(&shown), [8, 2, 1, 0], "{shown}");
    let process = &shown["processes"][0];
    assert_eq!(process["pid"], other.0.id());
    assert_eq!((&process["held"], &process["undrawn"]), (&(2u64 << 30).into(), &(1u64 << 30).into()));
    assert_eq!(process["labels"], Value::from(vec![LABEL]), "{process}");
    assert!(process["name"].as_str().is_some_and(|name| name.starts_with("ledger-")), "{process}");
    assert!(process["since"].as_str().is_some_and(|since| since.starts_with("20") && since.ends_with('Z')));
    let listed = folder.device(&["devices"]);
    assert_eq!(
        [&listed["held"], &listed["undrawn"], &listed["unmanaged"], &listed["free"]],
        [&Value::from(2u64 << 30), &(1u64 << 30).into(), &0.into(), &(6u64 << 30).into()]
    );
    let said = text(&folder.bursar(&["ledger", "show"]).stdout);
    let expected = format!("{}  ", other.0.id());
    assert!(said.contains(&expected) && said.contains(r"[two\nlines\u{1b}[31m] 2 GiB held, 1 GiB set aside"), "{said}");
    other.end();
    assert_eq!(figures(&folder.show()), [8, 0, 0, 0]);
}

fn devices_without_a_name_have_no_ledger(folder: &Folder) {
    let output = folder.bursar_on("2x1GiB", &["ledger", "show", "--json"]);
    let value: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
    assert_eq!(value["devices"], Value::Array(Vec::new()));
    let output = folder.bursar_on("2x1GiB", &["ledger", "limit", "0", "1GiB"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("@NAME"), "{}", text(&output.stderr));
}

fn whoever_was_killed_is_not_shown(folder: &Folder) {
    let (killed, lives) = (folder.start("holder"), folder.start("holder"));
    assert_eq!(figures(&folder.show()), [8, 4, 2, 0]);
    killed.kill();
    let shown = folder.show();
    assert_eq!(figures(&shown), [8, 2, 1, 0]);
    let processes = shown["processes"].as_array().expect("a list");
    assert_eq!(
        processes.iter().map(|process| process["pid"].as_u64()).collect::<Vec<_>>(),
        [Some(lives.0.id().into())]
    );
}

fn memory_taken_outside_the_ledger_is_unmanaged(folder: &Folder) {
    let holder = folder.start("holder");
    let foreign = folder.start("unmanaged");
    assert_eq!(figures(&folder.show()), [8, 2, 1, 3]);
    let sim = Sim::builder().immediate().device(GPU).named("cli").shared_in(&folder.0).build();
    let context = DeviceContext::open(sim, DeviceId(0)).expect("a device");
    let subject = bursar::ledger::Subject::device(context.facts());
    let ledger = Ledger::open_in(&folder.0, &subject).expect("a ledger");
    let ledger = ledger.measured_by(move || Ok(context.driver().memory(context.device())?));
    assert_eq!(ledger.available().expect("works"), Bytes::gib(2), "admission knows it too");
    assert!(ledger.reserve(Bytes(Bytes::gib(2).get() + 1)).expect_err("others have it").is_capacity());
    foreign.end();
    assert_eq!(figures(&folder.show()), [8, 2, 1, 0]);
    assert_eq!(ledger.available().expect("works"), Bytes::gib(5));
    ledger.reserve(Bytes::gib(5)).expect("it came back");
    drop(holder);
}

fn limits_are_set_by_ordinal_and_by_uuid(folder: &Folder) {
    assert_eq!(figures(&folder.device(&["ledger", "limit", "0", "5GiB"])), [5, 0, 0, 0]);
    let uuid = folder.show()["uuid"].as_str().expect("text").to_owned();
    let _holder = folder.start("holder");
    assert_eq!(figures(&folder.device(&["ledger", "limit", &uuid, "4GiB"])), [4, 2, 1, 0]);
    let elsewhere = folder.bursar_on("1x1GiB", &["ledger", "limit", &uuid, "6GiB", "--json"]);
    assert!(elsewhere.status.success(), "a device that is not here, by its ledger: {}", text(&elsewhere.stderr));
    assert_eq!(figures(&folder.show())[0], 6);
}

fn show_says_who_waits(folder: &Folder) {
    let waiter = folder.start("waiter");
    let waiting = loop {
        let shown = folder.show();
        if let Some(waiting) = shown["waiting"].as_array().and_then(|waiting| waiting.first()) {
            break waiting.clone();
        }
        std::thread::yield_now();
    };
    assert_eq!((&waiting["pid"], &waiting["bytes"]), (&waiter.0.id().into(), &GPU.get().into()));
    waiter.kill();
    assert_eq!(folder.show()["waiting"], Value::Array(Vec::new()));
}

fn clear_refuses_while_somebody_holds_something(folder: &Folder) {
    let other = folder.start("holder");
    let refused = folder.bursar(&["ledger", "clear"]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    let said = text(&refused.stderr);
    assert!(said.contains(&other.0.id().to_string()) && said.contains(".ledger"), "{said}");
    assert_eq!(figures(&folder.show()), [8, 2, 1, 0], "nothing was changed");
    assert!(folder.bursar(&["ledger", "clear", "--force"]).status.success());
    assert_eq!(figures(&folder.show()), [8, 0, 0, 2], "what is held now is unmanaged");
    other.kill();
    folder.device(&["ledger", "limit", "0", "1GiB"]);
    assert!(folder.bursar(&["ledger", "clear"]).status.success());
    assert_eq!(figures(&folder.show()), [8, 0, 0, 0]);
}

fn a_ledger_that_cannot_be_read_is_named(folder: &Folder) {
    folder.device(&["ledger", "limit", "0", "5GiB"]);
    let uuid = folder.show()["uuid"].as_str().expect("text").to_owned();
    let file = folder.0.join(format!("{uuid}.ledger"));
    std::fs::write(&file, "noise").expect("ours");
    let output = folder.bursar(&["ledger", "show", "--json"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let shown: Value = serde_json::from_slice(&output.stdout).expect("one JSON value and nothing else");
    let shown = &shown["devices"][0];
    assert_eq!(shown["uuid"], uuid.as_str());
    assert!(shown["error"].as_str().is_some_and(|error| error.contains(&uuid)), "{shown}");
    let listed = folder.device(&["devices"]);
    assert_eq!((&listed["held"], &listed["total"]), (&Value::Null, &GPU.get().into()));
    assert!(listed["ledger_error"].as_str().is_some_and(|error| error.contains(&uuid)), "{listed}");
    for arguments in [vec!["ledger", "limit", "0", "1GiB"], vec!["ledger", "clear", "--force"]] {
        let output = folder.bursar(&arguments);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(&uuid), "{}", text(&output.stderr));
    }
    assert_eq!(std::fs::read(&file).expect("still there"), b"noise", "nothing is reset");
}

fn the_name_of_a_file_writes_no_colours(folder: &Folder) {
    std::fs::write(folder.0.join("red\u{1b}[31m\nline.ledger"), "noise").expect("ours");
    let output = folder.bursar(&["ledger", "show"]);
    for printed in [text(&output.stdout), text(&output.stderr)] {
        assert!(printed.contains(r"red\u{1b}[31m"), "{printed:?}");
    }
}

fn a_ledger_that_cannot_be_read_hides_no_other(folder: &Folder) {
    folder.device(&["ledger", "limit", "0", "5GiB"]);
    std::fs::write(folder.0.join("GPU-00000000-0000-0000-0000-000000000001.ledger"), "noise").expect("ours");
    let output = folder.bursar(&["ledger", "show"]);
    assert_eq!(output.status.code(), Some(3));
    let said = text(&output.stdout);
    assert!(said.contains("held of 5 GiB") && said.contains("000001  cannot be read"), "{said}");
    assert!(text(&output.stderr).contains("000001.ledger"), "{}", text(&output.stderr));
    let output = folder.bursar(&["ledger", "show", "--json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).expect("one JSON value and nothing else");
    assert_eq!((output.status.code(), shown["devices"].as_array().map(Vec::len)), (Some(3), Some(2)), "{shown}");
}

fn a_pipe_in_place_of_a_ledger(folder: &Folder) {
    let uuid = folder.show()["uuid"].as_str().expect("text").to_owned();
    let (device, host) = (folder.0.join(format!("{uuid}.ledger")), folder.0.join("HOST.ledger"));
    for (file, words, code) in [
        (&device, "ledger show", 3),
        (&device, "devices", 0),
        (&device, "ledger limit 0 1GiB", 3),
        (&device, "ledger clear", 3),
        (&device, "ledger clear 0 --force", 3),
        (&host, "ledger show", 3),
        (&host, "ledger clear", 3),
        (&host, "ledger limit host 1GiB", 3),
    ] {
        mknodat(CWD, file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        let output = folder.bursar_within(PATIENCE, words);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words}: {said}");
        let name = file.file_name().and_then(|name| name.to_str()).expect("a plain name");
        assert!(said.contains(name), "{words}: {said}");
        std::fs::remove_file(file).expect("nothing took it away");
    }
}

fn the_remedy_for_a_corrupt_ledger(folder: &Folder) {
    folder.device(&["ledger", "limit", "0", "5GiB"]);
    let uuid = folder.show()["uuid"].as_str().expect("text").to_owned();
    std::fs::write(folder.0.join(format!("{uuid}.ledger")), "noise").expect("ours");
    for arguments in [&["fit", "--per-worker", "1GiB"][..], &["run", "--per-worker", "1GiB", "--", "true"]] {
        let output = folder.bursar(arguments);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(said.contains(&uuid) && !said.contains("--available"), "{arguments:?}: {said}");
    }
}

fn the_hosts_ledger_is_made_by_its_limit(folder: &Folder) {
    let limited = folder.bursar(&["ledger", "limit", "host", "1GiB", "--json"]);
    assert!(limited.status.success(), "{}", text(&limited.stderr));
    let shown: Value = serde_json::from_slice(&limited.stdout).expect("one JSON value and nothing else");
    let devices = shown["devices"].as_array().expect("a list");
    assert_eq!((devices.len(), &devices[0]["limit"]), (1, &(1u64 << 30).into()), "{shown}");
    let total = devices[0]["total"].as_u64().expect("a number");
    assert!(total > 1 << 30, "{shown}");
    assert!(folder.bursar(&["ledger", "limit", "HOST", "2GiB"]).status.success());
    assert!(folder.bursar(&["ledger", "clear", "host"]).status.success());
}

fn devices_that_make_no_sense_are_wrong_usage(folder: &Folder) {
    for gpu in ["1", "gpu0", "GPU-12", "GPU-00000000-0000-0000-0000-000000000001"] {
        let output = folder.bursar(&["ledger", "limit", gpu, "1GiB"]);
        assert_eq!(output.status.code(), Some(2), "{gpu}: {}", text(&output.stderr));
    }
    assert_eq!(folder.bursar(&["ledger", "limit", "0", "lots"]).status.code(), Some(2));
    for command in ["show", "limit", "clear"] {
        let output = folder.bursar(&["ledger", command, "--help"]);
        assert!(text(&output.stdout).contains("Example"), "{command}");
    }
}
