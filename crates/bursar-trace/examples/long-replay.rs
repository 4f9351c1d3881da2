//! Measures the replay of a long trace: makes one of ten million operations, or of OPERATIONS, with a thousand blocks live at
//! a time, opens it, replays it on a simulated device, and prints how fast it was read and how much memory that took.
//! `cargo run --release -p bursar-trace --example long-replay [OPERATIONS [THREADS]]`.

use bursar_core::{Build, CountingDriver, DeviceContext, DeviceId, Stack, leaf};
use bursar_sim::Sim;
use bursar_trace::Replay;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

/// The number of blocks that are live at a time.
const LIVE: usize = 1000;

/// Writes a log in which each free is of a random live block, by a random thread.
fn make(path: &Path, operations: u64, threads: u64) -> std::io::Result<()> {
    let mut log = BufWriter::new(File::create(path)?);
    writeln!(log, "Thread,Time,Action,Pointer,Size,Stream")?;
    let mut live: Vec<(u64, u64)> = Vec::new();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for line in 0..operations {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = state >> 33;
        let (thread, stream) = (140_000 + random % threads, random % 4);
        let (action, (pointer, bytes)) = if live.len() < LIVE {
            live.push((0x7f00_0000_0000 + line * 512, 1 + random % (8 << 20)));
            ("allocate", live[live.len() - 1])
        } else {
            ("free", live.swap_remove(random as usize % LIVE))
        };
        let (seconds, micros) = (line / 100_000 % 60, line * 10 % 1_000_000);
        writeln!(log, "{thread},12:00:{seconds:02}.{micros:06},{action},{pointer:#x},{bytes},{stream}")?;
    }
    log.flush()
}

/// Returns the peak memory of this process in MiB, on Linux.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
}

#[allow(clippy::print_stdout)]
fn measure(path: &Path) -> Result<(), Box<dyn Error>> {
    let megabytes = std::fs::metadata(path)?.len() as f64 / 1e6;
    let start = Instant::now();
    let file = bursar_trace::open(path)?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "opened: {megabytes:.0} MB in {seconds:.2} s, {:.0} MB/s; peak {:.0} MiB",
        megabytes / seconds,
        peak_mib()
    );

    let driver = CountingDriver::new(Sim::immediate());
    let context = DeviceContext::open(driver.clone(), DeviceId(0))?;
    let memory = Stack::new().over(leaf::Async).build(&context)?;
    let start = Instant::now();
    let cost = Replay::of(&file, &context)?.run(&memory, &driver)?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "replayed: {} operations three times in {seconds:.2} s, reading included; {:.0} ns an operation by the replay's own \
         clock; {} live at the peak; peak {:.0} MiB",
        cost.operations,
        cost.ns_per_op,
        cost.peak_live,
        peak_mib(),
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let numbers = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<Vec<u64>, _>>()?;
    let (operations, threads) = (numbers.first().copied().unwrap_or(10_000_000), numbers.get(1).copied().unwrap_or(1));
    let path = std::env::temp_dir().join(format!("bursar-long-replay-{}.csv", std::process::id()));
    let measured = make(&path, operations, threads.max(1)).map_err(Box::from).and_then(|()| measure(&path));
    std::fs::remove_file(&path)?;
    measured
}
