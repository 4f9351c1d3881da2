//! Reads traces and prints their numbers: `cargo run --release -p bursar-trace --example 01-look TRACE…`.

use std::process::ExitCode;

#[allow(clippy::print_stdout, clippy::print_stderr)]
fn main() -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    for path in std::env::args().skip(1) {
        match bursar_trace::read(&path) {
            Ok(trace) => println!(
                "{path}: {} events, {} threads, {} streams, {} blocks, {:.1} MiB live at the peak, {} unknown frees, {} \
                 missing frees",
                trace.events.len(),
                trace.threads.len(),
                trace.streams.len(),
                trace.blocks,
                trace.peak_live().get() as f64 / f64::from(1 << 20),
                trace.unknown_frees.len(),
                trace.missing_frees.len(),
            ),
            Err(error) => {
                eprintln!("{error}");
                status = ExitCode::FAILURE;
            }
        }
    }
    status
}
