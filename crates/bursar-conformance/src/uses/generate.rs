//! Generates the steps of a program from a seed.

use super::UseShape;
use super::step::{Fault, Method, Step, UseAction};
use crate::program::random;
use bursar_sim::{Call, Random};

pub(super) fn steps(seed: u64, shape: UseShape) -> Vec<Step> {
    let mut random = random(seed);
    (0..shape.steps).map(|_| step(&mut random, shape)).collect()
}

fn step(random: &mut Random, shape: UseShape) -> Step {
    let action = action(random, shape);
    let fault = (shape.faults && random.chance(8)).then(|| {
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
        let call = calls[random.index(calls.len())];
        Fault { call, is_result_lost: call.is_submission() && random.chance(2) }
    });
    Step { action, fault }
}

fn action(random: &mut Random, shape: UseShape) -> UseAction {
    let (slot, stream) = (random.index(shape.slots), random.index(shape.streams));
    let value = random.next_u64() as u32;
    match random.below(100) {
        0..25 => UseAction::Write { slot, stream, value, method: method(random, shape) },
        25..35 if shape.mixed => UseAction::Update { slot, stream, value, second: random.chance(2) },
        35..48 if shape.copies => {
            let to = (slot + 1 + random.index(shape.slots - 1)) % shape.slots;
            UseAction::Copy { from: slot, to, stream, method: method(random, shape) }
        }
        48..70 => {
            let method = method(random, shape);
            UseAction::Read { slot, stream, method: if shape.mixed { method } else { Method::Launched } }
        }
        70..74 if shape.mixed => {
            let reader = (stream + 1 + random.index(shape.streams - 1)) % shape.streams;
            UseAction::Overlap { slot, writer: stream, reader, value, reader_first: random.chance(2) }
        }
        74..96 => UseAction::Drop { slot, on: (shape.mixed && random.chance(4)).then_some(stream) },
        96..98 if shape.mixed => UseAction::Synchronize { stream },
        98..100 if shape.adopts => UseAction::End,
        _ => UseAction::Read { slot, stream, method: Method::Launched },
    }
}

fn method(random: &mut Random, shape: UseShape) -> Method {
    match random.below(10) {
        0 if shape.mixed => Method::Waited,
        1..4 => Method::Submitted,
        _ => Method::Launched,
    }
}
