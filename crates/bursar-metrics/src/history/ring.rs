//! Rings of samples with growing steps.

use super::DeviceSample;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The way in which a history is thinned with age: rings, each with a step and a number of steps.
///
/// By default one sample is kept for each second of the last 10 minutes, for every 10 seconds of the last 2 hours, for
/// every minute of the last day and for every 10 minutes of the last week: at most 3,768 samples of a device.
///
/// ```
/// use bursar::metrics::Thinning;
/// use std::time::Duration;
///
/// let minute = Thinning::new(&[(Duration::from_secs(1), 60)]);
/// assert_eq!((minute.samples_max(), minute.reach()), (60, Duration::from_secs(60)));
/// assert_eq!(Thinning::default().reach(), Duration::from_secs(7 * 86_400));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thinning {
    steps: Vec<(u64, usize)>,
}

impl Default for Thinning {
    fn default() -> Self {
        let steps = [(1, 600), (10, 720), (60, 1440), (600, 1008)];
        Self::new(&steps.map(|(step, count)| (Duration::from_secs(step), count)))
    }
}

impl Thinning {
    /// Returns rings of so long steps and so many of them, the finest first. Steps are at least a millisecond, and a ring
    /// has at least one.
    pub fn new(rings: &[(Duration, usize)]) -> Self {
        let step = |step: Duration| u64::try_from(step.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut steps: Vec<_> = rings.iter().map(|&(length, count)| (step(length), count.max(1))).collect();
        if steps.is_empty() {
            steps.push((1000, 1));
        }
        steps.sort_unstable();
        Self { steps }
    }

    /// Returns the most samples that are kept of a device.
    pub fn samples_max(&self) -> usize {
        self.steps.iter().map(|(_, count)| count).sum()
    }

    /// Returns how far back the coarsest ring reaches.
    pub fn reach(&self) -> Duration {
        let reach = |&(step, count): &(u64, usize)| step.saturating_mul(count as u64);
        Duration::from_millis(self.steps.iter().map(reach).max().unwrap_or(0))
    }
}

/// The rings of one device, the finest first. A sample is in several of them, and stored once.
#[derive(Clone, Debug)]
pub(super) struct Rings(Vec<Ring>);

#[derive(Clone, Debug)]
struct Ring {
    step_ms: u64,
    count: usize,
    samples: VecDeque<Arc<DeviceSample>>,
}

impl Rings {
    pub(super) fn new(thinning: &Thinning) -> Self {
        let ring = |&(step_ms, count): &(u64, usize)| Ring { step_ms, count, samples: VecDeque::new() };
        Self(thinning.steps.iter().map(ring).collect())
    }

    /// Adds a sample. Those after it go: the clock was set back.
    pub(super) fn push(&mut self, sample: Arc<DeviceSample>) {
        for ring in &mut self.0 {
            ring.push(&sample);
        }
    }

    /// Returns the samples in the order of time: of each moment those of the finest ring that reaches back to it.
    pub(super) fn samples(&self) -> impl DoubleEndedIterator<Item = &Arc<DeviceSample>> {
        let finer = |at: usize| at.checked_sub(1).and_then(|finer| self.0[finer].samples.front());
        self.0.iter().enumerate().rev().flat_map(move |(at, ring)| {
            // A coarser ring ends where the next finer one begins.
            let end = finer(at).map_or(ring.samples.len(), |begins| {
                ring.samples.partition_point(|sample| sample.at_ms < begins.at_ms)
            });
            ring.samples.range(..end)
        })
    }
}

impl Ring {
    fn push(&mut self, sample: &Arc<DeviceSample>) {
        let step = |sample: &DeviceSample| sample.at_ms / self.step_ms;
        while self.samples.back().is_some_and(|last| step(last) > step(sample)) {
            self.samples.pop_back();
        }
        match self.samples.back_mut() {
            Some(last) if step(sample) == step(last) => {
                if sample.is_fuller_than(last) {
                    *last = sample.clone();
                }
            }
            _ => {
                self.samples.push_back(sample.clone());
                let oldest = step(sample).saturating_sub(self.count as u64 - 1);
                while self.samples.front().is_some_and(|first| step(first) < oldest) {
                    self.samples.pop_front();
                }
            }
        }
    }
}
