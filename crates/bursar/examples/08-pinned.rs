//! Pinned: host memory near the GPU, handed out again and again, copied while the host goes on.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // CUDA where there is a device, two simulated ones otherwise; BURSAR_DRIVER=sim insists on those.
    let driver = bursar::driver::cuda_or_simulated()?;
    let context = DeviceContext::open(driver, DeviceId(0))?;
    let memory = Stack::new().layer(PagePool::default()).over(leaf::Frames).build(&context)?;
    let stream = context.create_stream(0)?;

    // One worker a NUMA node; requests for a GPU go to the node that its PCI address reports.
    let workers = NumaWorkerPool::global()?;
    let pool = PinnedPool::new(workers, &context, PinnedOptions::default());
    println!("the GPU sits on node {}", workers.node_of(&context));

    // Made in the background, while something else is prepared.
    let growing = pool.prime(4 << 20, 2);
    let mut block = TrackedBlock::new(&memory, memory.allocate(4 << 20, 256, stream, tag!("batches"))?);
    growing.wait()?;

    // Two buffers take turns: while one is copied, the other is filled. Each is the copy's until that has run.
    let mut copying = None;
    for batch in 0..6u8 {
        let mut buffer = pool.get(4 << 20)?;
        buffer.fill(batch);
        let copy = block.copy_from_host_async(&context, 0, buffer, stream)?;
        if let Some(before) = copying.replace(copy) {
            drop(before.wait()?);
        }
    }
    let last = copying.expect("there was a batch").wait()?;
    println!("{}", last.placement());
    drop(last);

    let back = block.copy_to_host_async(&context, 0, pool.get(4 << 20)?, stream)?.wait()?;
    assert!(back.iter().all(|byte| *byte == 5));
    drop(back);
    println!("{} held for all of them", pool.counts().held);

    // Giving pinned memory back waits for the device, so another thread does it.
    println!("{} on their way back", pool.trim(Bytes::ZERO));
    block.free(&memory, stream)?;
    Ok(())
}
