//! Lengths in a few bits each, so that several are compared at a time.

/// A length in 15 bits, the upper ones of a float: its power of two, and ten bits that follow. A longer run never has a
/// smaller size, so one that has a larger size is longer; where sizes are equal the lengths decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Size(i16);

/// The bits of a float that are not kept.
const DROPPED: u32 = f32::MANTISSA_DIGITS - 1 - 10;

/// What is longer than can be told apart has this size.
const LARGEST: u32 = (1 << 15) - 1;

impl Size {
    /// Of no run.
    pub(super) const NONE: Self = Self(0);

    /// Of `len` units, at least one.
    #[inline]
    pub(super) const fn of(len: u64) -> Self {
        let size = (len.cast_signed() as f32).to_bits().wrapping_sub(0.5f32.to_bits()) >> DROPPED;
        Self(if size < LARGEST { size } else { LARGEST } as i16)
    }

    /// The largest of some.
    pub(super) fn largest(sizes: &[Self]) -> Self {
        sizes.iter().fold(Self::NONE, |most, &size| most.max(size))
    }
}

/// A length that is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) len: u64,
    pub(super) size: Size,
    /// The size, four times over.
    four: u64,
}

/// The bit above each of four sizes.
const ABOVE: u64 = 0x8000_8000_8000_8000;

impl Wanted {
    #[inline]
    pub(super) const fn new(len: u64) -> Self {
        let size = Size::of(len);
        Self { len, size, four: size.0.cast_unsigned() as u64 * 0x0001_0001_0001_0001 }
    }

    /// Which of four sizes may do, by the topmost bit of each sixteen.
    #[inline]
    fn among(self, four: [Size; 4]) -> u64 {
        let [a, b, c, d] = four.map(|size| u64::from(size.0.cast_unsigned()));
        let four = a | b << 16 | c << 32 | d << 48;
        ((four | ABOVE) - self.four) & ABOVE
    }

    /// Whether any of some sizes may do.
    #[inline(always)]
    pub(super) fn is_among<const N: usize>(self, sizes: &[Size; N]) -> bool {
        sizes.iter().fold(false, |any, size| any | (size.0 >= self.size.0))
    }

    /// The first of some sizes that may do and that `is_it`.
    #[inline(always)]
    pub(super) fn first<const N: usize>(self, sizes: &[Size; N], is_it: impl Fn(usize) -> bool) -> Option<usize> {
        for (nth, four) in sizes.as_chunks().0.iter().enumerate() {
            let mut hits = self.among(*four);
            while hits != 0 {
                let at = nth * 4 + hits.trailing_zeros() as usize / 16;
                if is_it(at) {
                    return Some(at);
                }
                hits &= hits - 1;
            }
        }
        None
    }
}

/// How many of some numbers, in order, are at most `at`: a search with nothing to predict. `N` is a power of two.
#[inline(always)]
pub(super) fn up_to<const N: usize>(sorted: &[u64; N], at: u64) -> usize {
    let mut below = 0;
    let mut step = N / 2;
    while step > 0 {
        below += usize::from(sorted[(below + step - 1) % N] <= at) * step;
        step /= 2;
    }
    below + usize::from(sorted[below % N] <= at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn len() -> impl Strategy<Value = u64> {
        (0..50u32, any::<u64>()).prop_map(|(power, low)| (1 << power) | (low & ((1 << power) - 1)))
    }

    proptest! {
        #[test]
        fn p2_what_has_a_larger_size_is_longer(one in len(), other in len()) {
            prop_assert_eq!(one.cmp(&other).then(Size::of(one).cmp(&Size::of(other))), one.cmp(&other));
            prop_assert!(Size::of(one) <= Size::of(one + 1) && Size::of(one) > Size::NONE);
        }

        #[test]
        fn p2_the_first_that_is_long_enough_is_found(lens in prop::array::uniform8(len()), want in len(), from in 0..9usize) {
            let (sizes, wanted) = (lens.map(Size::of), Wanted::new(want));
            let expected = (from..8).find(|&nth| lens[nth] >= want);
            prop_assert_eq!(wanted.first(&sizes, |nth| nth >= from && lens[nth] >= want), expected);
            prop_assert!(wanted.is_among(&sizes) || lens.iter().all(|&len| len < want));
        }

        #[test]
        fn p2_a_search_counts_what_is_at_most(mut sorted in prop::array::uniform16(0..40u64), at in 0..41u64) {
            sorted.sort_unstable();
            prop_assert_eq!(up_to(&sorted, at), sorted.iter().filter(|&&n| n <= at).count());
        }
    }
}
