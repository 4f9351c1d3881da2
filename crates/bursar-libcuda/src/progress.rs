//! Progress without calls.
//!
//! The streams of a seeded simulator advance when a program queries or waits. On hardware they advance by themselves, and a
//! program may wait for that without a call: for a host function, or for a byte in pinned memory. So where calls stop coming
//! while work is queued, a thread lets it run.

use bursar_sim::Sim;
use std::sync::Arc;
use std::time::Duration;

/// The time without calls after which streams advance.
const QUIET: Duration = Duration::from_millis(2);

/// Starts the thread, which lasts as long as the process.
pub(crate) fn start(sim: &Arc<Sim>) {
    let sim = sim.clone();
    // Where no thread can be started, streams advance with calls alone.
    let _ = std::thread::Builder::new().name("libcuda".into()).spawn(move || {
        let mut seen = 0;
        loop {
            std::thread::sleep(QUIET);
            let calls = sim.call_count();
            if calls == seen {
                sim.step();
            }
            seen = calls;
        }
    });
}
