//! `bursar bench streams` and `bursar bench fragmentation`, as a user sees them, on simulated devices.

use serde_json::Value;
use std::process::{Command, Output};

fn bursar(arguments: &str) -> Output {
    let words = arguments.split_whitespace();
    let program = env!("CARGO_BIN_EXE_bursar");
    Command::new(program).args(words).env_remove("BURSAR_DRIVER").output().expect("the command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(arguments: &str) -> Value {
    let output = bursar(&format!("{arguments} --driver sim --json"));
    assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

fn rows(found: &Value) -> &[Value] {
    found["rows"].as_array().expect("rows")
}

const SMALL_STREAMS: &str = "bench streams --bytes 1MiB --copies 3 --allocations 300 --patience 600";

#[test]
fn copies_are_checked_and_not_timed_where_devices_are_simulated() {
    let found = json(&format!("{SMALL_STREAMS} --rounds 4 --stack pool-per-stream,async"));
    assert_eq!((&found["simulated"], &found["rounds"]), (&Value::from(true), &Value::from(1)));
    let stacks: Vec<_> = rows(&found).iter().filter_map(|row| row["stack"].as_str()).collect();
    assert_eq!(stacks, ["pool-per-stream", "async"]);
    for row in rows(&found) {
        assert_eq!(row["intact"], true, "{row}");
        assert!(row["bytes_per_second"].is_null() && row["best_bytes_per_second"].is_null(), "{row}");
    }
    let shown = text(&bursar(&format!("{SMALL_STREAMS} --driver sim --stack async")).stdout);
    assert!(shown.contains("not timed") && shown.contains("simulated"), "{shown}");
}

/// The patience is longer than a test takes, so a stream that waits for the held one would not be missed.
#[test]
fn a_held_stream_holds_up_no_other() {
    for row in rows(&json(&format!("{SMALL_STREAMS} --stack pool,pool-per-stream,async"))) {
        assert_eq!(row["ran_beside_held"], true, "{row}");
        assert!(row["beside_held_ms"].as_f64() > Some(0.0), "{row}");
    }
}

/// Such a pool has the other stream wait for the held one's memory, so it is the patience that ends it.
#[test]
fn a_stream_that_waits_for_a_held_one_is_told_of_and_let_go() {
    let found = json("bench streams --bytes 1MiB --copies 1 --allocations 300 --patience 1 --stack waiting-pool");
    let row = &rows(&found)[0];
    assert_eq!((&row["stack"], &row["ran_beside_held"]), (&"waiting-pool".into(), &Value::from(false)));
}

#[test]
fn what_leaves_no_room_is_said_before_anything_is_done() {
    for (arguments, status, said) in [
        ("bench streams --limit 256MiB", 2, "leaves no room"),
        ("bench streams --bytes 0", 2, "at least a byte"),
        ("bench streams --limit 2TiB", 1, "--limit asks for 2 TiB"),
        ("bench streams --stack direct", 2, "invalid value"),
        ("bench fragmentation --fill 2TiB", 1, "--fill asks for 2 TiB, and gpu0 has"),
        ("bench fragmentation --fill 1MiB", 2, "less than the largest block"),
        ("bench fragmentation --sizes 2MiB..1MiB", 2, "smaller size first"),
        ("bench fragmentation --sizes 0..1MiB", 2, "zero bytes"),
    ] {
        let output = bursar(&format!("{arguments} --driver sim"));
        assert_eq!(output.status.code(), Some(status), "{arguments}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(said), "{arguments}: {}", text(&output.stderr));
    }
}

/// Returns a row without what the clock says.
fn untimed(row: &Value) -> Value {
    let mut row = row.clone();
    row.as_object_mut().expect("an object").remove("fill_seconds").expect("it was timed");
    row
}

#[test]
fn a_seed_decides_what_is_filled_and_freed() {
    let run = |seed| {
        let found = json(&format!("bench fragmentation --fill 256MiB --seed {seed} --rounds 2 --stack direct,pool"));
        rows(&found).iter().map(untimed).collect::<Vec<_>>()
    };
    let (first, again, other) = (run(3), run(3), run(4));
    let seeds: Vec<_> = first.iter().filter_map(|row| row["seed"].as_u64()).collect();
    assert_eq!(seeds, [3, 3, 4, 4]);
    // A pool's addresses decide what is left in one piece; what is filled and freed does not depend on them.
    for field in ["blocks", "filled_bytes", "freed_bytes", "largest_bytes"] {
        let of = |rows: &[Value]| rows.iter().map(|row| row[field].clone()).collect::<Vec<_>>();
        assert_eq!(of(&first), of(&again), "{field}");
    }
    assert_eq!(first[2]["freed_bytes"], other[0]["freed_bytes"], "the second round has the next seed");
    assert_ne!(first[0]["freed_bytes"], other[0]["freed_bytes"]);
}

#[test]
fn the_parts_are_those_of_what_was_freed_and_of_what_is_left() {
    for distribution in ["log", "uniform", "square"] {
        let found = json(&format!(
            "bench fragmentation --fill 1GiB,2GiB --stack direct,async,pool --distribution {distribution}"
        ));
        assert_eq!(rows(&found).len(), 6);
        for row in rows(&found) {
            let bytes = |name: &str| row[name].as_f64().expect("a number");
            let (limit, filled, freed) = (bytes("limit"), bytes("filled_bytes"), bytes("freed_bytes"));
            let (largest, rest) = (bytes("largest_bytes"), limit - filled + freed);
            assert!(filled <= limit && filled > 0.9 * limit && largest <= rest, "{row}");
            let close = |name: &str, expected: f64| (bytes(name) - expected).abs() < 1e-9;
            assert!(close("largest_of_freed", largest / freed) && close("largest_of_rest", largest / rest), "{row}");
            assert!(close("whole_pages_of_rest", bytes("whole_pages_bytes") / rest), "{row}");
            // A simulated device has no fragmentation of its own, so what is charged decides: to 2 MiB, and what is rounded.
            if row["stack"] != "pool" {
                assert!(rest - largest < f64::from(4 << 20), "{row}");
            }
        }
    }
}
