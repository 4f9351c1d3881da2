//! Checks that a long trace needs memory for one window and for live blocks, and not for its length. This file has one test,
//! because the memory of the whole process is measured.
#![cfg(target_os = "linux")]

use bursar_core::{Build, CountingDriver, DeviceContext, DeviceId, Stack, leaf};
use bursar_sim::Sim;
use bursar_trace::{Replay, TraceFile};
use std::fmt::Write as _;
use std::path::Path;

const OPERATIONS: u64 = 400_000;
const LIVE: u64 = 1000;

/// Writes a log of alternating allocations and frees, of blocks that live for a thousand allocations, without building it in
/// memory.
fn make(path: &Path) {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).expect("a file"));
    let mut line = "Thread,Time,Action,Pointer,Size,Stream\n".to_owned();
    for n in 0..OPERATIONS / 2 + LIVE {
        if n < OPERATIONS / 2 {
            writeln!(line, "1,0,allocate,{:#x},{},0", 0x1000 * (n + 1), 1 + n % 5000).expect("a string");
        }
        if n >= LIVE {
            writeln!(line, "1,0,free,{:#x},0,0", 0x1000 * (n - LIVE + 1)).expect("a string");
        }
        std::io::Write::write_all(&mut file, line.as_bytes()).expect("a file");
        line.clear();
    }
}

/// Returns the peak memory of this process, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux says");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says");
    line.trim().split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

/// Opens and replays the trace, and returns by how much that raised the peak memory of this process.
fn raised_kib(path: &Path, window: usize) -> u64 {
    let before = peak_kib();
    let file = TraceFile::open_in_windows(path, window).expect("a trace");
    let driver = CountingDriver::new(Sim::immediate());
    let context = DeviceContext::open(driver.clone(), DeviceId(0)).expect("a device");
    let memory = Stack::new().over(leaf::Async).build(&context).expect("a stack");
    let cost = Replay::of(&file, &context).expect("streams").run(&memory, &driver).expect("a replay");
    assert_eq!((cost.operations, cost.peak_live), (OPERATIONS, file.summary().peak_live));
    peak_kib() - before
}

#[test]
fn memory_is_bounded_by_the_window_and_not_by_the_trace() {
    let path = std::env::temp_dir().join(format!("bursar-bounded-{}.csv", std::process::id()));
    make(&path);
    let in_windows = raised_kib(&path, 5000);
    let whole = raised_kib(&path, usize::MAX);
    std::fs::remove_file(&path).expect("it is there");
    // The events of the whole trace alone are 9.6 MB; reading has a buffer of 1 MiB.
    assert!(in_windows < 6 << 10, "{in_windows} KiB in windows");
    assert!(whole > 2 * in_windows, "{whole} KiB whole, {in_windows} KiB in windows");
}
