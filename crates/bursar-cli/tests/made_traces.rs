//! Traces that `bursar replay` and `bursar convert` make or vary, as a user sees them.

mod common;

use common::Folder;
use serde_json::Value;
use std::process::{Command, Output};

fn bursar(arguments: &str) -> Output {
    let words = arguments.split_whitespace();
    let program = env!("CARGO_BIN_EXE_bursar");
    Command::new(program).args(words).env("BURSAR_DRIVER", "sim").output().expect("the command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(arguments: &str) -> Value {
    let output = bursar(&format!("{arguments} --json"));
    assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

/// A made trace is the same whether it is replayed at once, or written in any format and read again.
#[test]
fn a_made_trace_costs_the_same_from_a_file() {
    let folder = Folder::new();
    for family in ["server,rounds=10", "pipeline,seed=2,rounds=50", "training,rounds=3", "mix,rounds=500,streams=7"] {
        let made = json(&format!("replay --generate {family} --deal 3:foreign --jitter 20% --seed 9"));
        assert_eq!((&made["deal"], &made["jitter"], &made["seed"]), (&"3:foreign".into(), &0.2.into(), &9.into()));
        for name in ["made.csv", "made.jsonl.gz", "made.bin", "made.bin.gz"] {
            let path = folder.path(name);
            let written = json(&format!("convert --generate {family} --deal 3:foreign --jitter 20% --seed 9 {path}"));
            assert_eq!(written["missing_frees"], 0);
            let read = json(&format!("replay {path}"));
            assert_eq!((&read["deal"], &read["jitter"], &read["seed"]), (&Value::Null, &Value::Null, &Value::Null));
            for field in ["ops", "streams", "peak_live_bytes", "peak_reserved_bytes", "driver_calls", "refused"] {
                assert_eq!(read["traces"][0][field], made["traces"][0][field], "{family}, {name}: {field}");
            }
        }
    }
}

#[test]
fn a_file_is_varied_and_converted_on_the_way() {
    let folder = Folder::new();
    let log = "Thread,Time,Action,Pointer,Size,Stream\n\
               1,0,allocate,0x1000,512,0\n1,0,allocate,0x2000,512,0\n1,0,free,0x1000,512,0\n1,0,free,0x2000,512,0\n";
    let (from, to) = (folder.file("run.csv", log), folder.path("run.bin"));
    assert!(bursar(&format!("convert {from} {to} --deal 2:foreign")).status.success());
    let records = std::fs::read(&to).expect("it was written");
    let words: Vec<u32> =
        records.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect();
    let free = 1 << 31;
    assert_eq!(words, [0, 0, 512, 0, 1, 1, 512, 0, free | 1, 0, 512, 0, free, 1, 512, 0]);
    let shown = text(&bursar(&format!("replay {from} --deal 2 --jitter 5%")).stdout);
    assert!(shown.contains("dealt over 2 streams") && shown.contains("within 5%"), "{shown}");
}

#[test]
fn wrong_usage_is_said_with_what_is_right() {
    for (arguments, said) in [
        ("replay", "<TRACE>"),
        ("replay --generate waiter", "server, pipeline, training or mix"),
        ("replay --generate mix,speed=3", "seed=N, streams=N or rounds=N"),
        ("replay --generate mix --deal 0", "streams from 1 to 256"),
        ("replay --generate mix --deal 4:own", "4 or 4:foreign"),
        ("replay --generate mix --jitter 101%", "0% to 100%"),
        ("replay --generate mix --seed 3", "--jitter"),
        ("convert --generate mix in.csv out.csv", "give OUT alone"),
        ("convert in.csv", "give both"),
        ("convert --generate mix out.txt", "use .csv, .jsonl, .bin or .pickle"),
    ] {
        let output = bursar(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {stderr}");
        assert!(stderr.contains(said), "{arguments}: {stderr}");
    }
}
