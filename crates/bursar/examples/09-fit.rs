//! A stage that sizes its thread pool: as many workers as fit, each with memory that is really there.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar::fit::{DeviceShare, Spec};
use bursar::prelude::*;
use std::thread;

const WEIGHTS: Bytes = Bytes::gib(2);
const BATCH: Bytes = Bytes::gib(12);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // CUDA where there is a device, two simulated ones otherwise; BURSAR_DRIVER=sim insists on those.
    let driver = bursar::driver::cuda_or_simulated()?;
    let devices = (0..driver.device_count()).map(|n| DeviceContext::open(driver.clone(), DeviceId(n)));
    let devices = devices.collect::<bursar::Result<Vec<_>>>()?;

    // As many as fit, of 64: the weights once on each device, and a batch for each worker.
    let stage = |name: &str| Spec::vram(name, devices.clone()).fixed(WEIGHTS).per_worker(BATCH).want(64);
    let reserved = fit_workers(&stage("embed"))?;
    println!("{}", reserved.plan.explanation());
    println!("{}", reserved.plan.advice().unwrap_or_default());

    // The memory is reserved: the next stage that asks plans with what is left, and does not get the same bytes.
    match fit_workers(&stage("another stage")) {
        Ok(other) => println!("another stage gets {} workers beside them", other.plan.workers),
        Err(refused) => println!("another stage is refused: {refused}"),
    }

    let batches: u64 = thread::scope(|scope| {
        let stages: Vec<_> = reserved.shares.into_iter().map(|share| scope.spawn(|| run(share))).collect();
        stages.into_iter().map(|stage| stage.join().expect("no worker panics")).sum::<bursar::Result<u64>>()
    })?;
    println!("{batches} batches went through, and nothing was refused");
    Ok(())
}

/// The workers of one device. Their memory is a pool that draws on what was reserved for them.
fn run(share: DeviceShare) -> bursar::Result<u64> {
    let (Some(context), Some(reservation)) = (share.context, share.reservation) else { return Ok(0) };
    println!("{}: {} threads share {}", context.device(), share.workers, reservation.bytes());
    let budget = GlobalDeviceBudget::shared(reservation);
    let gpu = Gpu::with_context(&context, &Stack::new().layer(PagePool::default()).layer(budget).over(leaf::Frames))?;

    let loading = gpu.streams().lease()?;
    let mut weights = gpu.buffer::<u8>(WEIGHTS.get() as usize, &loading, tag!("weights"))?;
    weights.slice_mut(..1024)?.fill(1)?;

    let work = || -> bursar::Result<u64> {
        let stream = gpu.streams().lease()?;
        for step in 0..3 {
            let mut batch = gpu.buffer::<u8>(BATCH.get() as usize, &stream, tag!("batch"))?;
            batch.slice_mut(..1024)?.fill(step)?;
        }
        Ok(3)
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..share.workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).sum()
    })
}
