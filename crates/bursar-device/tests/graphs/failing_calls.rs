//! Calls of the driver that fail while graphs are captured, launched and destroyed: nothing is concluded from them.

use super::left_behind::sevens;
use super::{LEN, add_one, pooled_over};
use bursar_core::{Bytes, Error, Result, Status, StreamMisuse, tag};
use bursar_device::{Gpu, StreamLease};
use bursar_sim::{Call, Faults, LeakKind, Sim};
use std::sync::Arc;
use std::time::Duration;

/// A device whose driver can be made to fail, with three streams.
fn rig(seed: u64) -> (Arc<Sim>, Arc<Faults>, Gpu, [StreamLease; 3]) {
    let sim = Sim::seeded(seed);
    let faults = Faults::new(sim.clone());
    let gpu = pooled_over(faults.clone());
    let streams = [(); 3].map(|()| gpu.streams().lease().expect("room"));
    (sim, faults, gpu, streams)
}

/// Gives everything back, and finds nothing wrong.
fn finish(sim: &Sim, gpu: Gpu, streams: [StreamLease; 3]) {
    drop(streams);
    assert_eq!(gpu.still_held(Duration::from_secs(5)), None);
    gpu.close().expect("nothing is held");
    sim.assert_clean();
    assert!(sim.leaks().leaks.is_empty(), "{}", sim.leaks());
}

/// Work on a stream that was to become part of a capture, and did not, is ordinary work: it is ordered, and runs once.
#[test]
fn z3_a_stream_whose_order_failed_is_no_part_of_the_capture() {
    for (seed, call) in (0..48).map(|seed| (seed, [Call::EventCreate, Call::EventRecord, Call::StreamWait][seed % 3])) {
        let (sim, faults, gpu, streams) = rig(seed as u64);
        let [main, side, other] = &streams;
        let captured = gpu.capture(main, |capture| -> Result<()> {
            faults.fail_next(call, Status::NotSupported);
            capture.order(main, side).expect_err("the driver fails");
            assert!(!gpu.context().is_captured_with(main, side), "{call}");
            let mut ordinary = gpu.zeros::<u32>(LEN, other, tag!("ordinary"))?;
            add_one(&gpu, side, &mut ordinary)?;
            add_one(&gpu, other, &mut ordinary)?;
            assert_eq!(ordinary.to_vec()?, [2; LEN]);
            let refused = capture.gpu().buffer::<u32>(LEN, side, tag!("inside"));
            let why = StreamMisuse::NotCaptured;
            assert!(matches!(refused, Err(Error::StreamMisuse { why: found, .. }) if found == why), "{call}");
            Ok(())
        });
        captured.expect("the capture goes on").0.launch(side).expect("launched");
        finish(&sim, gpu, streams);
    }
}

/// Where the driver fails to say what became of a stream, the stream is refused by name until it does.
#[test]
fn z3_a_stream_that_may_be_captured_is_refused_until_the_driver_says() {
    for is_carried_out in [false, true] {
        let (sim, faults, gpu, streams) = rig(1);
        let [main, side, _] = &streams;
        let mut ordinary = gpu.zeros::<u32>(LEN, side, tag!("ordinary")).expect("room");
        let captured = gpu.capture(main, |capture| -> Result<()> {
            match is_carried_out {
                true => faults.lose_nth_result(Call::StreamWait, 1, Status::NotSupported),
                false => faults.fail_next(Call::StreamWait, Status::NotSupported),
            }
            faults.fail_always(Call::StreamIsCapturing, Status::NotSupported);
            capture.order(main, side).expect_err("the driver fails");
            add_one(&gpu, side, &mut ordinary).expect_err("it may be captured");
            faults.heal();
            match is_carried_out {
                true => drop(capture.gpu().buffer::<u32>(LEN, side, tag!("inside"))?),
                false => add_one(&gpu, side, &mut ordinary)?,
            }
            assert_eq!(gpu.context().is_captured_with(main, side), is_carried_out);
            Ok(())
        });
        drop(captured.expect("captured"));
        assert_eq!(ordinary.to_vec().expect("read"), [u32::from(!is_carried_out); LEN]);
        drop(ordinary);
        finish(&sim, gpu, streams);
    }
}

/// A launch that the driver recorded nothing after, and could not wait for, still comes before the next one on another stream.
#[test]
fn z2_a_launch_that_nothing_was_recorded_after_comes_before_the_next() {
    for seed in 0..32 {
        let (sim, faults, gpu, streams) = rig(seed);
        let [main, side, other] = &streams;
        let memory = gpu.graph_memory().expect("room");
        let (graph, output) = sevens(&gpu, &memory, main).expect("captured");
        faults.fail_next(Call::EventRecord, Status::NotSupported);
        faults.fail_next(Call::StreamSynchronize, Status::NotSupported);
        graph.launch(main).expect_err("nothing was recorded");
        graph.launch(side).expect("launched");
        let mut copy = gpu.buffer::<u32>(LEN, other, tag!("copy")).expect("room");
        other.submit(|work| work.copy(&output, &mut copy)).expect("submitted");
        assert_eq!(copy.to_vec().expect("read"), [7; LEN]);
        drop((copy, output, graph, memory));
        finish(&sim, gpu, streams);
    }
}

/// The memory of graphs whose last launch could not be waited for goes back once it can.
#[test]
fn r6_memory_of_graphs_that_could_not_be_given_back_is_given_back_later() {
    for seed in 0..16 {
        let (sim, faults, gpu, streams) = rig(seed);
        let memory = gpu.graph_memory().expect("room");
        let (graph, output) = sevens(&gpu, &memory, &streams[0]).expect("captured");
        graph.launch(&streams[0]).expect("launched");
        drop(output);
        for call in [Call::EventRecord, Call::StreamWait, Call::EventSynchronize, Call::StreamSynchronize] {
            faults.fail_always(call, Status::NotSupported);
        }
        graph.launch(&streams[1]).expect_err("the driver fails");
        drop((graph, memory));
        assert!(gpu.memory().bytes_outstanding() > Bytes::ZERO, "nobody knows whether the launch is over");
        gpu.memory().reap().expect_err("the device says so");
        faults.heal();
        finish(&sim, gpu, streams);
    }
}

#[test]
fn r6_a_graph_that_could_not_be_destroyed_is_destroyed_later() {
    let (sim, faults, gpu, streams) = rig(0);
    for call in [Call::GraphDestroy, Call::GraphExecDestroy] {
        faults.fail_always(call, Status::NotSupported);
    }
    let (graph, ()) = gpu.capture(&streams[0], |_| -> Result<()> { Ok(()) }).expect("captured");
    drop(graph);
    let graphs =
        || sim.leaks().leaks.iter().filter(|leak| leak.kind == LeakKind::Graph).map(|leak| leak.count).sum::<u64>();
    assert_eq!(graphs(), 2, "{}", sim.leaks());
    faults.heal();
    gpu.context().trim();
    assert_eq!(graphs(), 0, "{}", sim.leaks());
    finish(&sim, gpu, streams);
}

/// A buffer that another graph of the same memory left behind is none of a graph's own: once it is gone, so is the graph.
#[test]
fn z2_a_graph_that_uses_what_another_left_behind_is_refused_once_that_is_gone() {
    let (sim, _faults, gpu, streams) = rig(0);
    let memory = gpu.graph_memory().expect("room");
    let (first, mut output) = sevens(&gpu, &memory, &streams[0]).expect("captured");
    first.launch(&streams[0]).expect("launched");
    let captured = gpu.capture_into(&memory, &streams[0], |capture| add_one(capture.gpu(), &streams[0], &mut output));
    let (second, ()) = captured.expect("captured");
    second.launch(&streams[1]).expect("launched");
    assert_eq!(output.to_vec().expect("read"), [8; LEN]);
    drop(output);
    assert!(matches!(second.launch(&streams[1]), Err(Error::UseAfterFree { .. })));
    first.launch(&streams[1]).expect("its own buffer may be gone");
    drop((first, second, memory));
    finish(&sim, gpu, streams);
}
