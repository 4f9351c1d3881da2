//! The one source of choice: a small generator, the same on every machine.

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, or zero where there is none.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Spreads every bit of `value` over all of the answer.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A 64-bit checksum of `bytes`, good enough to notice that they changed.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let step = |sum: u64, word: u64| (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let sum = words.iter().fold(0, |sum, word| step(sum, u64::from_le_bytes(*word)));
    mix(rest.iter().fold(sum, |sum, byte| step(sum, u64::from(*byte))) ^ bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_fixes_every_choice() {
        let numbers = |seed| {
            let mut rng = Rng::new(seed);
            (0..8).map(|_| rng.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert_eq!(Rng::new(1).below(0), 0);
    }

    #[test]
    fn one_changed_byte_changes_the_checksum() {
        for len in [1, 7, 8, 9, 100] {
            let mut bytes = vec![3u8; len];
            let before = checksum(&bytes);
            for at in 0..len {
                bytes[at] ^= 1;
                assert_ne!(checksum(&bytes), before, "byte {at} of {len}");
                bytes[at] ^= 1;
            }
        }
        assert_ne!(checksum(&[]), checksum(&[0]));
    }
}
