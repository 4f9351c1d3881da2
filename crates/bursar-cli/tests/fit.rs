//! `bursar fit` as its users meet it.

mod common;

use common::Folder;
use serde_json::Value;
use std::process::{Command, Output};

impl Folder {
    /// Runs `bursar` with words that contain no blanks.
    fn bursar(&self, arguments: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_bursar"))
            .args(arguments.split_whitespace())
            .env_remove("BURSAR_DRIVER")
            .env("BURSAR_LEDGER_DIR", self.ledgers())
            .env("CUDA_VISIBLE_DEVICES", "")
            .env("NO_COLOR", "1")
            .output()
            .expect("the command was built")
    }

    /// Returns the JSON of the command, its exit status and its standard error.
    fn json(&self, arguments: &str) -> (Value, Option<i32>, String) {
        let output = self.bursar(&format!("{arguments} --json"));
        let stderr = text(&output.stderr);
        let value = serde_json::from_slice(&output.stdout);
        (value.unwrap_or_else(|error| panic!("{arguments}: {error}: {stderr}")), output.status.code(), stderr)
    }

    /// Returns the number of ledgers.
    fn ledger_count(&self) -> usize {
        std::fs::read_dir(self.ledgers()).expect("it was made").count()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const GIB: u64 = 1 << 30;

#[test]
fn f1_eight_of_sixteen_fit_and_four_of_four() {
    let folder = Folder::with_ledgers();
    let ram = "fit --pool ram --available 64GiB --fixed 10GiB --per-worker 4GiB";
    let (fit, status, _) = folder.json(&format!("{ram} --want 16"));
    assert_eq!((fit["workers"].as_u64(), &fit["reduced"], &fit["overflow"]), (Some(8), &true.into(), &false.into()));
    assert_eq!((fit["budget"].as_u64(), status), (Some(64 * GIB * 7 / 10), Some(0)));
    assert_eq!((fit["available"].as_u64(), &fit["pool"]), (Some(64 * GIB), &"ram".into()));
    assert_eq!(fit["devices"].as_array().map(Vec::len), Some(0));
    let (fit, status, _) = folder.json(&format!("{ram} --want 4"));
    assert_eq!((fit["workers"].as_u64(), &fit["reduced"], status), (Some(4), &false.into(), Some(0)));
    assert_eq!((&fit["one_more"], folder.ledger_count()), (&Value::Null, 0));
}

#[test]
fn f2_ram_that_overflows_is_a_warning_and_vram_an_answer_of_no() {
    let folder = Folder::with_ledgers();
    let stage = "--available 64GiB --fixed 60GiB --per-worker 4GiB --want 16";
    let (ram, status, stderr) = folder.json(&format!("fit --pool ram {stage}"));
    assert_eq!((ram["workers"].as_u64(), &ram["overflow"], status), (Some(1), &true.into(), Some(0)));
    assert!(stderr.contains("warning") && stderr.contains("the shared data will swap"), "{stderr}");
    assert_eq!(ram["overflowed"], "shared");
    let (vram, status, stderr) = folder.json(&format!("fit --pool vram {stage}"));
    assert_eq!((vram["workers"].as_u64(), &vram["overflow"], status), (Some(1), &true.into(), Some(1)));
    assert!(stderr.contains("VRAM does not swap"), "{stderr}");
    let (_, status, stderr) = folder.json(&format!("fit --pool vram --allow-overflow {stage}"));
    assert!(status == Some(0) && stderr.contains("VRAM does not swap"), "{stderr}");
    let (worker, status, _) = folder.json("fit --pool vram --available 10GiB --per-worker 8GiB");
    assert_eq!((&worker["overflowed"], status), (&"worker".into(), Some(1)));
}

#[test]
fn f2_people_see_the_arithmetic_and_what_would_make_one_more_fit() {
    let folder = Folder::with_ledgers();
    let shown =
        text(&folder.bursar("fit --pool ram --available 64GiB --fixed 10GiB --per-worker 4GiB --want 16").stdout);
    for part in [
        "64 GiB × 0.7",
        "(44.80 GiB − 10 GiB) ÷ 4 GiB = 8.70",
        "8   of 16 wanted",
        "8 of 16 workers fit into RAM.",
        "One more worker would fit with 1.72 GiB more available, if a worker needed at most 3.86 GiB",
    ] {
        assert!(shown.contains(part), "{part:?} is missing:\n{shown}");
    }
    assert!(!shown.contains('\x1b'), "NO_COLOR is respected");
    let shown = text(&folder.bursar("fit --driver sim --per-worker 20GiB --want 5").stdout);
    assert!(shown.contains("gpu1") && shown.contains("4 of 5 workers fit: 2 on gpu0 and 2 on gpu1."), "{shown}");
}

#[test]
fn f3_this_machine_is_asked_where_nobody_says_what_is_available() {
    let folder = Folder::with_ledgers();
    let (fit, status, _) = folder.json("fit --pool ram --per-worker 1 --want 1");
    assert_eq!((fit["workers"].as_u64(), status), (Some(1), Some(0)));
    assert!(fit["available"].as_u64() > Some(0) && fit["bound_by"].is_string(), "{fit}");
    let output = folder.bursar("fit --pool disk");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("the pools are ram, vram"), "{}", text(&output.stderr));
}

#[test]
fn f4_vram_is_what_the_devices_have_and_no_device_is_an_error_that_helps() {
    let folder = Folder::with_ledgers();
    let (fit, status, _) =
        folder.json("fit --driver sim --sim-devices 3x10GiB --per-worker 2GiB --want 7 --headroom 1");
    let workers: Vec<_> = (0..3).map(|device| fit["devices"][device]["workers"].as_u64()).collect();
    assert_eq!((workers, status), (vec![Some(3), Some(2), Some(2)], Some(0)));
    assert_eq!((fit["available"].as_u64(), fit["budget"].as_u64()), (Some(30 * GIB), Some(30 * GIB)));
    assert_eq!(fit["devices"][1]["device"], 1);
    let roomy = "fit --sim-devices 2x10GiB --per-worker 1GiB --want 2 --headroom 0.9";
    assert_eq!(folder.json(roomy).0["devices"][1]["room"], 9, "as the table says: budget ÷ per worker");
    let shown = text(&folder.bursar(roomy).stdout);
    assert!(shown.contains("has room for 9"), "{shown}");
    let (one, ..) =
        folder.json("fit --driver sim --sim-devices 3x10GiB --per-worker 2GiB --want 9 --headroom 1 --devices 2,gpu0");
    assert_eq!(one["devices"].as_array().map(Vec::len), Some(2));
    let output = folder.bursar("fit --driver sim --sim-devices 3x10GiB --devices 0,7");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let said = text(&output.stderr);
    assert!(said.contains("\"7\"") && said.contains("gpu0, gpu1, gpu2"), "{said}");
    for twice in ["0,0", "0,gpu0", "1,2,1"] {
        let output = folder.bursar(&format!("fit --sim-devices 3x10GiB --devices {twice}"));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("names a device twice"), "{}", text(&output.stderr));
    }
    let output = folder.bursar("fit --driver cuda --per-worker 1GiB");
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
}

#[test]
fn f5_asking_sets_nothing_aside_and_makes_no_ledger() {
    let folder = Folder::with_ledgers();
    for _ in 0..2 {
        let arguments = "fit --driver sim --sim-devices 2x80GiB@asking --per-worker 50GiB --want 2 --headroom 1";
        let (fit, ..) = folder.json(arguments);
        assert_eq!(fit["workers"], 2, "{fit}");
    }
    let names = std::fs::read_dir(folder.ledgers()).expect("it was made");
    let names: Vec<_> = names.map(|entry| entry.expect("a name").file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().ends_with(".ledger")), "{names:?}");
}

#[test]
fn f2_a_limit_that_leaves_little_is_named() {
    let folder = Folder::with_ledgers();
    let fit = "fit --sim-devices 1x80GiB@limited --per-worker 20GiB --want 2";
    assert!(!folder.json(fit).0["explanation"].to_string().contains("limit"), "there is none");
    for (size, status) in [("30GiB", 0), ("0", 1)] {
        assert!(folder.bursar(&format!("ledger limit 0 {size} --sim-devices 1x80GiB@limited")).status.success());
        let (limited, ended, stderr) = folder.json(fit);
        let explained = limited["explanation"].as_str().expect("a text");
        let named = if size == "0" { "the limit of its ledger, 0 B" } else { "the limit of its ledger, 30 GiB" };
        assert!(ended == Some(status) && explained.contains(named), "{explained}");
        assert_eq!(stderr.contains(named), status == 1, "{stderr}");
    }
}

#[test]
fn f6_files_are_added_up_and_times_their_factor() {
    let folder = Folder::with_ledgers();
    let weights = folder.file("weights", [0; 1000]);
    let (fit, status, _) =
        folder.json(&format!("fit --available 1MiB --fixed @{weights}*1.5 --fixed 500 --per-worker @{weights}"));
    assert_eq!((fit["fixed"].as_u64(), fit["per_worker"].as_u64(), status), (Some(2000), Some(1000), Some(0)));
    let output = folder.bursar("fit --available 1MiB --fixed @no/such/file*2");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("there is no file"), "{}", text(&output.stderr));
}

/// A size that comes to zero is either meant or an error, and never the same as an option that was not given.
#[test]
fn f6_nothing_is_not_the_same_as_not_said() {
    let folder = Folder::with_ledgers();
    let (weights, empty) = (folder.file("weights", [0; 1000]), folder.file("empty", []));
    for (arguments, said) in [
        (format!("--per-worker @{empty}"), "is empty"),
        (format!("--fixed @{empty}"), "is empty"),
        (format!("--fixed @{empty}*1.2"), "is empty"),
        ("--per-worker 1.5".to_owned(), "a fraction of a byte"),
        ("--fixed 0.5".to_owned(), "a fraction of a byte"),
        ("--fixed 0.0001KiB".to_owned(), "less than a byte"),
        (format!("--fixed @{weights}*abc"), "the factor \"abc\" is no number"),
        (format!("--per-worker @{weights}*-1"), "the factor \"-1\" is no number"),
        (format!("--per-worker @{weights}*1.0000000001"), "more than 9 digits"),
        ("--want 0".to_owned(), "0 is not in 1.."),
        ("--devices 7 --per-worker 1".to_owned(), "--devices: none is asked"),
    ] {
        let output = folder.bursar(&format!("fit --available 1MiB {arguments}"));
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains(said), "{arguments}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
    let output = folder.bursar("fit --available 0.5 --per-worker 1");
    assert!(text(&output.stderr).contains("a fraction of a byte"), "{}", text(&output.stderr));
    for (arguments, shown) in [("--per-worker 0", "nothing, so as many"), ("", "not said, so as many")] {
        let output = folder.bursar(&format!("fit --pool ram --available 1MiB --want 7 {arguments}"));
        assert!(text(&output.stdout).contains(shown), "{arguments}: {}", text(&output.stdout));
    }
}

/// A recording in which nothing was ever live says nothing about what a worker needs.
#[test]
fn f6_a_recording_without_memory_is_refused() {
    let folder = Folder::with_ledgers();
    let head = "Thread,Time,Action,Pointer,Size,Stream\n";
    for rows in ["1,0,allocate failure,0x0,512,0\n", "1,0,free,0x1000,512,0\n"] {
        let log = folder.file("idle.csv", format!("{head}{rows}"));
        let output = folder.bursar(&format!("fit --available 1GiB --from-trace {log} --want 8"));
        assert_eq!(output.status.code(), Some(2), "{rows}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains("allocates nothing"), "{}", text(&output.stderr));
    }
    let row = |n: u32| format!("1,0,allocate,{n:#x},{},0\n", 1u64 << 44);
    let log = folder.file("vast.csv", format!("{head}{}", (1..9).map(row).collect::<String>()));
    let output = folder.bursar(&format!("fit --available 1GiB --from-trace {log}"));
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("more than a device can have"), "{}", text(&output.stderr));
}

#[test]
fn a_recorded_log_says_what_a_worker_needs() {
    let folder = Folder::with_ledgers();
    let log = "Thread,Time,Action,Pointer,Size,Stream\n\
               1,00:00:00.000000,allocate,0x1000,3145728,0\n\
               1,00:00:00.000001,allocate,0x2000,2097152,0\n\
               1,00:00:00.000002,free,0x1000,3145728,0\n\
               1,00:00:00.000003,free,0x2000,2097152,0\n";
    let log = folder.file("run.csv", log);
    let (fit, status, stderr) = folder.json(&format!("fit --available 1GiB --from-trace {log} --want 1000"));
    assert_eq!((fit["from_trace"]["peak_live"].as_u64(), status), (Some(5 << 20), Some(0)), "{stderr}");
    let pool = fit["from_trace"]["peak_pool"].as_u64().expect("a size");
    assert!((5 << 20..8 << 20).contains(&pool), "{fit}");
    assert_eq!((fit["per_worker"].as_u64(), fit["workers"].as_u64()), (Some(pool), Some(GIB * 7 / 10 / pool)));
    let output = folder.bursar(&format!("fit --available 1GiB --from-trace {log} --per-worker 1GiB"));
    assert_eq!(output.status.code(), Some(2), "measured or given, not both");
    let output = folder.bursar("fit --available 1GiB --from-trace no/such/log.csv");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn f1_nonsense_is_refused_with_status_2() {
    let folder = Folder::with_ledgers();
    for (arguments, said) in [
        ("--headroom 0", "above 0 and at most 1"),
        ("--headroom 1.5", "above 0 and at most 1"),
        ("--headroom some", "above 0 and at most 1"),
        ("--per-worker lots", "1.5GiB"),
        ("--want many", "invalid digit"),
        ("--want -1", "unexpected argument"),
    ] {
        let output = folder.bursar(&format!("fit --available 1GiB {arguments}"));
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(text(&output.stderr).contains(said), "{arguments}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}
