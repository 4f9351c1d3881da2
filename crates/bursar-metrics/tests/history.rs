//! A history against a model that keeps everything.
#![forbid(unsafe_code)]

use bursar_metrics::{DeviceState, History, LedgerState, ProcessState, State, Thinning, UnreadableLedger};
use bursar_sim::Random;
use std::time::Duration;

const UUID: &str = "GPU-1";

fn state(at_ms: u64, device: DeviceState) -> State {
    let mut state = State::default();
    state.at_ms = at_ms;
    state.devices.push(device);
    state
}

fn readable(held: u64) -> DeviceState {
    let process =
        |pid| ProcessState { pid, name: format!("p{pid}"), held: held / u64::from(pid), ..Default::default() };
    let processes = (1..40).map(process).collect();
    DeviceState::Readable(LedgerState { uuid: UUID.into(), held, total: 1 << 40, processes, ..LedgerState::default() })
}

fn unreadable() -> DeviceState {
    DeviceState::Unreadable(UnreadableLedger { uuid: UUID.into(), ..UnreadableLedger::default() })
}

/// Returns the fullest of what was recorded in each step of a ring that ends at the last moment.
fn model(recorded: &[(u64, Option<u64>)], step_ms: u64, count: u64) -> Vec<(u64, Option<u64>)> {
    let last = recorded.last().expect("something was recorded").0 / step_ms;
    let mut kept: Vec<(u64, Option<u64>)> = Vec::new();
    for &(at, held) in recorded.iter().filter(|(at, _)| at / step_ms + count > last) {
        match kept.last_mut() {
            Some(before) if before.0 / step_ms == at / step_ms => {
                if held > before.1 {
                    *before = (at, held);
                }
            }
            _ => kept.push((at, held)),
        }
    }
    kept
}

#[test]
fn m1_history_keeps_whole_samples_and_every_peak() {
    const RINGS: [(u64, u64); 3] = [(1_000, 20), (5_000, 12), (30_000, 10)];
    let thinning = Thinning::new(&RINGS.map(|(step, count)| (Duration::from_millis(step), count as usize)));
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let (mut history, mut recorded, mut at) = (History::new(thinning.clone()), Vec::new(), 1_700_000_000_000);
        for _ in 0..random.below(800) + 1 {
            at += random.below(2_500);
            let held = (random.below(10) > 0).then(|| random.below(1 << 20));
            history.record(&state(at, held.map_or_else(unreadable, readable)));
            recorded.push((at, held));
        }
        let device = history.device(UUID).expect("it was recorded");
        let found: Vec<_> = device.samples().map(|sample| (sample.at_ms, sample.figures.map(|f| f.held))).collect();
        let mut expected: Vec<(u64, Option<u64>)> = Vec::new();
        for (step, count) in RINGS {
            let begins = expected.first().map_or(u64::MAX, |first| first.0);
            let mut older = model(&recorded, step, count);
            older.retain(|(at, _)| *at < begins);
            expected.splice(..0, older);
        }
        assert_eq!(found, expected, "seed {seed}");
        assert!(found.len() <= thinning.samples_max(), "seed {seed}");
        for sample in device.samples().filter(|sample| sample.figures.is_some_and(|figures| figures.held > 100)) {
            assert_eq!(sample.processes.len(), 16, "the largest are kept");
            assert!(sample.processes.is_sorted_by_key(|share| std::cmp::Reverse(share.bytes)), "the largest first");
        }
    }
}

#[test]
fn a_clock_that_is_set_back_loses_what_came_after_and_goes_on() {
    let mut history = History::default();
    for at in [10_000, 20_000, 30_000, 12_000, 13_000] {
        history.record(&state(at, readable(at)));
    }
    let found: Vec<_> = history.devices()[0].samples().map(|sample| sample.at_ms).collect();
    assert_eq!(found, [10_000, 12_000, 13_000]);
}

#[test]
fn devices_come_and_go_and_their_number_is_bounded() {
    let mut history = History::default();
    for at in 1..=200_u64 {
        let ledger = LedgerState { uuid: format!("GPU-{at}"), ..LedgerState::default() };
        history.record(&state(at * 1000, DeviceState::Readable(ledger)));
    }
    assert_eq!(history.devices().len(), 64);
    assert!(history.device("GPU-200").is_some() && history.device("GPU-1").is_none(), "the latest stay");
}
