//! A budget: how much of a device a program may hold, and how it handles a refusal.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar::prelude::*;

/// The number of values in a row of a batch.
const ROW: usize = 1 << 18;

fn main() -> bursar::Result<()> {
    // CUDA where there is a device, two simulated ones otherwise; BURSAR_DRIVER=sim insists on those.
    let driver = bursar::driver::cuda_or_simulated()?;

    // The first layer sees a request first: here the budget, and below it the driver's own stream-ordered pool.
    let stack = Stack::new().layer(GlobalDeviceBudget::of(Bytes::mib(64))).over(leaf::Async);
    let gpus = DevicePool::open(driver, &stack)?;
    let gpu = gpus.most_free();
    let stream = gpu.streams().lease()?;

    let weights = gpu.buffer::<f32>(12 << 20, &stream, tag!("weights"))?;
    println!("weights: {}", weights.bytes());

    // A refusal carries its numbers, and nothing was charged for it. Lack of memory is the one failure after which a
    // smaller request, or a later one, makes sense: `is_capacity` tells it from every other.
    let mut rows = 64;
    let batch = loop {
        match gpu.buffer::<f32>(rows * ROW, &stream, tag!("batch")) {
            Ok(batch) => break batch,
            Err(refused) if refused.is_capacity() && rows > 1 => {
                println!("{rows} rows: {refused}");
                rows /= 2;
            }
            Err(failed) => return Err(failed),
        }
    };
    println!("{rows} rows: {}", batch.bytes());
    assert_eq!(rows, 16);

    // Freed memory can be allocated again. The free follows the stream, and a budget that is short looks for it first.
    drop(weights);
    gpu.context().synchronize(*stream)?;
    let second = gpu.buffer::<f32>(3 * rows * ROW, &stream, tag!("second batch"))?;
    println!("{} rows more: {}", 3 * rows, second.bytes());
    Ok(())
}
