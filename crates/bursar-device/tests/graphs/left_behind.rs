//! Blocks that graphs leave behind, where an earlier graph of the same memory has its own.

use super::{LEN, pooled};
use bursar_core::{Graph, GraphMemory, Result, tag};
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
