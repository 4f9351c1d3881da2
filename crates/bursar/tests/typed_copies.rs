//! Pinned memory in typed copies: it goes into a copy and comes back, whatever happens.
#![forbid(unsafe_code)]

use bursar::Error;
use bursar::prelude::*;
use bursar::sim::Sim;

const LEN: usize = 1000;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn pinned(gpu: &Gpu) -> Result<PinnedPool, Box<dyn std::error::Error + Send + Sync>> {
    Ok(PinnedPool::new(NumaWorkerPool::global()?, gpu.context(), PinnedOptions::default()))
}

#[test]
fn t7_pinned_memory_goes_into_typed_copies_and_comes_back() -> Outcome {
    for seed in 0..16 {
        let sim = Sim::seeded(seed);
        let gpu = Gpu::open(sim.clone(), DeviceId(0), &Stack::new().layer(PagePool::default()).over(leaf::Frames))?;
        let (pool, stream) = (pinned(&gpu)?, gpu.streams().lease()?);
        let mut numbers = gpu.buffer::<f32>(LEN, &stream, tag!("numbers"))?;

        let mut source: PinnedArray<f32> = pool.get(4 * LEN)?.typed();
        source.iter_mut().zip(0u16..).for_each(|(number, nth)| *number = nth.into());
        let upload = stream.submit(|work| work.copy_from_host(&mut numbers, source))?;
        let target = pool.get(4 * LEN)?;
        let download = stream.submit(|work| work.read_back_into(&numbers, target))?;
        let (source, target) = (upload.wait()?, download.wait()?.typed::<f32>());
        assert_eq!(*source, *target);
        assert_eq!((target.len(), target[LEN - 1]), (LEN, 999.0));

        // A batch that does not fill its memory.
        let mut part = target;
        part.truncate(10);
        let upload = stream.submit(|work| work.copy_from_host(numbers.slice_mut(..10)?, part).map_err(Error::from))?;
        assert_eq!(upload.wait()?.into_buffer().len(), 4 * LEN);
        drop((source, numbers, stream, pool, gpu));
        sim.settle();
        sim.assert_clean();
    }
    Ok(())
}

#[test]
fn t7_pinned_memory_of_another_size_comes_back_with_both_sizes() -> Outcome {
    let gpu = Gpu::open(Sim::seeded(1), DeviceId(0), &Stack::new().over(leaf::Async))?;
    let (pool, stream) = (pinned(&gpu)?, gpu.streams().lease()?);
    let mut numbers = gpu.buffer::<f64>(LEN, &stream, tag!("numbers"))?;
    for (bytes, expected) in [
        (8 * LEN - 8, Error::LengthMismatch { expected: LEN, found: LEN - 1 }),
        (8 * LEN + 8, Error::LengthMismatch { expected: LEN, found: LEN + 1 }),
        (8 * LEN - 1, Error::SizeMismatch { expected: 8 * LEN, found: 8 * LEN - 1 }),
    ] {
        let memory = pool.get(bytes)?;
        let refused = stream.submit(|work| work.copy_from_host(&mut numbers, memory)).expect_err("another size");
        assert_eq!(refused.error, expected);
        let memory = refused.transfer.wait()?;
        let refused = stream.submit(|work| work.read_back_into(&numbers, memory)).expect_err("another size");
        assert_eq!((refused.error, refused.transfer.wait()?.len()), (expected, bytes));
    }
    Ok(())
}
