//! Buffers of a capture whose first use, or free, is on another captured stream than the one they were allocated on.

use super::{LEN, add_one, pooled};
use bursar_core::{DeviceBlock, DeviceMemoryResource as _, Result, tag};
use bursar_device::{DeviceBuffer, GpuCapture, StreamLease};
use bursar_sim::Sim;

/// The past of the memory that a buffer is allocated in.
#[derive(Clone, Copy, Debug)]
enum Before {
    Nothing,
    /// It was freed on the stream of the allocation.
    FreedThere,
    /// It was freed on all three streams, which that of the allocation came after then.
    FreedEverywhere,
}

/// Fills the memory that the next buffer on the first stream lies in, and frees it; returns where that is.
fn scratch(capture: &GpuCapture<'_>, streams: &[StreamLease; 3], before: Before) -> Result<Option<u64>> {
    let gpu = capture.gpu();
    let [main, side, third] = streams;
    let mut scratch = match before {
        Before::Nothing => return Ok(None),
        Before::FreedThere => gpu.buffer::<u32>(LEN, main, tag!("scratch"))?,
        Before::FreedEverywhere => gpu.buffer::<u32>(LEN, side, tag!("scratch"))?,
    };
    gpu.submit(scratch.stream(), |work| work.fill(&mut scratch, 1))?;
    if matches!(before, Before::FreedEverywhere) {
        add_one(gpu, third, &mut scratch)?;
        scratch.free_on(third)?;
    }
    let at = scratch.block().map(|block| block.ptr().0);
    drop(scratch);
    if matches!(before, Before::FreedEverywhere) {
        capture.order(side, main)?;
        capture.order(third, main)?;
    }
    Ok(at)
}

/// A buffer that is allocated on the first of three captured streams and used on the second first: it comes after the
/// allocation there, and after whatever had the memory before.
fn first_use(
    before: Before,
    seed: u64,
    run: impl Fn(&GpuCapture<'_>, &[StreamLease; 3], &mut DeviceBuffer<u32>) -> Result<()>,
) {
    let sim = Sim::seeded(seed);
    let gpu = pooled(&sim);
    let streams: [StreamLease; 3] = std::array::from_fn(|_| gpu.streams().lease().expect("room"));
    let [main, side, third] = &streams;
    let captured = gpu.capture(main, |capture| -> Result<_> {
        capture.order(main, side)?;
        capture.order(main, third)?;
        let at = scratch(capture, &streams, before)?;
        let mut buffer = capture.gpu().buffer::<u32>(LEN, main, tag!("buffer"))?;
        if at.is_some() {
            assert_eq!(buffer.block().map(|block| block.ptr().0), at, "{before:?}: what was freed is used again");
        }
        run(capture, &streams, &mut buffer)?;
        Ok(buffer)
    });
    let (graph, output) = captured.expect("captured");
    for _ in 0..3 {
        graph.launch(third).expect("launched");
    }
    assert_eq!(output.to_vec().expect("read"), [3; LEN], "seed {seed}, {before:?}");
    drop((output, graph));
    sim.assert_clean();
}

fn in_all_ways(run: impl Fn(&GpuCapture<'_>, &[StreamLease; 3], &mut DeviceBuffer<u32>) -> Result<()>) {
    for seed in 0..16 {
        for before in [Before::Nothing, Before::FreedThere, Before::FreedEverywhere] {
            first_use(before, seed, &run);
        }
    }
}

#[test]
fn z2_a_first_write_on_another_captured_stream_comes_after_the_allocation() {
    in_all_ways(|capture, [main, side, _], buffer| {
        capture.gpu().submit(side, |work| work.fill(&mut *buffer, 2))?;
        add_one(capture.gpu(), main, buffer)
    });
}

#[test]
fn z2_a_first_copy_on_another_captured_stream_comes_after_the_allocation_of_both() {
    in_all_ways(|capture, [main, side, third], buffer| {
        let mut from = capture.gpu().buffer::<u32>(LEN, third, tag!("from"))?;
        capture.gpu().submit(third, |work| work.fill(&mut from, 2))?;
        capture.gpu().submit(side, |work| work.copy(&from, &mut *buffer))?;
        add_one(capture.gpu(), main, buffer)
    });
}

#[test]
fn z2_a_first_read_on_another_captured_stream_comes_after_the_allocation_and_before_a_write_on_a_third() {
    in_all_ways(|capture, [main, side, third], buffer| {
        let mut copy = capture.gpu().buffer::<u32>(LEN, side, tag!("copy"))?;
        capture.gpu().submit(side, |work| work.copy(&*buffer, &mut copy))?;
        capture.gpu().submit(third, |work| work.fill(&mut *buffer, 2))?;
        add_one(capture.gpu(), main, buffer)
    });
}

#[test]
fn z2_a_token_that_is_taken_in_a_capture_comes_after_the_uses_on_other_captured_streams() {
    in_all_ways(|capture, [main, side, _], buffer| {
        let mut given = capture.gpu().buffer::<u32>(LEN, main, tag!("given"))?;
        capture.gpu().submit(side, |work| work.fill(&mut given, 5))?;
        let block = given.into_block()?.expect("it holds memory");
        let at = block.ptr();
        capture.memory().deallocate(block, main.stream())?;
        let mut next = capture.gpu().buffer::<u32>(LEN, main, tag!("next"))?;
        assert_eq!(next.block().map(DeviceBlock::ptr), Some(at), "what was freed is used again");
        capture.gpu().submit(main, |work| work.fill(&mut next, 6))?;
        capture.gpu().submit(main, |work| work.fill(&mut *buffer, 3))
    });
}

#[test]
fn z2_a_free_on_another_captured_stream_without_a_use_before_comes_after_the_allocation() {
    for is_ordered in [false, true] {
        in_all_ways(|capture, [main, side, _], buffer| {
            let mut unused = capture.gpu().buffer::<u32>(LEN, main, tag!("unused"))?;
            let at = unused.block().map(DeviceBlock::ptr);
            unused.free_on(side)?;
            drop(unused);
            if is_ordered {
                capture.order(main, side)?;
            }
            let mut next = capture.gpu().buffer::<u32>(LEN, side, tag!("next"))?;
            if is_ordered {
                assert_eq!(next.block().map(DeviceBlock::ptr), at, "what was freed is used again");
            }
            capture.gpu().submit(side, |work| work.fill(&mut next, 7))?;
            capture.gpu().submit(main, |work| work.fill(&mut *buffer, 3))
        });
    }
}
