//! Graphs whose memory sleeps.

use super::{LEN, add_one, pooled};
use bursar_conformance::sleep::Heap;
use bursar_core::{
    AllocTag, Bytes, DeviceBlock, DeviceMemoryResource as _, Error, Graph, Holder as _, Result, SleepState,
    StreamMisuse, tag,
};
use bursar_device::{DeviceBuffer, Gpu, SleepOptions, StreamLease, WakeOptions};
use bursar_sim::Sim;

/// Captures a graph that adds one to an input and leaves the sum behind.
pub(super) fn sum(gpu: &Gpu, stream: &StreamLease, input: &DeviceBuffer<u32>) -> Result<(Graph, DeviceBuffer<u32>)> {
    gpu.capture(stream, |capture| -> Result<_> {
        let mut scratch = capture.gpu().buffer::<u32>(input.len(), capture.stream(), tag!("scratch"))?;
        capture.gpu().submit(capture.stream(), |work| work.copy(input, &mut scratch))?;
        add_one(capture.gpu(), capture.stream(), &mut scratch)?;
        let mut output = capture.gpu().buffer::<u32>(input.len(), capture.stream(), tag!("output"))?;
        capture.gpu().submit(capture.stream(), |work| work.copy(&scratch, &mut output))?;
        Ok(output)
    })
}

fn assert_asleep<T: std::fmt::Debug>(outcome: Result<T>, of: &str) {
    match outcome {
        Err(Error::Asleep { what, .. }) => assert_eq!(what, of),
        other => panic!("{other:?}"),
    }
}

#[test]
fn z9_a_graph_that_has_slept_computes_what_it_did_and_is_refused_meanwhile() {
    for seed in 0..16 {
        let sim = Sim::seeded(seed);
        let gpu = pooled(&sim);
        let (stream, other) = (gpu.streams().lease().expect("room"), gpu.streams().lease().expect("room"));
        let input = gpu.buffer_from(&[5u32; LEN], &stream, tag!("input")).expect("room");
        let (graph, output) = sum(&gpu, &stream, &input).expect("captured");
        // Nobody waits for it but the sleep.
        graph.launch(&other).expect("launched");
        let report = gpu.sleep(&Heap, &SleepOptions::new()).expect("nothing keeps it awake");
        assert!(report.saved > Bytes(2 * 4 * LEN as u64) && report.kept == Bytes::ZERO, "{report:?}");
        assert_asleep(graph.launch(&stream), "the memory of a graph");
        assert_asleep(output.to_vec(), "a block");
        let again = graph
            .memory()
            .capture(&stream, |capture| graph.memory().allocate(1 << 10, 256, capture.stream(), tag!("more")));
        assert_asleep(again, "the memory of a graph");
        gpu.wake(&WakeOptions::new()).expect("room");
        assert_eq!(output.to_vec().expect("awake"), [6; LEN], "seed {seed}: what was computed has come back");
        for _ in 0..3 {
            graph.launch(&other).expect("launched");
            assert_eq!(output.to_vec().expect("awake"), [6; LEN]);
        }
        drop((output, graph, input));
        sim.assert_clean();
        drop((stream, other));
        gpu.close().expect("nothing is held");
        assert!(sim.leaks().leaks.is_empty(), "{}", sim.leaks());
    }
}

/// A graph is refused too where only the memory of graphs sleeps, or a buffer that it was captured with.
#[test]
fn z9_a_graph_is_refused_while_a_tag_of_it_sleeps() {
    let sim = Sim::seeded(3);
    let gpu = pooled(&sim);
    gpu.record_tags().expect("recorded");
    let stream = gpu.streams().lease().expect("room");
    let len = 2 << 20;
    let input = gpu.buffer_from(&vec![5u32; len], &stream, tag!("input")).expect("room");
    let (graph, output) = sum(&gpu, &stream, &input).expect("captured");
    let refused: [(AllocTag, &str); 2] = [(tag!("graph memory"), "the memory of a graph"), (tag!("input"), "a block")];
    for (tag, of) in refused {
        let report = gpu.sleep(&Heap, &SleepOptions::new().only(tag)).expect("nothing keeps it awake");
        assert!(report.released > Bytes::mib(4), "{report:?}");
        assert_asleep(graph.launch(&stream), of);
        if tag == tag!("input") {
            assert_asleep(sum(&gpu, &stream, &input).map(drop), of);
        }
        gpu.wake(&WakeOptions::new().only(tag)).expect("room");
        graph.launch(&stream).expect("awake");
        assert!(output.to_vec().expect("awake").iter().all(|sum| *sum == 6));
    }
    drop((graph, output, input));
    sim.assert_clean();
}

#[test]
fn z9_nothing_falls_asleep_while_a_stream_is_captured() {
    let sim = Sim::seeded(4);
    let gpu = pooled(&sim);
    let stream = gpu.streams().lease().expect("room");
    let input = gpu.buffer_from(&[5u32; LEN], &stream, tag!("input")).expect("room");
    let (graph, mut output) = gpu
        .capture(&stream, |capture| -> Result<_> {
            let mut output = capture.gpu().buffer::<u32>(LEN, capture.stream(), tag!("output"))?;
            let refused = gpu.sleep(&Heap, &SleepOptions::new()).expect_err("a stream is captured");
            assert!(matches!(refused, Error::StreamMisuse { why: StreamMisuse::Capturing, .. }), "{refused}");
            assert_eq!(gpu.sleep_reading().state, SleepState::Awake);
            capture.gpu().submit(capture.stream(), |work| work.copy(&input, &mut output))?;
            Ok(output)
        })
        .expect("the capture goes on");
    graph.launch(&stream).expect("awake");
    assert_eq!(output.to_vec().expect("awake"), [5; LEN]);
    // A block that a graph leaves behind may be freed while it sleeps, and the graph and its memory go away too.
    gpu.sleep(&Heap, &SleepOptions::new()).expect("nothing keeps it awake");
    output.free_on(&stream).expect("frees are remembered");
    drop(graph);
    gpu.wake(&WakeOptions::new()).expect("room");
    drop((output, input));
    sim.assert_clean();
    drop(stream);
    gpu.close().expect("nothing is held");
    assert!(sim.leaks().leaks.is_empty(), "{}", sim.leaks());
}

/// Memory that no graph needs any more goes back at once, and what blocks keep of it with the last of those.
#[test]
fn z1_memory_that_is_released_goes_back_as_its_blocks_are_freed() {
    let sim = Sim::seeded(5);
    let gpu = pooled(&sim);
    let stream = gpu.streams().lease().expect("room");
    let memory = gpu.graph_memory().expect("room");
    let context = gpu.context();
    let (stream, before) = (stream.stream(), gpu.memory().bytes_outstanding());
    let allocate = |bytes| memory.allocate(bytes, 256, stream, tag!("blocks")).expect("captured");
    let capture = memory.capture_of_any().expect("nobody captures into it");
    assert!(memory.allocate(1, 256, stream, tag!("early")).is_err(), "the stream is not part of it yet");
    capture.enter(stream).expect("nobody captures it");
    let (kept, freed): (DeviceBlock, DeviceBlock) = (allocate(8 << 20), allocate(8 << 20));
    memory.deallocate(freed, stream).expect("its own");
    assert!(memory.release().is_err(), "a graph is being captured");
    drop(capture);
    let held = memory.held();
    assert_eq!(memory.release(), Ok(Bytes::mib(8)));
    assert_eq!(memory.held(), held.saturating_sub(Bytes::mib(8)));
    assert!(memory.capture_of(stream).is_err(), "it was released");
    memory.deallocate(kept, stream).expect("its own");
    assert_eq!(memory.held(), Bytes::ZERO);
    context.synchronize(stream).expect("the device works");
    gpu.memory().reap().expect("the device works");
    assert_eq!(gpu.memory().bytes_outstanding(), before);
    let other = gpu.graph_memory().expect("room");
    let (graph, ()) = other.capture(stream, |_| Ok::<(), Error>(())).expect("captured");
    assert!(other.release().is_err(), "the graph can still be launched");
    drop(graph);
    other.release().expect("no graph lives");
    sim.assert_clean();
}
