//! No fragmentation: of a full pool a random half is freed, and asked for again in one piece.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use bursar::prelude::*;

const LIMIT: Bytes = Bytes::gib(8);
const BLOCK: Bytes = Bytes::mib(4);
/// The number of values that mark the start of each block.
const MARKS: usize = 64;

fn main() -> bursar::Result<()> {
    // CUDA where there is a device, two simulated ones otherwise; BURSAR_DRIVER=sim insists on those.
    let driver = bursar::driver::cuda_or_simulated()?;

    // The pool maps frames of physical memory where they are needed. Under it, the budget counts those frames: 8 GiB.
    let pool = PagePool::default().largest_frame(BLOCK);
    let stack = Stack::new().layer(pool.clone()).layer(GlobalDeviceBudget::of(LIMIT)).over(leaf::Frames);
    let gpus = DevicePool::open(driver, &stack)?;
    let gpu = gpus.most_free();
    let stream = gpu.streams().lease()?;
    let reading = || pool.readings().into_iter().find(|reading| reading.device == gpu.id()).unwrap_or_default();

    let mut blocks = Vec::new();
    for number in 0..LIMIT.get() / BLOCK.get() {
        let mut block = gpu.buffer::<u64>(BLOCK.get() as usize / 8, &stream, tag!("block"))?;
        block.slice_mut(..MARKS)?.fill(number)?;
        blocks.push((number, block));
    }
    println!("{} blocks of {BLOCK}: the pool holds {} of {LIMIT}", blocks.len(), reading().held);

    shuffle(&mut blocks);
    let freed = blocks.split_off(blocks.len() / 2);
    println!("{} of them, chosen at random, are freed", freed.len());
    drop(freed);
    gpu.context().synchronize(*stream)?;
    let (before, half) = (gpu.memory_info()?.free, Bytes(LIMIT.get() / 2));
    println!("{} are free, of which {} lie in one piece", reading().cached, reading().largest_free_run);
    assert!(reading().largest_free_run < half);

    // Not a byte more may be taken from the driver, and no free piece is nearly large enough: frames move.
    let whole = gpu.buffer::<u64>(half.get() as usize / 8, &stream, tag!("whole"))?;
    println!(
        "{} in one piece: granted; the driver had {before} free and has {}",
        whole.bytes(),
        gpu.memory_info()?.free
    );
    assert_eq!(reading().held, LIMIT);

    for (number, block) in &blocks {
        assert_eq!(block.slice(..MARKS)?.to_vec()?, [*number; MARKS]);
    }
    println!("{} blocks still hold what was written into them", blocks.len());
    Ok(())
}

/// Shuffles `things`, in the same way each time.
fn shuffle<T>(things: &mut [T]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..things.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        things.swap(last, (state % (last as u64 + 1)) as usize);
    }
}
