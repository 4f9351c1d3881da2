//! The cost of a hit of the pinned pool: getting a buffer and returning it, a million times.
//!
//! Run it under callgrind with `--toggle-collect=*measured_*` to count the instructions.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar_core::{DeviceContext, DeviceId};
use bursar_host::{HostError, NumaWorkerPool, PinnedOptions, PinnedPool};
use bursar_sim::Sim;
use std::time::Instant;

const PAIRS: u32 = 1_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = DeviceContext::open(Sim::immediate(), DeviceId(0))?;
    let pool = PinnedPool::new(NumaWorkerPool::global()?, &context, PinnedOptions::default());
    for bytes in [64, 4096, 1 << 20] {
        drop(pool.get(bytes)?);
    }
    let start = Instant::now();
    measured_pairs(&pool)?;
    println!("{:.1} ns a pair", start.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS));
    Ok(())
}

#[inline(never)]
fn measured_pairs(pool: &PinnedPool) -> Result<(), HostError> {
    for _ in 0..PAIRS {
        drop(std::hint::black_box(pool.get(4096)?));
    }
    Ok(())
}
