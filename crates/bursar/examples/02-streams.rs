//! Streams: leasing them, freeing in their order, and learning when memory is really free again.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar::prelude::*;
use bursar::sim::Sim;
use std::time::Duration;

fn main() -> bursar::Result<()> {
    // On this simulated device a stream advances only when somebody asks how far it is, so that what is in flight can be
    // seen. The program is the same on any other: `bursar::driver::cuda_or_simulated()` finds CUDA.
    let gpu = Gpu::open(Sim::seeded(6), DeviceId(0), &Stack::new().over(leaf::Async))?;
    let (memory, streams) = (gpu.memory(), gpu.streams());

    // Two leases are two streams, made when they are needed, at most `max_streams` of them.
    let (upload, compute) = (streams.lease()?, streams.lease()?);
    println!("{} and {}, of at most {}", upload.number(), compute.number(), streams.max_streams());

    // Allocated in the order of one stream, and used last on the other: the free has to follow that one.
    let mut batch = gpu.buffer::<f32>(1 << 20, &upload, tag!("batch"))?;
    batch.fill(0.5)?;
    batch.free_on(&compute)?;

    // Dropping it waits for nothing. It only puts the free behind what the stream has to do before.
    drop(batch);
    println!("freed, and still held: {}", memory.bytes_outstanding());

    // `reap` asks without waiting, as often as it is worth; `reap_blocking` waits, and here would have done alone.
    let mut asked = 1;
    while memory.reap()? == Bytes::ZERO && asked < 100 {
        asked += 1;
    }
    memory.reap_blocking(Duration::MAX)?;
    println!("asked {asked} times, still held: {}", memory.bytes_outstanding());
    assert_eq!(memory.bytes_outstanding(), Bytes::ZERO);

    // A lease goes back when it is dropped, and its stream to the next holder, whose work runs after what is on it.
    let number = upload.number();
    drop(upload);
    let next = streams.lease()?;
    println!("{} again; {} were made", next.number(), streams.created());
    assert_eq!((next.number(), streams.created()), (number, 2));
    Ok(())
}
