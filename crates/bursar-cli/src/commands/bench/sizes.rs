//! Sizes drawn at random from a range.

use crate::stage::parse_size;
use bursar::Bytes;
use bursar::sim::Random;
use clap::ValueEnum;
use serde::Serialize;
use std::str::FromStr;

/// The smallest and the largest size that are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SizeRange {
    pub(super) least: Bytes,
    pub(super) most: Bytes,
}

/// Parses `64KiB..24MiB`, or one size.
impl FromStr for SizeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = text.split_once("..").unwrap_or((text, text));
        let (least, most) = (parse_size(least)?, parse_size(most)?);
        match least {
            Bytes::ZERO => Err("a block of zero bytes is none: write 64KiB..24MiB".to_owned()),
            least if least > most => Err(format!("{least} is more than {most}: write the smaller size first")),
            least => Ok(Self { least, most }),
        }
    }
}

/// The distribution of sizes between the smallest and the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Distribution {
    /// Each factor is as likely as any other: most blocks are small, and the large ones have most of the memory.
    Log,
    /// Each size is as likely as any other.
    Uniform,
    /// The square of a uniform number: between the other two.
    Square,
}

impl Distribution {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Uniform => "uniform",
            Self::Square => "square",
        }
    }

    /// Draws a size.
    pub(super) fn draw(self, sizes: SizeRange, random: &mut Random) -> u64 {
        let (least, most) = (sizes.least.get() as f64, sizes.most.get() as f64);
        // The 53 bits of a number's fraction: from 0 to 1, without 1.
        let unit = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let size = match self {
            Self::Log => least * (unit * (most / least).ln()).exp(),
            Self::Uniform => least + unit * (most - least),
            Self::Square => least + unit * unit * (most - least),
        };
        (size as u64).clamp(sizes.least.get(), sizes.most.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_their_range_and_each_distribution_has_its_mean() {
        let sizes: SizeRange = "64KiB..24MiB".parse().expect("a range");
        for (distribution, expected) in
            [(Distribution::Log, 0.167), (Distribution::Uniform, 0.5), (Distribution::Square, 0.333)]
        {
            let mut random = Random::new(7);
            let drawn: Vec<u64> = (0..20_000).map(|_| distribution.draw(sizes, &mut random)).collect();
            assert!(drawn.iter().all(|size| (64 << 10..=24 << 20).contains(size)), "{distribution:?}");
            let mean = drawn.iter().sum::<u64>() as f64 / drawn.len() as f64 / f64::from(24 << 20);
            assert!((mean - expected).abs() < 0.02, "{distribution:?}: {mean}");
        }
        assert_eq!("4KiB".parse(), Ok(SizeRange { least: Bytes(4096), most: Bytes(4096) }));
        for (text, said) in [("2MiB..1MiB", "smaller size first"), ("0..1MiB", "zero bytes"), ("1..x", "1.5GiB")] {
            let error = text.parse::<SizeRange>().expect_err(text);
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
