//! Memory over the operations of a run, in a bounded number of points.
//!
//! Points keep extremes instead of averages: where a series would have too many points, neighbours are joined by their lowest
//! and highest values, so that one operation among many is never lost.

use super::pack::Packer;

/// The most points of a series. A run of no more operations than this is kept exactly.
const MAX_POINTS: usize = 1 << 17;

/// Fragmentation is counted in ten-thousandths.
const WHOLE: u64 = 10_000;

/// The lowest and the highest value of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extremes {
    low: u64,
    high: u64,
}

impl Extremes {
    fn at(value: u64) -> Self {
        Self { low: value, high: value }
    }

    fn join(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

/// A point: some consecutive operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    live: Extremes,
    reserved: Extremes,
    /// 1 − live ÷ reserved.
    fragmentation: Extremes,
    refused: u64,
    calls: u64,
}

impl Point {
    fn join(self, other: Self) -> Self {
        Self {
            live: self.live.join(other.live),
            reserved: self.reserved.join(other.reserved),
            fragmentation: self.fragmentation.join(other.fragmentation),
            refused: self.refused + other.refused,
            calls: self.calls + other.calls,
        }
    }
}

/// The state after one operation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) live: u64,
    pub(super) reserved: u64,
    pub(super) refused: bool,
    /// The number of driver calls that it made.
    pub(super) calls: u64,
}

/// The points of a run. Each stands for the same number of operations, a power of two that doubles whenever there would be
/// too many points.
#[derive(Debug)]
pub(super) struct Series {
    points: Vec<Point>,
    per_point: u64,
    operations: u64,
    max_points: usize,
}

impl Default for Series {
    fn default() -> Self {
        Self::with_max_points(MAX_POINTS)
    }
}

impl Series {
    fn with_max_points(max_points: usize) -> Self {
        Self { points: Vec::new(), per_point: 1, operations: 0, max_points }
    }

    pub(super) fn push(&mut self, sample: Sample) {
        let Sample { live, reserved, refused, calls } = sample;
        let fragmentation = match reserved {
            0 => 0,
            _ => WHOLE - (u128::from(live.min(reserved)) * u128::from(WHOLE) / u128::from(reserved)) as u64,
        };
        let point = Point {
            live: Extremes::at(live),
            reserved: Extremes::at(reserved),
            fragmentation: Extremes::at(fragmentation),
            refused: refused.into(),
            calls,
        };
        if !self.operations.is_multiple_of(self.per_point)
            && let Some(last) = self.points.last_mut()
        {
            *last = last.join(point);
        } else {
            self.points.push(point);
        }
        self.operations += 1;
        if self.points.len() > self.max_points {
            self.halve();
        }
    }

    fn halve(&mut self) {
        self.points = self
            .points
            .chunks(2)
            .map(|pair| match *pair {
                [first, second] => first.join(second),
                _ => pair[0],
            })
            .collect();
        self.per_point *= 2;
    }

    /// Returns the number of operations that a point stands for; the last may stand for fewer.
    pub(super) fn per_point(&self) -> u64 {
        self.per_point
    }

    pub(super) fn points(&self) -> usize {
        self.points.len()
    }

    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    /// Packs the points column by column, as the page's `decode.js` reads them.
    pub(super) fn pack(&self, packer: &mut Packer) {
        let points = || self.points.iter();
        for span in [|point: &Point| point.live, |point: &Point| point.reserved, |point: &Point| point.fragmentation] {
            packer.differences(points().map(|point| span(point).low));
            packer.column(points().map(|point| span(point).high - span(point).low));
        }
        packer.column(points().map(|point| point.refused));
        packer.column(points().map(|point| point.calls));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a generator of pseudo-random numbers.
    fn noise(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        }
    }

    #[test]
    fn every_point_has_the_extremes_of_its_operations() {
        for seed in 1..60 {
            let mut noise = noise(seed);
            let operations: Vec<Sample> = (0..noise() % 700 + 1)
                .map(|_| {
                    let reserved = noise() % 1000;
                    Sample {
                        live: noise() % (reserved + 1),
                        reserved,
                        refused: noise().is_multiple_of(9),
                        calls: noise() % 3,
                    }
                })
                .collect();
            let mut series = Series::with_max_points(32);
            operations.iter().for_each(|after| series.push(*after));
            assert!(series.points() <= 32 && (series.points() > 16 || series.per_point == 1), "seed {seed}");
            assert_eq!(series.operations(), operations.len() as u64);
            let parts: Vec<_> = operations.chunks(series.per_point as usize).collect();
            assert_eq!(parts.len(), series.points(), "seed {seed}");
            for (part, point) in parts.iter().zip(&series.points) {
                let extremes = |value: fn(&Sample) -> u64| Extremes {
                    low: part.iter().map(value).min().expect("not empty"),
                    high: part.iter().map(value).max().expect("not empty"),
                };
                let expected = Point {
                    live: extremes(|after| after.live),
                    reserved: extremes(|after| after.reserved),
                    fragmentation: extremes(|after| match after.reserved {
                        0 => 0,
                        reserved => 10_000 - 10_000 * after.live / reserved,
                    }),
                    refused: part.iter().filter(|after| after.refused).count() as u64,
                    calls: part.iter().map(|after| after.calls).sum(),
                };
                assert_eq!(*point, expected, "seed {seed}");
            }
        }
    }

    #[test]
    fn more_live_than_reserved_is_no_fragmentation() {
        let mut series = Series::default();
        series.push(Sample { live: 10, reserved: 5, ..Sample::default() });
        series.push(Sample { live: 10, reserved: 0, ..Sample::default() });
        series.push(Sample { live: u64::MAX / 2, reserved: u64::MAX, ..Sample::default() });
        let found: Vec<_> = series.points.iter().map(|point| point.fragmentation.low).collect();
        assert_eq!(found, [0, 0, 5001]);
    }
}
