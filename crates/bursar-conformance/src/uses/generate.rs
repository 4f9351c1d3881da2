//! Programs from seeds.

use super::Shape;
use super::step::{Act, Fault, How, Step};
use crate::program::random;
use bursar_sim::{Call, Random};

pub(super) fn steps(seed: u64, shape: Shape) -> Vec<Step> {
    let mut random = random(seed);
    (0..shape.steps).map(|_| step(&mut random, shape)).collect()
}

fn step(random: &mut Random, shape: Shape) -> Step {
    let act = act(random, shape);
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
        Fault { call, is_lost_answer: call.is_submission() && random.chance(2) }
    });
    Step { act, fault }
}

fn act(random: &mut Random, shape: Shape) -> Act {
    let (slot, stream) = (random.index(shape.slots), random.index(shape.streams));
    let value = random.next_u64() as u32;
    match random.below(100) {
        0..25 => Act::Write { slot, stream, value, how: how(random, shape) },
        25..35 if shape.mixed => Act::Update { slot, stream, value, second: random.chance(2) },
        35..48 if shape.copies => {
            let to = (slot + 1 + random.index(shape.slots - 1)) % shape.slots;
            Act::Copy { from: slot, to, stream, how: how(random, shape) }
        }
        48..70 => {
            let how = how(random, shape);
            Act::Read { slot, stream, how: if shape.mixed { how } else { How::Launched } }
        }
        70..74 if shape.mixed => {
            let reader = (stream + 1 + random.index(shape.streams - 1)) % shape.streams;
            Act::Overlap { slot, writer: stream, reader, value, reader_first: random.chance(2) }
        }
        74..96 => Act::Drop { slot, on: (shape.mixed && random.chance(4)).then_some(stream) },
        96..98 if shape.mixed => Act::Synchronize { stream },
        98..100 if shape.adopts => Act::End,
        _ => Act::Read { slot, stream, how: How::Launched },
    }
}

fn how(random: &mut Random, shape: Shape) -> How {
    match random.below(10) {
        0 if shape.mixed => How::Waited,
        1..4 => How::Submitted,
        _ => How::Launched,
    }
}
