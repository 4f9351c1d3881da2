//! A run over its operations, in a bounded number of points that keep the extremes.

use super::pack::Packer;

/// The most points that are kept. A run of no more operations than this is kept exactly.
const MAX_POINTS: usize = 1 << 17;

/// Fragmentation is counted in ten-thousandths.
const WHOLE: u64 = 10_000;

/// The lowest and the highest of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    low: u64,
    high: u64,
}

impl Span {
    fn at(value: u64) -> Self {
        Self { low: value, high: value }
    }

    fn join(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

/// Some operations in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    live: Span,
    reserved: Span,
    /// 1 − live ÷ reserved.
    fragmentation: Span,
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

/// What one operation left behind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct After {
    pub(super) live: u64,
    pub(super) reserved: u64,
    pub(super) refused: bool,
    /// Driver calls that it made.
    pub(super) calls: u64,
}

/// The points. Each is of as many operations, a power of two that doubles whenever there would be too many points.
#[derive(Debug)]
pub(super) struct Series {
    points: Vec<Point>,
    per_point: u64,
    operations: u64,
    max_points: usize,
}

impl Default for Series {
    fn default() -> Self {
        Self::of_at_most(MAX_POINTS)
    }
}

impl Series {
    fn of_at_most(max_points: usize) -> Self {
        Self { points: Vec::new(), per_point: 1, operations: 0, max_points }
    }

    pub(super) fn push(&mut self, after: After) {
        let After { live, reserved, refused, calls } = after;
        let fragmentation = match reserved {
            0 => 0,
            _ => WHOLE - (u128::from(live.min(reserved)) * u128::from(WHOLE) / u128::from(reserved)) as u64,
        };
        let point = Point {
            live: Span::at(live),
            reserved: Span::at(reserved),
            fragmentation: Span::at(fragmentation),
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

    /// How many operations a point stands for; the last may stand for fewer.
    pub(super) fn per_point(&self) -> u64 {
        self.per_point
    }

    pub(super) fn points(&self) -> usize {
        self.points.len()
    }

    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    /// Column by column, as the page's `decode.js` reads them.
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

    /// Numbers that look random and are the same everywhere.
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
            let operations: Vec<After> = (0..noise() % 700 + 1)
                .map(|_| {
                    let reserved = noise() % 1000;
                    After {
                        live: noise() % (reserved + 1),
                        reserved,
                        refused: noise().is_multiple_of(9),
                        calls: noise() % 3,
                    }
                })
                .collect();
            let mut series = Series::of_at_most(32);
            operations.iter().for_each(|after| series.push(*after));
            assert!(series.points() <= 32 && (series.points() > 16 || series.per_point == 1), "seed {seed}");
            assert_eq!(series.operations(), operations.len() as u64);
            let parts: Vec<_> = operations.chunks(series.per_point as usize).collect();
            assert_eq!(parts.len(), series.points(), "seed {seed}");
            for (part, point) in parts.iter().zip(&series.points) {
                let extremes = |value: fn(&After) -> u64| Span {
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
        series.push(After { live: 10, reserved: 5, ..After::default() });
        series.push(After { live: 10, reserved: 0, ..After::default() });
        series.push(After { live: u64::MAX / 2, reserved: u64::MAX, ..After::default() });
        let found: Vec<_> = series.points.iter().map(|point| point.fragmentation.low).collect();
        assert_eq!(found, [0, 0, 5001]);
    }
}
