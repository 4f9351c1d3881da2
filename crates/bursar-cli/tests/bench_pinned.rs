//! `bursar bench pinned`, as a user sees it, on simulated devices.

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

#[test]
fn n4_every_method_is_timed_copied_and_placed_in_one_run() {
    let output = bursar("bench pinned --driver sim --bytes 3MiB --copies 1 --pairs 1000 --json");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
    assert_eq!((&found["bytes"], &found["numa_node"]), (&Value::from(3 << 20), &Value::Null), "nobody reports a node");
    let rows = found["rows"].as_array().expect("rows");
    let methods: Vec<_> = rows.iter().filter_map(|row| row["method"].as_str()).collect();
    assert_eq!(methods, ["driver", "pageable", "bursar"]);
    for row in rows {
        for figure in ["seconds", "bytes_per_second", "h2d_bytes_per_second", "d2h_bytes_per_second"] {
            assert!(row[figure].as_f64() > Some(0.0), "{figure}: {row}");
        }
        // If the kernel may not be asked, the field is null, and never a guess.
        let (asked, there) = (row["pages_asked"].as_u64(), row["pages_on_node"].as_u64());
        assert!(asked.is_some() == there.is_some() && there <= asked, "{row}");
        let made = row["seconds"].as_f64().zip(row["bytes_per_second"].as_f64());
        let bytes = made.map(|(seconds, rate)| (seconds * rate).round());
        assert_eq!(bytes, Some(f64::from(3 << 20)), "{row}");
    }
    assert!(found["pool"]["ns_per_pair"].as_f64() > Some(0.0));
    assert!(text(&output.stderr).is_empty(), "no bar where nobody looks");
}

#[test]
fn people_are_shown_the_same() {
    let output = bursar("bench pinned --driver sim --bytes 1MiB --copies 1 --pairs 100");
    let shown = text(&output.stdout);
    for word in ["1 MiB near node unknown", "driver", "pageable", "bursar", "h2d", "d2h", "a hit of the pool"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(text(&bursar("bench pinned --help").stdout).contains("Example"));
}

#[test]
fn n3_the_status_tells_wrong_usage_from_a_refusal() {
    for (bytes, status, said) in [("0", 2, "zero bytes"), ("2PiB", 1, "has no room"), ("many", 2, "--bytes")] {
        let output = bursar(&format!("bench pinned --driver sim --bytes {bytes} --json"));
        assert_eq!(output.status.code(), Some(status), "{bytes}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(said), "{bytes}: {}", text(&output.stderr));
        let printed = text(&output.stdout);
        assert_eq!(printed.contains("cause"), bytes != "many", "{printed}");
    }
}
