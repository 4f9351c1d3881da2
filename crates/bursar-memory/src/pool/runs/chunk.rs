//! A chunk: a handful of runs side by side, with their lengths in a few bits each, so that several are compared at a
//! time.

use super::Run;

/// The most runs that lie in a chunk, a power of two.
pub(super) const CHUNK: usize = 8;

/// The number of entries of a chunk. There are [`CHUNK`] more than runs, so that an insertion or removal at any entry
/// moves the same number of entries.
const ROOM: usize = 2 * CHUNK;

/// An address at which no run begins: its end would overflow.
pub(super) const NOWHERE: u64 = u64::MAX;

/// At most [`CHUNK`] runs, lowest first, and nothing behind the last. The fields that are searched lie by themselves.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    used: usize,
    sizes: [Size; ROOM],
    at: [u64; ROOM],
    /// The length and stamp of each; anything behind the last.
    rest: [(u64, u64); ROOM],
}

impl Chunk {
    pub(super) const EMPTY: Self =
        Self { used: 0, sizes: [Size::NONE; ROOM], at: [NOWHERE; ROOM], rest: [(0, 0); ROOM] };

    #[inline]
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    /// Returns where the run at `entry` begins; [`NOWHERE`] behind the last.
    #[inline]
    pub(super) const fn at(&self, entry: usize) -> u64 {
        self.at[entry]
    }

    /// Returns the size of the run at `entry`.
    #[inline]
    pub(super) const fn size(&self, entry: usize) -> Size {
        self.sizes[entry]
    }

    #[inline]
    pub(super) const fn get(&self, entry: usize) -> Run {
        let (len, stamp) = self.rest[entry];
        Run { at: self.at[entry], len, stamp }
    }

    #[inline(always)]
    pub(super) const fn set(&mut self, entry: usize, run: Run) {
        self.sizes[entry] = Size::of(run.len);
        self.at[entry] = run.at;
        self.rest[entry] = (run.len, run.stamp);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        (0..self.used).map(|entry| self.get(entry))
    }

    /// Returns how many runs begin at `at` or before it.
    #[inline]
    pub(super) fn up_to(&self, at: u64) -> usize {
        let [low, _] = halves(&self.at);
        up_to(low, at)
    }

    /// Returns the entry of the first run that is long enough.
    #[inline]
    pub(super) fn first_of(&self, wanted: Wanted) -> Option<usize> {
        let [low, _] = halves(&self.sizes);
        wanted.first(low, |entry| self.rest[entry].0 >= wanted.len)
    }

    pub(super) fn longest(&self) -> u64 {
        self.rest[..self.used].iter().fold(0, |most, &(run, _)| most.max(run))
    }

    /// Returns the largest size.
    pub(super) fn most(&self) -> Size {
        Size::largest(&self.sizes[..CHUNK])
    }

    /// Inserts a run at `entry`; there is room.
    #[inline(always)]
    pub(super) fn insert(&mut self, entry: usize, run: Run) {
        let behind = entry..entry + CHUNK;
        self.sizes.copy_within(behind.clone(), entry + 1);
        self.at.copy_within(behind.clone(), entry + 1);
        self.rest.copy_within(behind, entry + 1);
        self.used += 1;
        self.set(entry, run);
    }

    /// Removes the run at `entry`.
    #[inline(always)]
    pub(super) fn remove(&mut self, entry: usize) {
        let behind = entry + 1..entry + 1 + CHUNK;
        self.sizes.copy_within(behind.clone(), entry);
        self.at.copy_within(behind.clone(), entry);
        self.rest.copy_within(behind, entry);
        self.used -= 1;
    }

    /// Moves the upper half of a full chunk into an empty one.
    pub(super) fn halve(&mut self, high: &mut Self) {
        let half = CHUNK / 2;
        for (entry, run) in self.iter().enumerate().skip(half) {
            high.set(entry - half, run);
        }
        self.sizes[half..].fill(Size::NONE);
        self.at[half..].fill(NOWHERE);
        (self.used, high.used) = (half, half);
    }

    /// Moves every run of a chunk behind the last of this one; there is room.
    pub(super) fn append(&mut self, after: &mut Self) {
        for (entry, run) in after.iter().enumerate() {
            self.set(self.used + entry, run);
        }
        self.used += after.used;
        after.clear();
    }

    pub(super) fn clear(&mut self) {
        self.sizes.fill(Size::NONE);
        self.at.fill(NOWHERE);
        self.used = 0;
    }
}

/// Splits entries into those that runs may lie in and the room behind them.
#[inline(always)]
const fn halves<T>(all: &[T; ROOM]) -> &[[T; CHUNK]; 2] {
    all.as_chunks().0.first_chunk().expect("as many again")
}

/// A length in 15 bits, the upper ones of a float: its power of two, and ten bits that follow. A longer run never has a
/// smaller size, so one that has a larger size is longer; where sizes are equal the lengths decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Size(i16);

/// The number of low bits of a float that are dropped.
const DROPPED: u32 = f32::MANTISSA_DIGITS - 1 - 10;

/// The size of all lengths that are too large for 15 bits.
const LARGEST: u32 = (1 << 15) - 1;

impl Size {
    /// The size of no run.
    pub(super) const NONE: Self = Self(0);

    /// Returns the size of `len` units, at least one.
    #[inline]
    pub(super) const fn of(len: u64) -> Self {
        let size = (len.cast_signed() as f32).to_bits().wrapping_sub(0.5f32.to_bits()) >> DROPPED;
        Self(if size < LARGEST { size } else { LARGEST } as i16)
    }

    /// Returns the largest of some sizes.
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

    /// Returns which of four sizes may do, by the topmost bit of each sixteen.
    #[inline]
    fn among(self, four: [Size; 4]) -> u64 {
        let [a, b, c, d] = four.map(|size| u64::from(size.0.cast_unsigned()));
        let four = a | b << 16 | c << 32 | d << 48;
        ((four | ABOVE) - self.four) & ABOVE
    }

    /// Returns whether any of some sizes may do.
    #[inline(always)]
    pub(super) fn is_among<const N: usize>(self, sizes: &[Size; N]) -> bool {
        sizes.iter().fold(false, |any, size| any | (size.0 >= self.size.0))
    }

    /// Returns the first of some sizes that may do and that `is_it`.
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

/// Returns how many of some numbers, in order, are at most `at`: a search with no branch to predict. `N` is a power of
/// two.
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
