//! The command as its users meet it.

mod common;

use common::Folder;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn bursar(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bursar"))
        .args(arguments)
        .env_remove("BURSAR_DRIVER")
        .env("CUDA_VISIBLE_DEVICES", "")
        .env("NO_COLOR", "1")
        .output()
        .expect("the command was built")
}

fn json(arguments: &[&str]) -> Value {
    let output = bursar(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON value and nothing else")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[test]
fn the_tour_tells_the_whole_story() {
    let output = bursar(&["--driver", "sim"]);
    assert!(output.status.success());
    let story = text(&output.stdout);
    for part in ["Simulated GPU", "0 refused", "over budget: 24 MiB requested, 16 MiB of 64 MiB left", "use after free"]
    {
        assert!(story.contains(part), "{part:?} is missing:\n{story}");
    }
    assert!(!story.contains('\x1b'), "NO_COLOR is respected");
}

#[test]
fn the_tour_as_json_has_the_same_data() {
    let tour = json(&["demo", "--json", "--driver", "sim"]);
    assert_eq!(tour["threads"]["threads"], 4);
    assert_eq!(tour["threads"]["refused"], 0);
    assert_eq!(tour["refusal"]["remaining"], 16 << 20);
    assert_eq!(tour["stream_order"]["outstanding_after_free"], 8 << 20);
    assert_eq!(tour["stream_order"]["outstanding_after_wait"], 0);
    assert_eq!(tour["race"]["hazards"].as_array().map(Vec::len), Some(1));
    assert_eq!(tour["race"]["hazards_when_ordered"], 0);
    assert_eq!(tour["statistics"]["live_bytes"], 0);
}

#[test]
fn devices_are_the_ones_asked_for() {
    let listed = json(&["devices", "--json", "--driver", "sim", "--sim-devices", "3x24GiB@cli"]);
    let devices = listed["devices"].as_array().expect("a list");
    assert_eq!(devices.len(), 3);
    for (ordinal, device) in devices.iter().enumerate() {
        assert_eq!(device["ordinal"], ordinal);
        assert_eq!((&device["total"], &device["free"]), (&Value::from(24u64 << 30), &Value::from(24u64 << 30)));
        assert_eq!((&device["numa_node"], &device["links"]), (&Value::Null, &Value::Array(Vec::new())));
        assert_eq!(device["page_granularity"], 2 << 20);
    }
    let again = json(&["devices", "--json", "--driver", "sim", "--sim-devices", "1x1GiB@cli"]);
    assert_eq!(again["devices"][0]["uuid"], devices[0]["uuid"], "devices of one name are the same everywhere");
}

#[test]
fn people_see_unknown_as_unknown() {
    let output = bursar(&["devices", "--driver", "sim"]);
    assert!(text(&output.stdout).contains("NUMA node unknown"));
}

#[test]
fn wrong_usage_is_told_with_status_2() {
    for (arguments, said) in [
        (vec!["devices", "--driver", "opencl"], "choose auto, cuda or sim"),
        (vec!["devices", "--sim-devices", "lots"], "2x80GiB"),
        (vec!["devices", "--sim-devices", "2x1XB"], "1.5GiB"),
        (vec!["conquer"], "unrecognized subcommand"),
    ] {
        let output = bursar(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(said), "{arguments:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn every_command_has_help_with_an_example() {
    for command in ["", "demo", "devices", "replay", "bench", "bench pairs", "convert"] {
        let arguments: Vec<_> = command.split_whitespace().chain(["--help"]).collect();
        let output = bursar(&arguments);
        assert!(output.status.success());
        assert!(text(&output.stdout).contains("Example"), "{arguments:?}");
    }
    let statuses = "0 done, 1 the answer is no, 2 wrong usage or a bad trace, 3 the machine failed us";
    assert!(text(&bursar(&["--help"]).stdout).contains(statuses));
}

#[test]
fn the_status_tells_a_refusal_from_wrong_usage_and_from_a_machine_that_failed() {
    for (arguments, status, said) in [
        ("bench pairs --driver sim --bytes 200GiB --threads 1 --pairs 10", 1, "out of memory"),
        ("bench pairs --driver sim --bytes 0 --threads 1 --pairs 10", 2, "at least one byte"),
        ("bench pairs --driver sim --threads 0", 2, "--threads"),
        ("bench pairs --driver cuda", 3, "there is no GPU to use"),
    ] {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        let output = bursar(&arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(said), "{arguments:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn pairs_are_timed_for_each_number_of_threads() {
    let arguments = ["bench", "pairs", "--driver", "sim", "--bytes", "4KiB", "--threads", "1,3", "--pairs", "200"];
    let timed = json(&[&arguments[..], &["--stack", "direct", "--json"]].concat());
    assert_eq!((&timed["stack"], &timed["bytes"]), (&Value::from("direct"), &Value::from(4096)));
    let rows = timed["rows"].as_array().expect("a list");
    assert_eq!(rows.iter().map(|row| row["threads"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(3)]);
    for row in rows {
        assert!(row["ns_per_pair"].as_f64() > Some(0.0) && row["pairs_per_second"].as_f64() > Some(0.0), "{row}");
    }
}

const COLUMNS: &str = "Thread,Time,Action,Pointer,Size,Stream\n";
/// Two streams, 3,000 bytes live at the peak.
const SMALL: &str = "\
1,00:00:00.000000,allocate,0x1000,1000,0
1,00:00:00.000001,allocate,0x2000,2000,7
1,00:00:00.000002,free,0x1000,1000,0
1,00:00:00.000003,allocate,0x1000,500,0
1,00:00:00.000004,free,0x2000,2000,7
1,00:00:00.000005,free,0x1000,500,0
";

#[test]
fn a_replay_has_a_row_for_each_trace_and_stack() {
    let folder = Folder::new();
    let small = folder.file("small.csv", format!("{COLUMNS}{SMALL}"));
    let halves = SMALL.replace("1000,0\n", "400,0\n").replace("2000,7\n", "300,7\n");
    let tiny = folder.file("tiny.csv", format!("{COLUMNS}{halves}"));
    let arguments = ["replay", &small, &tiny, "--stack", "async,direct", "--driver", "sim", "--strict", "--json"];
    let replayed = json(&arguments);
    let rows = replayed["traces"].as_array().expect("a list");
    let expected = [(&small, "async", 3000), (&small, "direct", 3000), (&tiny, "async", 800), (&tiny, "direct", 800)];
    assert_eq!(rows.len(), expected.len());
    for (row, (trace, stack, peak)) in rows.iter().zip(expected) {
        assert_eq!((&row["trace"], &row["stack"]), (&Value::from(trace.as_str()), &Value::from(stack)));
        assert_eq!(row["peak_live_bytes"], peak, "{row}");
        assert!(row["peak_reserved_bytes"].as_u64() >= Some(peak), "{row}");
        assert_eq!((&row["ops"], &row["streams"], &row["refused"]), (&6.into(), &2.into(), &0.into()), "{row}");
    }
    let shown = text(&bursar(&["replay", &small, "--driver", "sim"]).stdout);
    assert!(shown.contains("small"), "{shown}");
}

#[test]
fn a_replay_under_a_limit_counts_what_was_refused() {
    let folder = Folder::new();
    let small = folder.file("small.csv", format!("{COLUMNS}{SMALL}"));
    let stacks = ["--stack", "async,pool", "--driver", "sim"];
    let replayed = json(&[&["replay", &small, "--limit", "2KiB", "--json"], &stacks[..]].concat());
    assert_eq!(replayed["limit"], 2048);
    let refused = [0, 1].map(|row| replayed["traces"][row]["refused"].as_u64());
    assert_eq!(refused, [Some(1), Some(3)], "the limit is less than a frame, so a pool has nothing: {replayed}");
}

#[test]
fn a_bad_trace_is_named_with_its_line_and_status_2() {
    let folder = Folder::new();
    let good = folder.file("good.csv", format!("{COLUMNS}{SMALL}"));
    let packed = folder.path("good.csv.gz");
    assert!(bursar(&["convert", &good, &packed]).status.success());
    let whole = std::fs::read(&packed).expect("just written");
    let cases = [
        (folder.path("missing.csv"), "No such file"),
        (folder.file("empty.csv", ""), "the trace is empty"),
        (folder.file("nothing.csv", COLUMNS), "the trace is empty"),
        (folder.file("cut.csv.gz", &whole[..whole.len() - 12]), "the file ends in the middle of its gzip stream"),
        (folder.file("word.csv", format!("{COLUMNS}{SMALL}1,00:00,allocate,0x1,lots,0\n")), "line 8: Size is \"lots\""),
        (folder.file("short.csv", format!("{COLUMNS}1,00:00,free\n")), "line 2: the row has 3 columns"),
        (folder.file("essay.csv", "Once upon a time.\n"), "not a trace"),
    ];
    let out = folder.path("out.csv");
    for (path, said) in &cases {
        for arguments in [vec!["replay", &good, path, "--driver", "sim", "--json"], vec!["convert", path, &out]] {
            let output = bursar(&arguments);
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
            assert!(error.contains(path.as_str()) && error.contains(said), "{arguments:?}: {error}");
            let printed = text(&output.stdout);
            let is_error = printed.starts_with(r#"{"error":{"cause":"#) && printed.lines().count() == 1;
            assert_eq!(
                (printed.is_empty(), is_error),
                (arguments[0] == "convert", arguments[0] == "replay"),
                "{printed}"
            );
        }
    }
}

#[test]
fn a_strict_replay_refuses_what_has_no_other_half() {
    let folder = Folder::new();
    let unknown = folder.file("unknown.csv", format!("{COLUMNS}{SMALL}1,00:00:01.0,free,0x9000,1,0\n"));
    let missing = folder.file("missing.csv", format!("{COLUMNS}1,00:00:01.0,allocate,0x9000,64,0\n{SMALL}"));
    for (path, said, counted) in
        [(&unknown, "line 8: free of 0x9000", "unknown_frees"), (&missing, "line 2: 64 B at 0x9000", "missing_frees")]
    {
        assert_eq!(json(&["replay", path, "--driver", "sim", "--json"])["traces"][0][counted], 1);
        let output = bursar(&["replay", path, "--driver", "sim", "--strict"]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(path.as_str()) && error.contains(said), "{error}");
    }
}

#[test]
fn a_conversion_there_and_back_keeps_every_event() {
    let folder = Folder::new();
    let first = folder.file("first.csv", format!("{COLUMNS}{SMALL}"));
    let mut from = first.clone();
    for name in ["second.jsonl", "third.pickle", "fourth.csv.gz", "last.csv"] {
        let to = folder.path(name);
        let converted = json(&["convert", &from, &to, "--json"]);
        assert_eq!((&converted["events"], &converted["peak_live_bytes"]), (&6.into(), &3000.into()), "{name}");
        from = to;
    }
    let [before, after] = [&first, &from].map(|path| bursar::trace::read(path).expect("a trace"));
    assert_eq!((before.events, before.streams, before.blocks), (after.events, after.streams, after.blocks));
    let output = bursar(&["convert", &first, &folder.path("what.txt")]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bursar"))
        .args(["devices", "--driver", "sim", "--sim-devices", "64x1GiB"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command was built");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Returns the exit status of `bursar` with these words, run by a shell with these redirections and with ledgers in `folder`.
fn status_with(folder: &Path, files: &str, words: &str) -> Option<i32> {
    status_within(folder, "", files, words)
}

/// Returns the exit status of `bursar` with these words, run by a shell that first does `first`.
fn status_within(folder: &Path, first: &str, files: &str, words: &str) -> Option<i32> {
    let script = format!("{first} exec {} {words} {files}", env!("CARGO_BIN_EXE_bursar"));
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("BURSAR_LEDGER_DIR", folder).env("BURSAR_DRIVER", "sim");
    command.env("CUDA_VISIBLE_DEVICES", "").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().expect("a shell").code()
}

#[test]
fn an_error_that_cannot_be_written_leaves_the_status_as_it_is() {
    let commands = [
        "demo",
        "devices",
        "devices --json",
        "devices --sim-devices lots",
        "fit --per-worker 6GiB --want 8",
        "fit --pool ram --fixed 60GiB --available 64GiB --per-worker 4GiB",
        "fit --pool vram --per-worker 100GiB",
        "bench pairs --pairs 10 --threads 1 --bytes 1KiB",
        "ledger show",
        "ledger limit 7 1GiB",
        "ledger clear",
        "replay no-such-file",
        "convert no-such-file out.csv",
        "completions bash",
        "man",
        "man no-such-command",
        "no-such-command",
        "help",
        "--version",
    ];
    let folder = std::env::temp_dir().join(format!("bursar-cli-files-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let status_with = |files, words| status_with(&folder, files, words);
    for words in commands {
        let status = status_with("", words);
        assert!(matches!(status, Some(0..=3)), "{words}: {status:?}");
        for files in ["2>/dev/full", "2>&-", "2>&- <&-"] {
            assert_eq!(status_with(files, words), status, "{words} {files}");
        }
        // Standard output that cannot be written is an error; a command that prints nothing there is not affected.
        let unwritten = [if status == Some(0) { Some(3) } else { status }, Some(3)];
        for files in [">/dev/full", ">/dev/full 2>/dev/full"] {
            let status = status_with(files, words);
            assert!(unwritten.contains(&status), "{words} {files}: {status:?}");
        }
        // A file at its size limit cannot be written.
        let small = status_within(&folder, "ulimit -f 0;", &format!("2>{}", folder.join("errors").display()), words);
        assert_eq!(small, status, "{words}");
        // A reader that closes the pipe early is no error.
        assert_eq!(status_with("| true", words), Some(0), "{words}");
    }
    std::fs::remove_dir_all(&folder).expect("a folder");
}

/// A page or snapshot that would replace a trace, or the other, is refused before anything is written.
#[test]
fn what_is_written_replaces_no_trace() {
    let folder = Folder::new();
    let log = "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x1000,512,0\n";
    let trace = folder.file("run.csv", log);
    let elsewhere = folder.path("./run.csv");
    let page = folder.path("page.html");
    for arguments in [
        vec!["--html", &trace],
        vec!["--html", &elsewhere],
        vec!["--snapshot", &trace],
        vec!["--html", &page, "--snapshot", &page],
    ] {
        let output = bursar(&[&["replay", &trace, "--driver", "sim"], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains("the same file"), "{}", text(&output.stderr));
        assert_eq!(std::fs::read_to_string(&trace).expect("it is there"), log, "{arguments:?}");
    }
    assert!(bursar(&["replay", &trace, "--driver", "sim", "--html", &page]).status.success());
    let output = bursar(&["replay", &trace, "--driver", "sim", "--limit", "0.0001KiB"]);
    assert!(text(&output.stderr).contains("less than a byte"), "{}", text(&output.stderr));
}
