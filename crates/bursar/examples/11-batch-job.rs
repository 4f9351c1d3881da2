//! A batch job: as many worker processes as fit on the cards, each with memory that is set aside for it.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar::driver::{Choice, Driver};
use bursar::fit::{Spec, Worker, fit_workers};
use bursar::prelude::*;
use std::error::Error;
use std::process::Command;
use std::sync::Arc;

const WEIGHTS: Bytes = Bytes::gib(2);
const BATCH: Bytes = Bytes::gib(14);

fn main() -> Result<(), Box<dyn Error>> {
    match Reservation::from_environment()? {
        Some(share) => work(share),
        None => start(),
    }
}

/// Opens CUDA, or two simulated cards that every process of this job shares by their name.
fn driver() -> Result<Arc<dyn Driver>, Box<dyn Error>> {
    Ok(bursar::driver::open(Choice::from_environment()?, &"2x40GiB@example-11".parse()?)?.driver)
}

/// Plans the job, sets its memory aside, and starts a process for each worker.
fn start() -> Result<(), Box<dyn Error>> {
    let driver = driver()?;
    let devices = (0..driver.device_count()).map(|n| DeviceContext::open(driver.clone(), DeviceId(n)));
    let devices = devices.collect::<bursar::Result<Vec<_>>>()?;
    let stage = Spec::vram("embed", devices).per_worker(WEIGHTS + BATCH).want(5).headroom(0.9);
    let reserved = fit_workers(&stage)?;
    println!("{}", reserved.plan.explanation());

    let workers = reserved.into_workers()?;
    let mut children = Vec::new();
    for worker in &workers {
        children.push(worker.apply(&mut Command::new(std::env::current_exe()?)).spawn()?);
    }
    for mut child in children {
        assert!(child.wait()?.success(), "a worker within its share is never refused");
    }
    Ok(())
}

/// Runs as one worker, on the device of its share. Its pool draws on that share and on nothing else.
fn work(share: Reservation) -> Result<(), Box<dyn Error>> {
    let (driver, uuid) = (driver()?, share.ledger().subject().uuid);
    let is_here = |device: &DeviceId| driver.facts(*device).is_ok_and(|facts| facts.uuid == uuid);
    let device = (0..driver.device_count()).map(DeviceId).find(is_here).ok_or("the share is of no device here")?;
    let (number, bytes) = (std::env::var(Worker::NUMBER_VARIABLE)?, share.bytes());
    let stack = Stack::new().layer(PagePool::default()).layer(GlobalDeviceBudget::shared(share)).over(leaf::Frames);
    let gpu = Gpu::open(driver.clone(), device, &stack)?;

    let stream = gpu.streams().lease()?;
    let _weights = gpu.buffer::<u8>(WEIGHTS.get() as usize, &stream, tag!("weights"))?;
    for step in 0..3 {
        let mut batch = gpu.buffer::<u8>(BATCH.get() as usize, &stream, tag!("batch"))?;
        batch.slice_mut(..1024)?.fill(step)?;
    }
    println!("worker {number}: 3 batches in {bytes} of {device}");
    Ok(())
}
