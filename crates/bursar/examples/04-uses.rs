//! Uses: two streams share a buffer, and nobody writes a wait.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar::prelude::*;

fn main() -> bursar::Result<()> {
    // CUDA where there is a device, two simulated ones otherwise; BURSAR_DRIVER=sim insists on those.
    let driver = bursar::driver::cuda_or_simulated()?;
    let statistics = Statistics::default();
    let stack =
        Stack::new().observe(statistics.clone()).layer(GlobalDeviceBudget::of(Bytes::gib(16))).over(leaf::Async);

    let gpus = DevicePool::open(driver, &stack)?;
    let gpu = gpus.most_free();
    let (a, b) = (gpu.streams().lease()?, gpu.streams().lease()?);

    // A write on one stream, and a read on the other: ordered after it, with no synchronisation written here.
    let mut weights = gpu.buffer::<f32>(1 << 20, &a, tag!("weights"))?;
    a.submit(|work| work.fill(&mut weights, 1.0))?;
    let ones = b.submit(|work| work.read_back(&weights))?;

    // Those who launch kernels ask for the addresses. By the time they have one, the stream waits for whatever it must.
    let mut doubled = gpu.buffer::<f32>(1 << 20, &b, tag!("doubled"))?;
    a.submit(|work| -> bursar::Result<()> {
        let (source, target) = (work.read(&weights)?, work.write(&mut doubled)?);
        println!("a kernel on {} would read {source} and write {target}", work.stream());
        Ok(())
    })?;

    // Freed in stream order, after the read of the other stream. Nobody waits for that here.
    drop(weights);

    match gpu.buffer::<u8>(17 << 30, &a, tag!("too big")) {
        Err(refused) if refused.is_capacity() => println!("{refused:#}"),
        other => drop(other?),
    }
    let ones = ones.wait()?;
    assert!(ones.iter().all(|value| *value == 1.0));
    println!("{} values; {}", ones.len(), statistics.report());
    Ok(())
}
