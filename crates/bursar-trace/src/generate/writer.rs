//! Writes a made trace, and draws the numbers for it.

use crate::{Event, EventKind, Trace};
use bursar_core::AllocTag;
use bursar_sim::Random;

/// A trace that is being made.
#[derive(Debug)]
pub(super) struct Writer {
    trace: Trace,
    pub(super) random: Random,
}

/// A block that is live in a trace that is being made: it is freed exactly once.
#[derive(Debug)]
pub(super) struct LiveBlock {
    event: Event,
}

impl LiveBlock {
    pub(super) const fn bytes(&self) -> u64 {
        self.event.bytes
    }

    pub(super) const fn stream(&self) -> u16 {
        self.event.stream
    }
}

impl Writer {
    /// Begins a trace called `name` of one thread and so many streams.
    pub(super) fn new(name: String, streams: u16, seed: u64) -> Self {
        let streams = (0..u64::from(streams)).collect();
        Self { trace: Trace { name, threads: vec![1], streams, ..Trace::default() }, random: Random::new(seed) }
    }

    /// Adds an allocation. A size of less than a byte is one.
    pub(super) fn allocate(&mut self, stream: u16, bytes: u64, tag: AllocTag) -> LiveBlock {
        let (block, bytes) = (self.trace.blocks, bytes.max(1));
        let event = Event { bytes, block, tag, thread: 0, stream, kind: EventKind::Allocate, device: 0 };
        self.trace.blocks += 1;
        self.trace.events.push(event);
        LiveBlock { event }
    }

    /// Adds the free of a block on a stream.
    pub(super) fn free(&mut self, stream: u16, block: LiveBlock) {
        self.trace.events.push(Event { kind: EventKind::Free, stream, ..block.event });
    }

    /// Adds the free of a block on its own stream.
    pub(super) fn free_own(&mut self, block: LiveBlock) {
        self.free(block.stream(), block);
    }

    /// Adds an allocation that is freed at once on its own stream.
    pub(super) fn pass(&mut self, stream: u16, bytes: u64, tag: AllocTag) {
        let block = self.allocate(stream, bytes, tag);
        self.free_own(block);
    }

    /// Returns a number from `least` to `most`.
    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.random.below(most - least + 1)
    }

    /// Returns one of `items`.
    pub(super) fn one_of<const N: usize>(&mut self, items: [u64; N]) -> u64 {
        items[self.random.index(N)]
    }

    /// Returns a number of a log-normal distribution with this median, whose logarithm has the deviation `sigma`, clamped.
    pub(super) fn lognormal(&mut self, median: u64, sigma: f64, least: u64, most: u64) -> u64 {
        let (radius, turn) = ((-2.0 * (1.0 - unit(&mut self.random)).ln()).sqrt(), unit(&mut self.random));
        let normal = radius * (turn * std::f64::consts::TAU).cos();
        ((median as f64 * (sigma * normal).exp()) as u64).clamp(least, most)
    }

    pub(super) fn finish(self) -> Trace {
        self.trace
    }
}

/// Returns a number from 0 to 1, without 1.
pub(super) fn unit(random: &mut Random) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}
