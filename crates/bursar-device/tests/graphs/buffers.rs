//! Buffers of no elements and of zeros inside captures, and those from outside that end before their graph.

use super::{LEN, add_one, pooled};
use bursar_core::{Bytes, DeviceBlock, Error, Graph, Result, StreamMisuse, tag};
use bursar_device::{DeviceBuffer, Gpu, StreamLease};
use bursar_sim::Sim;

fn captured(gpu: &Gpu, stream: &StreamLease, input: &mut DeviceBuffer<u32>) -> Graph {
    let (graph, ()) = gpu.capture(stream, |capture| add_one(gpu, capture.stream(), input)).expect("captured");
    graph
}

#[test]
fn z1_a_buffer_of_no_elements_holds_nothing_in_a_capture_too() {
    let (sim, elsewhere) = (Sim::seeded(1), Sim::seeded(2));
    let (gpu, other) = (pooled(&sim), pooled(&elsewhere));
    let (stream, foreign) = (gpu.streams().lease().expect("room"), other.streams().lease().expect("room"));
    let (graph, kept) = gpu
        .capture(&stream, |capture| -> Result<_> {
            for gpu in [capture.gpu(), &gpu] {
                let mut freed = gpu.buffer::<u32>(0, capture.stream(), tag!("empty"))?;
                freed.free_on(capture.stream())?;
                gpu.submit(capture.stream(), |work| work.fill(&mut freed, 7))?;
                assert_eq!((freed.bytes(), freed.block().is_some()), (Bytes::ZERO, false));
                let refused = gpu.buffer::<u32>(0, *foreign, tag!("empty")).expect_err("not of this device");
                assert!(matches!(refused, Error::StreamMisuse { why: StreamMisuse::OtherContext, .. }), "{refused}");
                assert_eq!(freed.free_on(*foreign), Err(refused));
            }
            capture.gpu().zeros::<u32>(0, capture.stream(), tag!("kept"))
        })
        .expect("captured");
    assert_eq!(graph.memory().held(), Bytes::ZERO);
    graph.launch(&stream).expect("launched");
    assert_eq!((kept.to_vec(), gpu.deferred_frees()), (Ok(vec![]), 0));
    sim.assert_clean();
}

#[test]
fn z2_a_buffer_of_a_capture_is_freed_on_any_of_its_streams_and_on_none_of_another() {
    for (seed, on_side) in (0..32).map(|seed| (seed / 2, seed % 2 == 0)) {
        let sim = Sim::seeded(seed);
        let gpu = pooled(&sim);
        let [stream, side, other] = std::array::from_fn(|_| gpu.streams().lease().expect("room"));
        let mut outside = gpu.buffer::<u32>(LEN, &other, tag!("outside")).expect("room");
        let (graph, output) = gpu
            .capture(&stream, |capture| -> Result<_> {
                let gpu = capture.gpu();
                capture.order(&stream, &side)?;
                let (home, last) = if on_side { (&stream, &side) } else { (&side, &stream) };
                let mut scratch = gpu.buffer::<u32>(LEN, home, tag!("scratch"))?;
                gpu.submit(home, |work| work.fill(&mut scratch, 6))?;
                add_one(gpu, last, &mut scratch)?;
                let address = scratch.block().map(DeviceBlock::ptr);
                scratch.free_on(last)?;
                let refused = outside.free_on(last).expect_err("it is no part of the capture");
                assert!(matches!(refused, Error::StreamMisuse { why: StreamMisuse::Capturing, .. }), "{refused}");
                drop(scratch);
                assert_eq!(gpu.deferred_frees(), 0, "seed {seed}: the free is captured");
                capture.order(&side, &stream)?;
                capture.order(&stream, &side)?;
                let mut output = gpu.buffer::<u32>(LEN, last, tag!("output"))?;
                assert_eq!(output.block().map(DeviceBlock::ptr), address, "seed {seed}: what was freed is used again");
                gpu.submit(last, |work| work.fill(&mut output, 8))?;
                capture.order(&side, &stream)?;
                Ok(output)
            })
            .expect("captured");
        graph.launch(&stream).expect("launched");
        assert_eq!(output.to_vec().expect("read"), [8; LEN], "seed {seed}");
        drop((output, graph, outside));
        sim.assert_clean();
    }
}

#[test]
fn z1_zeros_in_a_capture_are_zero_at_each_launch_and_other_buffers_keep_what_they_held() {
    for seed in 0..16 {
        let sim = Sim::seeded(seed);
        let gpu = pooled(&sim);
        let stream = gpu.streams().lease().expect("room");
        let (graph, (zeros, mut plain)) = gpu
            .capture(&stream, |capture| -> Result<_> {
                let mut zeros = capture.gpu().zeros::<u32>(LEN, capture.stream(), tag!("zeros"))?;
                let mut plain = capture.gpu().buffer::<u32>(LEN, capture.stream(), tag!("plain"))?;
                add_one(capture.gpu(), capture.stream(), &mut zeros)?;
                add_one(capture.gpu(), capture.stream(), &mut plain)?;
                Ok((zeros, plain))
            })
            .expect("captured");
        plain.fill(10).expect("filled");
        for launches in 1..4 {
            graph.launch(&stream).expect("launched");
            assert_eq!(zeros.to_vec().expect("read"), [1; LEN], "seed {seed}");
            assert_eq!(plain.to_vec().expect("read"), [10 + launches; LEN], "seed {seed}");
        }
        drop((zeros, plain, graph));
        sim.assert_clean();
    }
}

/// The moments at which a buffer from outside can end before its graph.
#[derive(Clone, Copy, Debug)]
enum Dropped {
    /// In the capture, so that its free waits for the end of that.
    Captured,
    /// While its own stream is part of another capture, which is still under way when the graph is launched.
    CapturedElsewhere,
    Afterwards,
}

#[test]
fn z2_a_graph_whose_buffer_is_gone_is_refused_by_name_from_its_drop_on() {
    for (seed, dropped) in (0..16).zip([Dropped::Captured, Dropped::CapturedElsewhere, Dropped::Afterwards].repeat(6)) {
        let sim = Sim::seeded(seed);
        let gpu = pooled(&sim);
        let (stream, own) = (gpu.streams().lease().expect("room"), gpu.streams().lease().expect("room"));
        let mut input = gpu.buffer_from(&[5u32; LEN], &own, tag!("input")).expect("room");
        let refuses = |graph: &Graph| {
            for _ in 0..3 {
                let refused = graph.launch(&stream).expect_err("its input is gone");
                assert!(matches!(refused, Error::UseAfterFree { .. }), "seed {seed}, {dropped:?}: {refused}");
                assert!(refused.to_string().contains("input"), "{refused}");
            }
        };
        let graph = match dropped {
            Dropped::Captured => {
                let record = |capture: &bursar_device::GpuCapture<'_>| -> Result<()> {
                    capture.order(capture.stream(), &own)?;
                    add_one(capture.gpu(), &own, &mut input)?;
                    drop(input);
                    Ok(())
                };
                gpu.capture(&stream, record).expect("captured").0
            }
            Dropped::CapturedElsewhere => {
                let graph = captured(&gpu, &stream, &mut input);
                graph.launch(&stream).expect("launched");
                let elsewhere = gpu.capture(&own, |_| -> Result<()> {
                    drop(input);
                    refuses(&graph);
                    Ok(())
                });
                elsewhere.expect("captured");
                graph
            }
            Dropped::Afterwards => {
                let graph = captured(&gpu, &stream, &mut input);
                drop(input);
                graph
            }
        };
        refuses(&graph);
        // Whatever waited is freed by the next request, which changes nothing.
        drop(gpu.buffer::<u32>(LEN, &stream, tag!("next")).expect("room"));
        assert_eq!(gpu.deferred_frees(), 0);
        refuses(&graph);
        drop((graph, stream, own));
        sim.assert_clean();
        gpu.close().expect("nothing is held");
    }
}

#[test]
fn z2_a_launch_comes_after_the_uses_of_an_output_whose_free_waits() {
    for seed in 0..32 {
        let sim = Sim::seeded(seed);
        let gpu = pooled(&sim);
        let (stream, reader) = (gpu.streams().lease().expect("room"), gpu.streams().lease().expect("room"));
        let (graph, mut output) = gpu
            .capture(&stream, |capture| -> Result<_> {
                let mut output = capture.gpu().buffer::<u32>(LEN, capture.stream(), tag!("output"))?;
                capture.gpu().submit(capture.stream(), |work| work.fill(&mut output, 7))?;
                Ok(output)
            })
            .expect("captured");
        graph.launch(&stream).expect("launched");
        let mut copy = gpu.buffer::<u32>(LEN, &reader, tag!("copy")).expect("room");
        reader.submit(|work| work.copy(&output, &mut copy)).expect("submitted");
        let busy = gpu.streams().lease().expect("room");
        output.free_on(&busy).expect("not captured");
        let elsewhere = gpu.capture(&busy, |_| -> Result<()> {
            drop(output);
            assert_eq!(gpu.deferred_frees(), 1, "a captured stream takes no free");
            graph.launch(&stream)
        });
        elsewhere.expect("captured");
        assert_eq!(copy.to_vec().expect("read"), [7; LEN]);
        drop((copy, graph));
        sim.assert_clean();
    }
}
