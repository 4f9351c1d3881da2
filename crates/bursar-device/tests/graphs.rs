//! Clauses Z1 to Z4: memory inside graphs, from the side of those who capture with buffers and work.
#![allow(unsafe_code)]

#[path = "graphs/broken.rs"]
mod broken;
#[path = "graphs/buffers.rs"]
mod buffers;
#[path = "graphs/failing_calls.rs"]
mod failing_calls;
#[path = "graphs/faulty_programs.rs"]
mod faulty_programs;
#[path = "graphs/first_uses.rs"]
mod first_uses;
#[path = "graphs/left_behind.rs"]
mod left_behind;
#[path = "graphs/outside.rs"]
mod outside;
#[path = "graphs/programs.rs"]
mod programs;
#[path = "graphs/questions.rs"]
mod questions;
#[path = "graphs/sleep.rs"]
mod sleep;
#[path = "graphs/sleep_faults.rs"]
mod sleep_faults;
#[path = "graphs/sleep_programs.rs"]
mod sleep_programs;
#[path = "graphs/tags.rs"]
mod tags;

use bursar_core::{Bytes, DeviceId, Driver, Result, Stack, leaf, tag};
use bursar_device::{DeviceBuffer, Gpu};
use bursar_memory::{GlobalDeviceBudget, PagePool};
use bursar_sim::Sim;
use std::sync::Arc;

const LEN: usize = 1000;

fn pooled(sim: &Arc<Sim>) -> Gpu {
    pooled_over(sim.clone())
}

fn pooled_over(driver: Arc<dyn Driver>) -> Gpu {
    let stack = Stack::new().layer(PagePool::default()).layer(GlobalDeviceBudget::of(Bytes::mib(64)));
    Gpu::open(driver, DeviceId(0), &stack.over(leaf::Frames)).expect("a simulated device opens")
}

/// Adds one to every element.
fn add_one(gpu: &Gpu, stream: impl Into<bursar_core::Stream>, buffer: &mut DeviceBuffer<u32>) -> Result<()> {
    gpu.submit(stream, |work| {
        let kernel = work.kernel("add one").writes(buffer).simulated(|memory, [buffer]| {
            let sums: Vec<u32> = memory.read::<u32>(buffer).iter().map(|x| x + 1).collect();
            memory.write(buffer, &sums);
        });
        kernel.launch(|_, _| Ok(()))
    })
}

#[test]
fn z2_buffers_of_side_streams_end_with_the_closure_after_the_join_or_without_one() {
    for (seed, is_joined) in (0..32).map(|seed| (seed / 2, seed % 2 == 0)) {
        let sim = Sim::seeded(seed);
        let gpu = pooled(&sim);
        let (stream, side) = (gpu.streams().lease().expect("room"), gpu.streams().lease().expect("room"));
        let captured = gpu.capture(&stream, |capture| -> Result<_> {
            let gpu = capture.gpu();
            capture.order(capture.stream(), &side)?;
            let mut scratch = gpu.buffer::<u32>(LEN, &side, tag!("scratch"))?;
            let mut output = gpu.buffer::<u32>(LEN, &side, tag!("output"))?;
            gpu.submit(&side, |work| work.fill(&mut scratch, 6))?;
            gpu.submit(&side, |work| work.copy(&scratch, &mut output))?;
            if is_joined {
                capture.order(&side, capture.stream())?;
            }
            Ok(output)
        });
        let (graph, output) = captured.unwrap_or_else(|error| panic!("seed {seed}, joined {is_joined}: {error}"));
        graph.launch(&stream).expect("launched");
        assert_eq!(output.to_vec().expect("read"), [6; LEN]);
        drop((output, graph));
        sim.check().expect("no hazard");
    }
}

#[test]
fn z1_a_graph_computes_the_same_at_the_same_addresses_in_every_launch() {
    for seed in 0..16 {
        let sim = Sim::seeded(seed);
        let gpu = pooled(&sim);
        let (stream, other) = (gpu.streams().lease().expect("room"), gpu.streams().lease().expect("room"));
        let input = gpu.buffer_from(&[5u32; LEN], &stream, tag!("input")).expect("room");
        let (graph, output) = gpu
            .capture(&stream, |capture| -> Result<_> {
                let gpu = capture.gpu();
                let mut scratch = gpu.buffer::<u32>(LEN, capture.stream(), tag!("scratch"))?;
                gpu.submit(capture.stream(), |work| work.copy(&input, &mut scratch))?;
                add_one(gpu, capture.stream(), &mut scratch)?;
                let mut output = gpu.buffer::<u32>(LEN, capture.stream(), tag!("output"))?;
                gpu.submit(capture.stream(), |work| work.copy(&scratch, &mut output))?;
                Ok(output)
            })
            .expect("captured");
        let address = output.ptr();
        for round in 0..5u32 {
            // Ordinary memory comes and goes on another stream meanwhile.
            let mut noise = gpu.buffer::<u32>(LEN * (round as usize + 1), &other, tag!("noise")).expect("room");
            other.submit(|work| work.fill(&mut noise, 9)).expect("submitted");
            graph.launch(if round % 2 == 0 { stream.stream() } else { other.stream() }).expect("launched");
            assert_eq!(output.ptr(), address);
            assert_eq!(output.to_vec().expect("read"), [6; LEN]);
        }
        assert_eq!(graph.memory().held(), Bytes::kib(64));
        drop((output, graph, input));
        sim.assert_clean();
        drop((stream, other));
        gpu.close().expect("nothing is held");
        assert!(sim.leaks().leaks.is_empty(), "{}", sim.leaks());
    }
}
