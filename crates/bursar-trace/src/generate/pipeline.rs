//! Stages that hand blocks from stream to stream.

use super::writer::{LiveBlock, Writer};
use bursar_core::tag;
use std::collections::VecDeque;

/// A micro-batch on its way through the stages.
struct Batch {
    tokens: u64,
    /// The number of stages behind it.
    stage: u16,
    /// The output of the stage before.
    input: Option<LiveBlock>,
    /// The output of the first stage, for batches that the last stage needs it of.
    skipped: Option<LiveBlock>,
}

pub(super) fn write(writer: &mut Writer, stages: u16, rounds: u32) {
    let widths: Vec<u64> = (0..stages).map(|_| writer.one_of([2048, 4096, 5120, 8192])).collect();
    let mut started = 0;
    let mut batches: VecDeque<Batch> = VecDeque::new();
    while started < rounds || !batches.is_empty() {
        if started < rounds {
            started += 1;
            let tokens = writer.lognormal(1024, 0.6, 32, 16_384);
            batches.push_back(Batch { tokens, stage: 0, input: None, skipped: None });
        }
        // The oldest first: it is the furthest.
        for batch in &mut batches {
            advance(writer, batch, &widths);
        }
        while batches.front().is_some_and(|batch| batch.stage == stages) {
            batches.pop_front();
        }
    }
}

/// Runs a batch through its next stage, on the stage's stream. The stage frees what it was given.
fn advance(writer: &mut Writer, batch: &mut Batch, widths: &[u64]) {
    let (stage, last) = (batch.stage, batch.stage as usize + 1 == widths.len());
    let width = widths[usize::from(stage)];
    let workspace = writer.allocate(stage, batch.tokens * width * 4, tag!("workspace"));
    let output = writer.allocate(stage, batch.tokens * width * 2, tag!("handed on"));
    writer.pass(stage, batch.tokens * 256, tag!("statistics"));
    if stage == 0 && !last && writer.random.chance(4) {
        batch.skipped = Some(writer.allocate(stage, batch.tokens * width, tag!("skipped")));
    }
    writer.free(stage, workspace);
    if let Some(input) = batch.input.replace(output) {
        writer.free(stage, input);
    }
    if last {
        batch.input.take().into_iter().chain(batch.skipped.take()).for_each(|block| writer.free(stage, block));
    }
    batch.stage += 1;
}
