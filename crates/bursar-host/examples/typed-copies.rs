//! The speed of typed copies from and to pinned memory beside the driver's own calls on the same memory: medians of rounds
//! that take turns, and the ratio.
//!
//! Requires: CUDA, for figures that mean anything
#![allow(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar::prelude::*;
use bursar_host::PinnedArray;
use std::time::Instant;

const SIZES: [usize; 4] = [1 << 20, 16 << 20, 256 << 20, 1 << 30];
const ROUNDS: usize = 21;
/// The bytes that one measurement of a round copies at least, so that short copies are measured over many.
const PER_ROUND: usize = 256 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stack = Stack::new().layer(PagePool::default()).over(leaf::Frames);
    let gpu = Gpu::open(bursar::driver::cuda_or_simulated()?, DeviceId(0), &stack)?;
    let pinned = PinnedPool::near(&gpu)?;
    let stream = gpu.streams().lease()?;
    println!(
        "{:>8}  {:>9}  {:>9}  {:>6}    {:>9}  {:>9}  {:>6}",
        "bytes", "raw up", "typed up", "÷", "raw down", "typed down", "÷"
    );
    for bytes in SIZES {
        let mut memory = pinned.get(bytes)?.typed::<f32>();
        let mut buffer = gpu.zeros::<f32>(memory.len(), &stream, tag!("copied"))?;
        let mut speeds: [Vec<f64>; 4] = Default::default();
        for _ in 0..ROUNDS {
            let count = (PER_ROUND / bytes).max(1);
            speeds[0].push(raw(&gpu, &stream, &mut memory, &buffer, true, count)?);
            speeds[2].push(raw(&gpu, &stream, &mut memory, &buffer, false, count)?);
            let begin = Instant::now();
            for _ in 0..count {
                memory = stream.submit(|work| work.copy_from_host(&mut buffer, memory))?.wait()?;
            }
            speeds[1].push(speed(count * bytes, begin));
            let begin = Instant::now();
            for _ in 0..count {
                memory = stream.submit(|work| work.read_back_into(&buffer, memory))?.wait()?;
            }
            speeds[3].push(speed(count * bytes, begin));
        }
        let [raw_up, up, raw_down, down] = speeds.map(median);
        println!(
            "{:>8}  {raw_up:>9.2}  {up:>9.2}  {:>6.3}    {raw_down:>9.2}  {down:>9.2}  {:>6.3}  GB/s",
            Bytes(bytes as u64).to_string().replace(' ', ""),
            up / raw_up,
            down / raw_down
        );
    }
    Ok(())
}

/// Copies with the driver's calls alone, each waited for.
fn raw(
    gpu: &Gpu,
    stream: &StreamLease,
    memory: &mut PinnedArray<f32>,
    buffer: &DeviceBuffer<f32>,
    is_up: bool,
    count: usize,
) -> bursar::Result<f64> {
    let (driver, device, raw) = (gpu.context().driver(), gpu.id(), gpu.context().resolve(**stream)?);
    let bytes = buffer.bytes().get();
    let begin = Instant::now();
    for _ in 0..count {
        match is_up {
            // SAFETY: both sides have so many bytes and live until the copy was waited for, and nothing else uses them.
            true => unsafe { driver.copy_to_device(device, raw, buffer.ptr(), memory.as_ptr().cast(), bytes) }?,
            // SAFETY: as above.
            false => unsafe { driver.copy_to_host(device, raw, memory.as_mut_ptr().cast(), buffer.ptr(), bytes) }?,
        }
        gpu.context().synchronize(**stream)?;
    }
    Ok(speed(count * bytes as usize, begin))
}

fn speed(bytes: usize, begin: Instant) -> f64 {
    bytes as f64 / begin.elapsed().as_secs_f64() / 1e9
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
