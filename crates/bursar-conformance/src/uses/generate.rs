//! Generates the steps of a program from a seed.

use super::UseShape;
use super::step::{Action, Fault, Method, Step};
use crate::program::rng::Rng;
use bursar_sim::Call;

pub(super) fn steps(seed: u64, shape: UseShape) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    (0..shape.steps).map(|_| step(&mut rng, shape)).collect()
}

fn step(rng: &mut Rng, shape: UseShape) -> Step {
    let action = action(rng, shape);
    let fault = (shape.faults && rng.chance(8)).then(|| {
        let calls = [
            Call::Fill,
            Call::CopyOnDevice,
            Call::CopyToHost,
            Call::EventCreate,
            Call::EventRecord,
            Call::StreamWait,
            Call::AllocateAsync,
            Call::StreamSynchronize,
        ];
        let call = calls[rng.index(calls.len())];
        Fault { call, is_lost_answer: call.is_submission() && rng.chance(2) }
    });
    Step { action, fault }
}

fn action(rng: &mut Rng, shape: UseShape) -> Action {
    let (slot, stream) = (rng.index(shape.slots), rng.index(shape.streams));
    let value = rng.next() as u32;
    match rng.below(100) {
        0..25 => Action::Write { slot, stream, value, method: method(rng, shape) },
        25..35 if shape.mixed => Action::Update { slot, stream, value, second: rng.chance(2) },
        35..48 if shape.copies => {
            let to = (slot + 1 + rng.index(shape.slots - 1)) % shape.slots;
            Action::Copy { from: slot, to, stream, method: method(rng, shape) }
        }
        48..70 => {
            let method = method(rng, shape);
            Action::Read { slot, stream, method: if shape.mixed { method } else { Method::Launched } }
        }
        70..74 if shape.mixed => {
            let reader = (stream + 1 + rng.index(shape.streams - 1)) % shape.streams;
            Action::Overlap { slot, writer: stream, reader, value, reader_first: rng.chance(2) }
        }
        74..96 => Action::Drop { slot, on: (shape.mixed && rng.chance(4)).then_some(stream) },
        96..98 if shape.mixed => Action::Synchronize { stream },
        98..100 if shape.adopts => Action::End,
        _ => Action::Read { slot, stream, method: Method::Launched },
    }
}

fn method(rng: &mut Rng, shape: UseShape) -> Method {
    match rng.below(10) {
        0 if shape.mixed => Method::Waited,
        1..4 => Method::Submitted,
        _ => Method::Launched,
    }
}
