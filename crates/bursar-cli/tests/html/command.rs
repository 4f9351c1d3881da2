//! The command, and logs for it.

use serde_json::Value;
use std::process::{Command, Output};

pub(crate) fn bursar(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bursar"))
        .args(arguments)
        .args(["--driver", "sim"])
        .env("CUDA_VISIBLE_DEVICES", "")
        .env("NO_COLOR", "1")
        .output()
        .expect("the command was built")
}

/// Returns the JSON that the command prints.
pub(crate) fn json(arguments: &[&str]) -> Value {
    let output = bursar(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON value and nothing else")
}

/// Formats rows of `(action, block, bytes, stream)` as a log; the number of a block determines its address.
pub(crate) fn log(rows: impl IntoIterator<Item = (bool, u64, u64, u64)>) -> String {
    let rows = rows.into_iter().enumerate().map(|(at, (is_free, block, bytes, stream))| {
        let action = if is_free { "free" } else { "allocate" };
        format!(
            "1,00:00:{:02}.{:06},{action},{:#x},{bytes},{stream}\n",
            at / 1_000_000,
            at % 1_000_000,
            (block + 1) << 20
        )
    });
    format!("Thread,Time,Action,Pointer,Size,Stream\n{}", rows.collect::<String>())
}

/// A log of two streams, with 3,000 bytes live at the peak, which is at operation 1.
pub(crate) fn small() -> String {
    log([
        (false, 0, 1000, 0),
        (false, 1, 2000, 7),
        (true, 0, 1000, 0),
        (false, 0, 500, 0),
        (true, 1, 2000, 7),
        (true, 0, 500, 0),
    ])
}

/// A log of so many operations that allocate and free 4 KiB in turn, with one pair in the middle of 1 GiB.
pub(crate) fn spike(operations: u64) -> String {
    let middle = operations / 4;
    log((0..operations / 2).flat_map(|pair| {
        let bytes = if pair == middle { 1 << 30 } else { 4096 };
        [(false, pair % 64, bytes, 0), (true, pair % 64, bytes, 0)]
    }))
}

/// A log of so many operations whose sizes do not compress.
pub(crate) fn noisy(operations: u64) -> String {
    let bytes = |pair: u64| (pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) + 1;
    log((0..operations / 2).flat_map(|pair| [(false, pair % 64, bytes(pair), 0), (true, pair % 64, bytes(pair), 0)]))
}
