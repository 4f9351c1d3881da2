//! Measures how fast traces are read: makes one of ten million events, or of EVENTS, and times reading it in each format. The
//! snapshot has a million events at most, since real ones are not longer.
//! `cargo run --release -p bursar-trace --example parse-speed [EVENTS]`.

use bursar_trace::{EventOrigin, FilePosition, Format, Trace, TraceBuilder};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

/// Makes a trace of blocks of many sizes on four streams, a thousand of them live at a time, freed in no particular order.
fn made_up(events: u64) -> Result<Trace, Box<dyn Error>> {
    let mut builder = TraceBuilder::new("made up", Format::Csv);
    let mut live: Vec<(u64, u64)> = Vec::new();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for line in 0..events {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = state >> 33;
        let origin =
            EventOrigin { position: FilePosition(line), thread: 139_000 + random % 4, stream: random % 4, device: 0 };
        if live.len() < 1000 || (live.len() < 2000 && random.is_multiple_of(2)) {
            let (pointer, bytes) = (0x7f00_0000_0000 + line * 512, 1 + random % (64 << 20));
            builder.allocate(origin, pointer, bytes, bursar_core::AllocTag::UNTAGGED)?;
            live.push((pointer, bytes));
        } else {
            let (pointer, bytes) = live.swap_remove(random as usize % live.len());
            builder.free(origin, pointer, bytes)?;
        }
    }
    Ok(builder.finish())
}

/// Returns the CPU time of this thread, which does not depend on how busy the machine is, on Linux.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e9
}

#[allow(clippy::print_stdout)]
fn time(path: &Path, expected: &Trace) -> Result<(), Box<dyn Error>> {
    let megabytes = std::fs::metadata(path)?.len() as f64 / 1e6;
    for _ in 0..2 {
        let (started, started_cpu) = (Instant::now(), cpu_seconds());
        let trace = bursar_trace::read(path)?;
        let (seconds, cpu) = (started.elapsed().as_secs_f64(), cpu_seconds() - started_cpu);
        assert!(trace.blocks == expected.blocks && trace.events.len() == expected.events.len());
        let events = trace.events.len() as f64 / 1e6;
        println!(
            "{:<12} {megabytes:8.1} MB {seconds:7.3} s {:8.1} MB/s {:6.2} M events/s; of processor time {cpu:7.3} s {:8.1} MB/s",
            path.file_name().unwrap_or_default().to_string_lossy(),
            megabytes / seconds,
            events / seconds,
            megabytes / cpu,
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let events = std::env::args().nth(1).map_or(Ok(10_000_000), |text| text.parse())?;
    let (trace, short) = (made_up(events)?, made_up(events.min(1_000_000))?);
    let folder = std::env::temp_dir().join(format!("bursar-parse-speed-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let timed = ["log.csv", "log.csv.gz", "log.jsonl", "log.pickle"].iter().try_for_each(|name| {
        let path = folder.join(name);
        let trace = if name.ends_with(".pickle") { &short } else { &trace };
        bursar_trace::write(trace, &path)?;
        time(&path, trace)?;
        std::fs::remove_file(&path).map_err(Box::<dyn Error>::from)
    });
    std::fs::remove_dir_all(&folder)?;
    timed
}
