//! Training: forward and backward passes over ragged batches.

use super::writer::{LiveBlock, Writer};
use bursar_core::tag;

/// The bytes of a value, and the sequences of a batch.
const VALUE: u64 = 2;
const BATCH: u64 = 8;

/// A transformer, and its tensors that last.
struct Model {
    hidden: u64,
    layers: usize,
    weights: Vec<LiveBlock>,
    /// The two moments of each weight, from the first step on.
    moments: Vec<LiveBlock>,
}

const WEIGHTS_PER_LAYER: usize = 4;

pub(super) fn write(writer: &mut Writer, streams: u16, rounds: u32) {
    let mut model = Model::new(writer);
    for step in 0..rounds {
        // Batches are ragged, and now and then one is evaluated and not trained on.
        let sequence = 32 * writer.between(3, 24);
        if step % 8 == 7 {
            model.evaluate(writer, 2 * sequence);
        } else {
            model.train(writer, sequence, streams);
        }
    }
    let Model { weights, moments, .. } = model;
    weights.into_iter().chain(moments).for_each(|block| writer.free_own(block));
}

impl Model {
    fn new(writer: &mut Writer) -> Self {
        let (hidden, layers) = (writer.one_of([768, 1024, 1536]), writer.between(8, 24) as usize);
        let square = hidden * hidden * VALUE;
        let sizes = [3 * square, square, 4 * square, 4 * square];
        let weights = (0..layers).flat_map(|_| sizes).collect::<Vec<_>>();
        let weights = weights.into_iter().map(|bytes| writer.allocate(0, bytes, tag!("weights"))).collect();
        Self { hidden, layers, weights, moments: Vec::new() }
    }

    /// Returns the sizes of what a layer keeps for its backward pass: norm, projections, attention, feed-forward, mask.
    fn kept_sizes(&self, sequence: u64) -> [u64; 5] {
        let (tokens, heads) = (BATCH * sequence, self.hidden / 64);
        let row = tokens * self.hidden * VALUE;
        [row, 3 * row, BATCH * heads * sequence * sequence * VALUE, 4 * row, tokens * self.hidden]
    }

    fn forward(&self, writer: &mut Writer, sequence: u64) -> Vec<LiveBlock> {
        let row = BATCH * sequence * self.hidden * VALUE;
        let sizes = self.kept_sizes(sequence);
        let kept = sizes.map(|bytes| {
            let kept = writer.allocate(0, bytes, tag!("activations"));
            writer.pass(0, row, tag!("temporary"));
            kept
        });
        kept.into()
    }

    /// Runs a step: the gradients of a layer are reduced on another stream while the next layer goes on, and freed there.
    fn train(&mut self, writer: &mut Writer, sequence: u64, streams: u16) {
        let (tokens, row) = (BATCH * sequence, BATCH * sequence * self.hidden * VALUE);
        let kept: Vec<_> = (0..self.layers).map(|_| self.forward(writer, sequence)).collect();
        writer.pass(0, tokens * 32_000 * VALUE, tag!("logits"));
        let mut gradients = Vec::new();
        let mut passed = writer.allocate(0, row, tag!("gradient passed on"));
        for (layer, kept) in kept.into_iter().enumerate().rev() {
            for (index, block) in kept.into_iter().enumerate().rev() {
                writer.pass(0, block.bytes(), tag!("temporary"));
                if let Some(weight) =
                    self.weights.get(layer * WEIGHTS_PER_LAYER + index).filter(|_| index < WEIGHTS_PER_LAYER)
                {
                    let bytes = weight.bytes();
                    gradients.push(writer.allocate(0, bytes, tag!("gradients")));
                }
                writer.free_own(block);
            }
            let next = writer.allocate(0, row, tag!("gradient passed on"));
            writer.free_own(std::mem::replace(&mut passed, next));
            let reducing = 1 % streams;
            writer.pass(reducing, self.hidden * self.hidden * VALUE, tag!("reduction"));
        }
        writer.free_own(passed);
        if self.moments.is_empty() {
            let sizes: Vec<u64> = self.weights.iter().flat_map(|weight| [2 * weight.bytes(); 2]).collect();
            self.moments = sizes.into_iter().map(|bytes| writer.allocate(0, bytes, tag!("moments"))).collect();
        }
        gradients.into_iter().for_each(|gradient| writer.free(1 % streams, gradient));
    }

    /// Runs a forward pass that keeps nothing.
    fn evaluate(&self, writer: &mut Writer, sequence: u64) {
        for _ in 0..self.layers {
            let kept = self.forward(writer, sequence);
            kept.into_iter().for_each(|block| writer.free_own(block));
        }
        writer.pass(0, BATCH * sequence * 32_000 * VALUE, tag!("logits"));
    }
}
