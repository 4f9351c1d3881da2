//! The generator that every random choice is drawn from, and the hash that it uses.

/// A generator of pseudo-random numbers (SplitMix64) for simulations, generated programs and tests.
///
/// A seed gives the same sequence on every machine. The numbers are fit for choosing cases, not for secrets.
///
/// ```
/// use bursar::sim::Random;
///
/// let mut dice = Random::new(7);
/// let throws: Vec<u64> = (0..3).map(|_| 1 + dice.below(6)).collect();
/// assert!(throws.iter().all(|throw| (1..=6).contains(throw)));
///
/// let mut again = Random::new(7);
/// assert_eq!(throws, (0..3).map(|_| 1 + again.below(6)).collect::<Vec<_>>());
/// ```
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator whose sequence `seed` decides.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    #[inline]
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `bound`, or zero where `bound` is zero.
    #[inline]
    pub const fn below(&mut self, bound: u64) -> u64 {
        let bound = if bound == 0 { 1 } else { bound };
        self.next_u64() % bound
    }

    /// Returns an index into `len` items, or zero where there are none.
    #[inline]
    pub const fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns true once in `of` calls on average.
    #[inline]
    pub const fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// Returns one of `items`, or none where there are none.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        (!items.is_empty()).then(|| items[self.index(items.len())])
    }
}

/// Returns a hash of `value`: each of its bits affects every bit of the result.
#[inline]
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_fixes_every_choice() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..8).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert_eq!((Random::new(1).below(0), Random::new(1).pick::<u8>(&[])), (0, None));
        assert_eq!(Random::new(0).next_u64(), 0xe220_a839_7b1d_cdaf, "the first number of SplitMix64");
    }
}
