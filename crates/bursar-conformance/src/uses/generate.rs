//! Programs from seeds.

use super::Shape;
use super::step::{Act, Fault, How, Step};
use crate::program::rng::Rng;
use bursar_sim::Call;

pub(super) fn steps(seed: u64, shape: Shape) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    (0..shape.steps).map(|_| step(&mut rng, shape)).collect()
}

fn step(rng: &mut Rng, shape: Shape) -> Step {
    let act = act(rng, shape);
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
    Step { act, fault }
}

fn act(rng: &mut Rng, shape: Shape) -> Act {
    let (slot, stream) = (rng.index(shape.slots), rng.index(shape.streams));
    let value = rng.next() as u32;
    match rng.below(100) {
        0..25 => Act::Write { slot, stream, value, how: how(rng, shape) },
        25..35 if shape.mixed => Act::Update { slot, stream, value, second: rng.chance(2) },
        35..48 if shape.copies => {
            let to = (slot + 1 + rng.index(shape.slots - 1)) % shape.slots;
            Act::Copy { from: slot, to, stream, how: how(rng, shape) }
        }
        48..70 => {
            let how = how(rng, shape);
            Act::Read { slot, stream, how: if shape.mixed { how } else { How::Launched } }
        }
        70..74 if shape.mixed => {
            let reader = (stream + 1 + rng.index(shape.streams - 1)) % shape.streams;
            Act::Overlap { slot, writer: stream, reader, value, reader_first: rng.chance(2) }
        }
        74..96 => Act::Drop { slot, on: (shape.mixed && rng.chance(4)).then_some(stream) },
        96..98 if shape.mixed => Act::Synchronize { stream },
        98..100 if shape.adopts => Act::End,
        _ => Act::Read { slot, stream, how: How::Launched },
    }
}

fn how(rng: &mut Rng, shape: Shape) -> How {
    match rng.below(10) {
        0 if shape.mixed => How::Waited,
        1..4 => How::Submitted,
        _ => How::Launched,
    }
}
