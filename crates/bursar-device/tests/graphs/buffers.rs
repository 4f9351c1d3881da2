//! Buffers of no elements and of zeros inside captures.

use super::{LEN, add_one, pooled};
use bursar_core::{Bytes, Error, Result, StreamMisuse, tag};
use bursar_sim::Sim;

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
