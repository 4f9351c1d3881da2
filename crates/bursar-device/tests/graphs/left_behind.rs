//! Blocks that graphs leave behind, where an earlier graph of the same memory has its own.

use super::{LEN, pooled};
use bursar_core::{DeviceMemoryResource as _, Graph, GraphMemory, Result, tag};
use bursar_device::{DeviceBuffer, Gpu, StreamLease};
use bursar_sim::Sim;

/// Captures a graph that leaves a buffer of sevens behind.
pub(super) fn sevens(gpu: &Gpu, memory: &GraphMemory, stream: &StreamLease) -> Result<(Graph, DeviceBuffer<u32>)> {
    gpu.capture_into(memory, stream, |capture| -> Result<_> {
        let mut output = capture.gpu().buffer::<u32>(LEN, stream, tag!("output"))?;
        stream.submit(|work| work.fill(&mut output, 7))?;
        Ok(output)
    })
}

/// A graph overwrites what a later one left behind, also once the later one is gone: the simulator finds nothing wrong with that.
#[test]
fn z2_a_graph_may_overwrite_a_block_that_has_outlived_a_later_one() {
    let sim = Sim::seeded(0);
    let gpu = pooled(&sim);
    let [stream, other] = [(); 2].map(|()| gpu.streams().lease().expect("room"));
    let memory = gpu.graph_memory().expect("room");
    let (first, output) = sevens(&gpu, &memory, &stream).expect("captured");
    let address = output.ptr();
    drop(output);
    let (second, output) = sevens(&gpu, &memory, &stream).expect("captured");
    assert_eq!(output.ptr(), address, "each begins with all that is in no block");
    drop(second);
    first.launch(&other).expect("launched");
    sim.check().expect("no hazard");
    drop((first, output, memory, stream, other));
    gpu.close().expect("nothing is held");
    sim.assert_clean();
    assert!(sim.leaks().leaks.is_empty(), "{}", sim.leaks());
}

/// Captures a graph that fills as many buffers as there are lengths, and leaves them behind.
fn leaving(gpu: &Gpu, memory: &GraphMemory, stream: &StreamLease, lens: &[usize]) -> (Graph, Vec<DeviceBuffer<u32>>) {
    let captured = gpu.capture_into(memory, stream, |capture| -> Result<_> {
        let fill = |len: &usize| {
            let mut output = capture.gpu().buffer::<u32>(*len, stream, tag!("output"))?;
            stream.submit(|work| work.fill(&mut output, 7))?;
            Ok(output)
        };
        lens.iter().map(fill).collect()
    });
    captured.expect("captured")
}

/// A block of a second graph lies where several were freed on different streams, with work on them that may still run: whoever uses
/// it before its graph is launched comes after all of that.
#[test]
fn z2_a_block_over_several_freed_ones_is_used_before_any_launch_and_after_what_was_freed_there() {
    let lengths: [(&[usize], usize); 4] =
        [(&[1024], 500), (&[1024, 1024], 2048), (&[1024, 9000], 5000), (&[1024, 2048, 512], 3500)];
    for (seed, is_launched) in (0..32).map(|seed| (seed / 2, seed % 2 == 0)) {
        for (lens, over) in lengths {
            let sim = Sim::seeded(seed);
            let gpu = pooled(&sim);
            let streams: [StreamLease; 4] = std::array::from_fn(|_| gpu.streams().lease().expect("room"));
            let memory = gpu.graph_memory().expect("room");
            let (first, freed) = leaving(&gpu, &memory, &streams[0], lens);
            if is_launched {
                first.launch(&streams[3]).expect("launched");
            }
            for (mut freed, stream) in freed.into_iter().zip(&streams) {
                stream.submit(|work| work.fill(&mut freed, 1)).expect("submitted");
                freed.free_on(stream).expect("not captured");
            }
            let (second, mut output) = leaving(&gpu, &memory, &streams[0], &[over]);
            streams[2].submit(|work| work.fill(&mut output[0], 9)).expect("submitted");
            assert_eq!(output[0].to_vec().expect("read"), vec![9; over], "seed {seed}, over {lens:?}");
            second.launch(&streams[1]).expect("launched");
            assert_eq!(output[0].to_vec().expect("read"), vec![7; over], "seed {seed}, over {lens:?}");
            sim.check().unwrap_or_else(|report| panic!("seed {seed}, over {lens:?}: {report}"));
            drop((first, second, output, memory, streams));
            gpu.close().expect("nothing is held");
            sim.assert_clean();
        }
    }
}

#[test]
fn z2_a_free_of_a_block_comes_after_the_launch_of_its_graph_whether_it_was_touched_there_or_not() {
    for (seed, is_touched) in (0..32).map(|seed| (seed / 2, seed % 2 == 0)) {
        for is_taken in [false, true] {
            let sim = Sim::seeded(seed);
            let gpu = pooled(&sim);
            let [stream, other] = [(); 2].map(|()| gpu.streams().lease().expect("room"));
            let memory = gpu.graph_memory().expect("room");
            let (graph, output) = gpu
                .capture_into(&memory, &stream, |capture| -> Result<_> {
                    let mut output = capture.gpu().buffer::<u32>(LEN, &stream, tag!("output"))?;
                    if is_touched {
                        stream.submit(|work| work.fill(&mut output, 7))?;
                    }
                    Ok(output)
                })
                .expect("captured");
            graph.launch(&other).expect("launched");
            match is_taken {
                false => drop(output),
                true => {
                    let block = output.into_block().expect("no stream is captured").expect("it holds memory");
                    let home = block.stream();
                    memory.deallocate(block, home).expect("freed");
                }
            }
            sim.check().unwrap_or_else(|report| panic!("seed {seed}, touched {is_touched}, {is_taken}: {report}"));
            drop((graph, memory, stream, other));
            gpu.close().expect("nothing is held");
            sim.assert_clean();
        }
    }
}
