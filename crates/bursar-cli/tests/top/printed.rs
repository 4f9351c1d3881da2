//! `bursar top` without a terminal: `--once`, `--json`, and neither.

use crate::Named;
use crate::common::Folder;
use crate::other::{LABEL, Other};
use rustix::io::ioctl_fionread;
use rustix::pipe::fcntl_setpipe_size;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) const TRIALS: &[Named] = &[
    ("m1_json_and_once_say_what_ledger_show_says", json_and_once_say_what_ledger_show_says),
    ("m1_an_unreadable_ledger_is_told_with_its_reason", an_unreadable_ledger_is_told_with_its_reason),
    ("m1_without_a_gpu_ledgers_are_shown_and_the_reason_told", without_a_gpu_ledgers_are_shown),
    ("m1_names_of_others_print_no_control_characters", names_of_others_print_no_control_characters),
    ("without_a_terminal_the_error_names_what_works", without_a_terminal_the_error_names_what_works),
    ("a_stream_ends_with_its_reader", a_stream_ends_with_its_reader),
    ("a_stream_ends_between_lines_on_a_signal", a_stream_ends_between_lines_on_a_signal),
    ("a_signal_ends_a_stream_that_nobody_reads", a_signal_ends_a_stream_that_nobody_reads),
    ("a_stream_ignores_what_it_was_started_to_ignore", a_stream_ignores_what_it_was_started_to_ignore),
    ("options_that_make_no_sense_are_wrong_usage", options_that_make_no_sense_are_wrong_usage),
];

/// The time after which a trial fails instead of hanging; nothing here takes as long.
const PATIENCE: Duration = Duration::from_secs(60);

fn output(folder: &Folder, words: &str) -> Output {
    folder.bursar(words).stdin(Stdio::null()).output().expect("the command was built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn values(folder: &Folder, words: &str) -> Vec<Value> {
    let output = output(folder, words);
    assert!(output.status.success(), "{words}: {}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("a value a line")).collect()
}

/// Returns what two outputs have to agree on.
fn agreed(state: &Value) -> Value {
    let device = |device: &Value| {
        let fields = ["uuid", "ordinal", "name", "total", "limit", "held", "undrawn", "unmanaged"];
        let mut agreed: Vec<Value> = fields.iter().map(|field| device[field].clone()).collect();
        for (list, fields) in [
            ("processes", &["pid", "name", "labels", "held", "undrawn"][..]),
            ("tenants", &["name", "guarantee", "ceiling", "charged"]),
            ("waiting", &["pid", "name", "tenant", "bytes"]),
        ] {
            let of = |row: &Value| fields.iter().map(|field| row[field].clone()).collect::<Value>();
            agreed.push(device[list].as_array().expect("a list").iter().map(of).collect());
        }
        Value::Array(agreed)
    };
    state["devices"].as_array().expect("a list").iter().map(device).collect()
}

/// Returns the output of `bursar ledger show` once so many requests wait.
fn shown(folder: &Folder, waiting: usize) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let shown: Value = serde_json::from_slice(&output(folder, "ledger show --json").stdout).expect("JSON");
        if shown["devices"][0]["waiting"].as_array().is_some_and(|requests| requests.len() == waiting) {
            return shown;
        }
        assert!(Instant::now() < until, "{waiting} should wait: {shown}");
    }
}

fn json_and_once_say_what_ledger_show_says(folder: &Folder) {
    let mut large = Other::start(folder, "large");
    let mut small = Other::start(folder, "small");
    for step in ["", "take", "give", "wait"] {
        if step == "wait" {
            large.ask(step);
        } else if !step.is_empty() {
            small.ask(step);
        }
        let shown = shown(folder, usize::from(step == "wait"));
        let states = values(folder, "top --json --count 2 --interval 0.1");
        assert_eq!(states.len(), 2);
        for state in &states {
            assert_eq!(agreed(state), agreed(&shown), "after {step:?}");
        }
        assert_eq!(agreed(&values(folder, "top --json --once")[0]), agreed(&shown));
        let frame = text(&output(folder, "top --once").stdout);
        let device = &shown["devices"][0];
        let size = |field: &str| format!("{} GiB", device[field].as_u64().expect("a number") >> 30);
        for part in [format!("H held {}", size("held")), format!("S set aside {}", size("undrawn"))] {
            assert!(frame.contains(&part), "{part} after {step:?}:\n{frame}");
        }
        for pid in [large.pid(), small.pid()] {
            assert!(frame.contains(&format!(" {pid} ")), "{pid} after {step:?}:\n{frame}");
        }
        assert!(frame.lines().all(|line| line.chars().count() <= 100), "{frame}");
    }
}

fn an_unreadable_ledger_is_told_with_its_reason(folder: &Folder) {
    drop(Other::start(folder, "large"));
    let ledgers = || std::fs::read_dir(folder.ledgers()).expect("it is there").map(|file| file.expect("a file").path());
    let file = ledgers().find(|file| file.extension().is_some_and(|ending| ending == "ledger")).expect("a ledger");
    std::fs::write(&file, "noise").expect("ours");
    let once = output(folder, "top --once");
    let frame = text(&once.stdout);
    assert_eq!(once.status.code(), Some(3), "{frame}");
    assert!(frame.contains("gpu0  UNREADABLE (corrupt)") && frame.contains("1 unreadable"), "{frame}");
    assert!(!frame.contains("held") && !frame.contains("0 B"), "{frame}");
    let state = &values(folder, "top --json --count 1")[0]["devices"][0];
    assert_eq!((&state["status"], &state["reason"]), (&"unreadable".into(), &"corrupt".into()));
    assert_eq!(state.get("held"), None, "{state}");
}

fn without_a_gpu_ledgers_are_shown(folder: &Folder) {
    let _large = Other::start(folder, "large");
    let without = |words: &str| {
        let mut command = folder.bursar(words);
        command.env_remove("BURSAR_DRIVER").env_remove("BURSAR_SIM_DEVICES").output().expect("the command was built")
    };
    let once = without("top --once");
    let frame = text(&once.stdout);
    assert!(once.status.success(), "{frame}");
    assert!(frame.contains("no GPU is asked: ") && frame.contains("H held 2 GiB"), "{frame}");
    let state: Value = serde_json::from_slice(&without("top --json --count 1").stdout).expect("one value");
    assert!(state["no_gpu"].is_string() && state["driver"].is_null(), "{state}");
    assert_eq!(state["devices"][0]["held"], 2u64 << 30);
}

fn names_of_others_print_no_control_characters(folder: &Folder) {
    let _small = Other::start(folder, "small");
    for words in ["top --once", "top --json --count 1"] {
        let shown = text(&output(folder, words).stdout);
        assert!(!shown.replace('\n', "").chars().any(char::is_control), "{words}: {shown:?}");
    }
    let frame = text(&output(folder, "top --once").stdout);
    assert!(frame.contains("labels: two\\nlines\\u{1b}[2J\\u{1b}[31m\\u{9b}7m"), "{frame}");
    assert_eq!(values(folder, "top --json --count 1")[0]["devices"][0]["processes"][0]["labels"][0], LABEL);
}

fn without_a_terminal_the_error_names_what_works(folder: &Folder) {
    let output = output(folder, "top");
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()), "{said}");
    assert!(said.contains("not a terminal") && said.contains("--once") && said.contains("--json"), "{said}");
}

/// Starts a stream and reads its first line.
fn stream(folder: &Folder) -> (Child, BufReader<ChildStdout>) {
    let mut command = folder.bursar("top --json --interval 0.1");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command was built");
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("text");
    serde_json::from_str::<Value>(&line).expect("a value a line");
    (child, lines)
}

/// Waits for a process to end and returns its exit status.
fn ended(child: &mut Child) -> Option<i32> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("it is ours") {
            return status.code();
        }
        if Instant::now() >= until {
            child.kill().expect("it is ours");
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn a_stream_ends_with_its_reader(folder: &Folder) {
    let (mut child, lines) = stream(folder);
    drop(lines);
    assert_eq!(ended(&mut child), Some(0));
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert_eq!(said, "");
}

fn a_stream_ends_between_lines_on_a_signal(folder: &Folder) {
    let signals = [(Signal::INT, 0), (Signal::TERM, 128 + 15)];
    for (signal, status) in signals.into_iter().filter(|(signal, _)| !is_ignored(*signal)) {
        let (mut child, mut lines) = stream(folder);
        self::signal(&child, signal);
        let mut rest = String::new();
        lines.read_to_string(&mut rest).expect("text");
        assert_eq!(ended(&mut child), Some(status), "{signal:?}");
        assert!(rest.is_empty() || rest.ends_with('\n'), "{rest}");
        rest.lines().for_each(|line| drop(serde_json::from_str::<Value>(line).expect("whole values")));
    }
}

/// Returns whether this program was started to ignore a signal, as a shell starts those in the background: what it starts ignores it too.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("the state of this process");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a list of signals");
    let ignored = u64::from_str_radix(ignored.trim(), 16).expect("a number");
    ignored >> (signal.as_raw() - 1) & 1 == 1
}

fn signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, signal).expect("it is ours");
}

fn a_signal_ends_a_stream_that_nobody_reads(folder: &Folder) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    fcntl_setpipe_size(&writer, 4096).expect("the smallest");
    let mut child = folder.bursar("top --json --interval 100ms").stdout(writer).spawn().expect("the command was built");
    let until = Instant::now() + PATIENCE;
    while ioctl_fionread(&reader).expect("a pipe") == 0 {
        assert!(Instant::now() < until, "nothing is printed");
    }
    // The next line does not fit.
    std::thread::sleep(Duration::from_millis(300));
    signal(&child, Signal::TERM);
    assert_eq!(ended(&mut child), Some(128 + 15));
}

fn a_stream_ignores_what_it_was_started_to_ignore(folder: &Folder) {
    let top = folder.bursar("");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" top --json --interval 100ms"]).arg(top.get_program());
    command.envs(top.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = command.stdout(Stdio::piped()).spawn().expect("a shell");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.next().is_some());
    signal(&child, Signal::HUP);
    assert_eq!(lines.by_ref().take(3).filter_map(Result::ok).count(), 3, "it goes on");
    signal(&child, Signal::TERM);
    lines.for_each(drop);
    assert_eq!(ended(&mut child), Some(128 + 15));
}

fn options_that_make_no_sense_are_wrong_usage(folder: &Folder) {
    for words in [
        "top --once --json --count 2",
        "top --count 2",
        "top --json --count 0",
        "top --interval 0",
        "top --interval 2h",
        "top --interval soon",
    ] {
        let output = output(folder, words);
        assert_eq!(output.status.code(), Some(2), "{words}: {}", text(&output.stderr));
    }
}
