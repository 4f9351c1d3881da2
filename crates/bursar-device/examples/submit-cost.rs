//! Measures the cost of declaring the uses of a submission: two buffers on one stream, one read and one written, and no driver
//! call.
//!
//! ```sh
//! cargo build --release -p bursar-device --example submit-cost
//! for count in 100000 200000; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/submit-cost $count
//! done
//! ```
//!
//! The difference of the two totals, divided by 100,000, is the number of instructions a submission takes. With a
//! second argument `across`, the two buffers are used by two streams in turn, each of which waits for the other.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar_core::{DeviceId, Result, Stack, leaf, tag};
use bursar_device::Gpu;
use bursar_sim::Sim;
use std::hint::black_box;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(1_000_000);
    let across = arguments.next().is_some_and(|word| word == "across");

    let gpu = Gpu::open(Sim::immediate(), DeviceId(0), &Stack::new().over(leaf::Async))?;
    let streams = [gpu.streams().lease()?, gpu.streams().lease()?];
    let source = gpu.buffer::<f32>(1024, &streams[0], tag!("source"))?;
    let mut target = gpu.buffer::<f32>(1024, &streams[0], tag!("target"))?;
    for nth in 0..count {
        let stream = &streams[if across { nth % 2 } else { 0 }];
        let used = stream.submit(|work| -> Result<_> { Ok((work.read(&source)?, work.write(&mut target)?)) });
        black_box(used)?;
    }
    println!("{count} submissions");
    Ok(())
}
