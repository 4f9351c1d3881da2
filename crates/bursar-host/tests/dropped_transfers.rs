//! T7: pinned memory of a transfer that was dropped during a capture keeps neither itself nor the device alive.
#![allow(unsafe_code)]

use bursar::driver::Driver;
use bursar::host::{NumaWorkerPool, PinnedOptions};
use bursar::prelude::*;
use bursar::sim::{Random, Sim};
use std::time::Duration;

const GPU0: DeviceId = DeviceId(0);
const LEN: usize = 4096;

/// The steps of a program that only shuts down.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    DropTransfer,
    EndCapture,
    Reap,
    DropPool,
    EndAdoption,
    CloseGpu,
}

const STEPS: [Step; 6] =
    [Step::DropTransfer, Step::EndCapture, Step::Reap, Step::DropPool, Step::EndAdoption, Step::CloseGpu];

/// Returns whether the adoption, the pool or the handle ends after the transfer and the capture.
fn has_last_holder(steps: &[Step]) -> bool {
    let at = |wanted| steps.iter().position(|step| *step == wanted);
    let holders = at(Step::CloseGpu).max(at(Step::DropPool)).max(at(Step::EndAdoption));
    holders > at(Step::DropTransfer).max(at(Step::EndCapture))
}

#[test]
fn t7_pinned_memory_dropped_during_a_capture_is_freed_by_a_program_that_only_shuts_down() {
    for seed in 0..300 {
        let (sim, mut random) = (Sim::seeded(seed), Random::new(seed));
        let mut steps = STEPS;
        for at in (1..steps.len()).rev() {
            steps.swap(at, random.below(at as u64 + 1) as usize);
        }
        if has_last_holder(&steps) {
            run(&sim, seed, &steps);
        }
        sim.assert_clean();
        assert!(sim.leaks().is_empty(), "seed {seed}, {steps:?}: {}", sim.leaks());
    }
}

fn run(sim: &std::sync::Arc<Sim>, seed: u64, steps: &[Step]) {
    let raw = sim.stream_create(GPU0, 0).expect("room");
    let gpu = Gpu::open(sim.clone(), GPU0, &Stack::new().over(leaf::Direct)).expect("a simulated device opens");
    let workers = NumaWorkerPool::here().expect("a machine");
    // SAFETY: the stream outlives the adoption.
    let mut adopted = Some(unsafe { gpu.context().adopt_stream(raw) }.expect("room"));
    let mut pool = Some(PinnedPool::new(&workers, &gpu, PinnedOptions::default()));
    let stream = adopted.as_ref().map(|adopted| adopted.stream()).expect("adopted just now");
    let mut buffer = gpu.zeros::<u8>(LEN, stream, tag!("captured")).expect("room");
    let memory = pool.as_ref().expect("made just now").get(LEN).expect("room");
    let mut transfer = Some(gpu.submit(stream, |work| work.copy_from_host(&mut buffer, memory)).expect("submitted"));
    drop(buffer);
    let mut gpu = Some(gpu);
    sim.begin_capture(GPU0, raw).expect("live");
    let mut is_captured = true;
    for step in steps {
        match step {
            Step::DropTransfer => drop(transfer.take()),
            Step::EndCapture => {
                sim.end_capture(GPU0, raw).expect("nothing has spoilt the capture");
                is_captured = false;
            }
            Step::Reap => gpu.iter().for_each(|gpu| {
                let reaped = gpu.memory().reap_blocking(Duration::MAX);
                assert!(reaped.is_ok() || is_captured, "seed {seed}: {reaped:?}");
            }),
            Step::DropPool => drop(pool.take()),
            Step::EndAdoption => drop(adopted.take()),
            Step::CloseGpu => drop(gpu.take()),
        }
    }
    drop(workers);
    // SAFETY: it was made here and its adoption has ended.
    unsafe { sim.stream_destroy(GPU0, raw) }.expect("alive");
}
