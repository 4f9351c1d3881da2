//! Every driver call of a sleep and a wake fails once while graphs live: they compute the same afterwards.

use super::sleep::sum;
use super::{LEN, pooled_over};
use bursar_conformance::sleep::{Heap, in_the_end, with_each_failure};
use bursar_core::{Bytes, SleepState, Status, tag};
use bursar_device::{SleepOptions, WakeOptions};
use bursar_sim::{Faults, Sim};
use std::sync::Arc;

/// Sleeps and wakes with a graph alive, after `arm`.
fn survives(seed: u64, arm: impl FnOnce(&Faults)) -> Arc<Faults> {
    let sim = Sim::seeded(seed);
    let faults = Faults::new(sim.clone());
    let gpu = pooled_over(faults.clone());
    let (stream, other) = (gpu.streams().lease().expect("room"), gpu.streams().lease().expect("room"));
    let input = gpu.buffer_from(&[5u32; LEN], &stream, tag!("input")).expect("room");
    let (graph, output) = sum(&gpu, &stream, &input).expect("captured");
    graph.launch(&other).expect("launched");
    faults.reset_counts();
    arm(&faults);
    let slept = gpu.sleep(&Heap, &SleepOptions::new());
    let state = gpu.sleep_reading().state;
    assert!(matches!(state, SleepState::Awake | SleepState::Asleep), "{state}");
    assert!(slept.is_err() || state == SleepState::Asleep);
    if state == SleepState::Asleep {
        assert!(graph.launch(&stream).is_err(), "a graph that sleeps is refused");
        // What fails is tried again below.
        drop(gpu.wake(&WakeOptions::new()));
    }
    faults.heal();
    in_the_end(|| gpu.wake(&WakeOptions::new()));
    in_the_end(|| gpu.memory().reap());
    assert_eq!(in_the_end(|| output.to_vec()), [6; LEN], "seed {seed}");
    in_the_end(|| graph.launch(&stream));
    assert_eq!(in_the_end(|| output.to_vec()), [6; LEN], "seed {seed}");
    drop((graph, output, input, stream, other));
    in_the_end(|| gpu.memory().reap());
    assert_eq!(gpu.memory().bytes_outstanding(), Bytes::ZERO);
    gpu.close().expect("nothing is held");
    sim.assert_clean();
    assert!(sim.leaks().leaks.is_empty(), "{}", sim.leaks());
    faults
}

#[test]
fn z7_a_failure_of_any_call_leaves_graphs_with_what_they_had() {
    let counted = survives(0, |_| {});
    let (kinds, _) = with_each_failure(&counted, 7, |call, nth| {
        survives(nth, |faults| faults.fail_nth(call, nth, Status::InvalidValue));
    });
    assert!(kinds >= 8, "{kinds} kinds of calls");
}
