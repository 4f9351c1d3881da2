//! A chunk: a handful of runs side by side in two cache lines.

use super::Run;

/// The most runs that lie in a chunk, a power of two.
pub(super) const CHUNK: usize = 8;

/// An address at which no run begins: its end would overflow.
pub(super) const NOWHERE: u64 = u64::MAX;

/// The bits of a stamp that are kept.
const STAMP_BITS: u32 = 28;

const STAMP_MASK: u64 = (1 << STAMP_BITS) - 1;

/// The longest run there is, in units: 16 TiB, less than any length whose bits are all ones.
pub(super) const LONGEST: u64 = (u64::MAX >> STAMP_BITS) - 1;

/// At most [`CHUNK`] runs, lowest first. Behind the last all addresses are [`NOWHERE`] and all lengths zero.
///
/// The length and the stamp of a run share a word with the length above, so lengths are compared as they lie. Of a stamp
/// the lowest bits are kept: with the latest stamp there is, they tell the latest that it can be.
#[derive(Clone, Copy, Debug)]
#[repr(align(128))]
pub(super) struct Chunk {
    at: [u64; CHUNK],
    rest: [u64; CHUNK],
}

/// For each entry, all ones in the words from it on and zero in those before.
static FROM: [[u64; CHUNK]; CHUNK + 1] = {
    let mut from = [[0; CHUNK]; CHUNK + 1];
    let mut n = 0;
    while n < CHUNK * CHUNK {
        from[n / CHUNK][n % CHUNK] = if n % CHUNK >= n / CHUNK { u64::MAX } else { 0 };
        n += 1;
    }
    from
};

/// Moves the words from `entry` on up by one. With a mask and no branch: which entry it is, nobody could predict.
#[inline(always)]
fn move_up(words: &mut [u64; CHUNK], entry: usize) {
    let (old, mask) = (*words, &FROM[entry + 1]);
    for n in 1..CHUNK {
        words[n] = old[n] ^ ((old[n] ^ old[n - 1]) & mask[n]);
    }
}

/// Moves the words behind `entry` down by one, and fills the last with `vacant`.
#[inline(always)]
fn move_down(words: &mut [u64; CHUNK], entry: usize, vacant: u64) {
    let (old, mask) = (*words, &FROM[entry]);
    for n in 0..CHUNK - 1 {
        words[n] = old[n] ^ ((old[n] ^ old[n + 1]) & mask[n]);
    }
    words[CHUNK - 1] = vacant;
}

impl Chunk {
    pub(super) const EMPTY: Self = Self { at: [NOWHERE; CHUNK], rest: [0; CHUNK] };

    /// Returns the number of runs.
    pub(super) fn used(&self) -> usize {
        up_to(&self.at, NOWHERE - 1)
    }

    #[inline]
    pub(super) const fn is_full(&self) -> bool {
        self.at[CHUNK - 1] != NOWHERE
    }

    /// Returns whether there are at most `few` runs, fewer than fit.
    #[inline]
    pub(super) const fn has_at_most(&self, few: usize) -> bool {
        self.at[few] == NOWHERE
    }

    /// Returns where the run at `entry` begins; [`NOWHERE`] behind the last.
    #[inline]
    pub(super) fn at(&self, entry: usize) -> u64 {
        self.at.get(entry).copied().unwrap_or(NOWHERE)
    }

    /// Returns the length of the run at `entry`.
    #[inline]
    pub(super) const fn len(&self, entry: usize) -> u64 {
        self.rest[entry] >> STAMP_BITS
    }

    /// Returns the run at `entry`, whose stamp is no later than `latest`.
    #[inline]
    pub(super) const fn get(&self, entry: usize, latest: u64) -> Run {
        let stamp = latest - (latest.wrapping_sub(self.rest[entry]) & STAMP_MASK);
        Run { at: self.at[entry], len: self.len(entry), stamp }
    }

    #[inline(always)]
    pub(super) const fn set(&mut self, entry: usize, run: Run) {
        self.at[entry] = run.at;
        self.rest[entry] = run.len << STAMP_BITS | run.stamp & STAMP_MASK;
    }

    /// Takes `len` units off the front of the run at `entry`, which is longer; returns where it begins now.
    #[inline(always)]
    pub(super) const fn shorten(&mut self, entry: usize, len: u64) -> u64 {
        self.at[entry] += len;
        self.rest[entry] -= len << STAMP_BITS;
        self.at[entry]
    }

    pub(super) fn iter(&self, latest: u64) -> impl Iterator<Item = Run> + '_ {
        (0..self.used()).map(move |entry| self.get(entry, latest))
    }

    /// Returns how many runs begin at `at` or before it.
    #[inline]
    pub(super) fn up_to(&self, at: u64) -> usize {
        up_to(&self.at, at)
    }

    /// Returns the entry of the first run that is long enough.
    #[inline]
    pub(super) fn first_of(&self, wanted: Wanted) -> Option<usize> {
        self.rest.iter().position(|&rest| rest >= wanted.rest)
    }

    /// Returns the length of the shortest run that is long enough; more than any where there is none. With no branch:
    /// which runs are long enough, nobody could predict.
    #[inline]
    pub(super) fn tightest_of(&self, wanted: Wanted) -> u64 {
        let fit = |rest: u64| if rest >= wanted.rest { rest } else { u64::MAX };
        self.rest.iter().fold(u64::MAX, |least, &rest| least.min(fit(rest))) >> STAMP_BITS
    }

    /// Returns the entry of the first run of this length.
    pub(super) fn of_len(&self, len: u64) -> Option<usize> {
        self.rest.iter().position(|&rest| rest >> STAMP_BITS == len)
    }

    pub(super) fn longest(&self) -> u64 {
        self.rest.iter().fold(0, |most, &rest| most.max(rest)) >> STAMP_BITS
    }

    /// Returns the size of the longest run.
    pub(super) fn most(&self) -> Size {
        Size::of(self.longest())
    }

    /// Inserts a run at `entry`; there is room.
    #[inline(always)]
    pub(super) fn insert(&mut self, entry: usize, run: Run) {
        move_up(&mut self.at, entry);
        move_up(&mut self.rest, entry);
        self.set(entry, run);
    }

    /// Removes the run at `entry`.
    #[inline(always)]
    pub(super) fn remove(&mut self, entry: usize) {
        move_down(&mut self.at, entry, NOWHERE);
        move_down(&mut self.rest, entry, 0);
    }

    /// Takes the upper half of a full chunk out.
    pub(super) fn halve(&mut self) -> Self {
        let (half, mut high) = (CHUNK / 2, Self::EMPTY);
        high.at[..half].copy_from_slice(&self.at[half..]);
        high.rest[..half].copy_from_slice(&self.rest[half..]);
        self.at[half..].fill(NOWHERE);
        self.rest[half..].fill(0);
        high
    }

    /// Adds every run of a chunk behind the last of this one; there is room.
    pub(super) fn append(&mut self, after: &Self) {
        let (used, more) = (self.used(), after.used());
        self.at[used..used + more].copy_from_slice(&after.at[..more]);
        self.rest[used..used + more].copy_from_slice(&after.rest[..more]);
    }
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

    /// Returns the size of `len` units.
    #[inline]
    pub(super) const fn of(len: u64) -> Self {
        let size = (len.cast_signed() as f32).to_bits().saturating_sub(0.5f32.to_bits()) >> DROPPED;
        Self(if size < LARGEST { size } else { LARGEST } as i16)
    }

    /// Returns the largest of some sizes.
    pub(super) fn largest(sizes: &[Self]) -> Self {
        sizes.iter().fold(Self::NONE, |most, &size| most.max(size))
    }
}

/// The number of sizes that are compared together.
const TOGETHER: usize = 16;

/// A length that is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) size: Size,
    /// The least word of a run that is long enough.
    rest: u64,
    /// The size, four times over.
    four: u64,
}

/// The bit above each of four sizes.
const ABOVE: u64 = 0x8000_8000_8000_8000;

impl Wanted {
    #[inline]
    pub(super) const fn new(len: u64) -> Self {
        let size = Size::of(len);
        let rest = if len > LONGEST { u64::MAX } else { len << STAMP_BITS };
        Self { size, rest, four: size.0.cast_unsigned() as u64 * 0x0001_0001_0001_0001 }
    }

    /// Returns the first of some sizes that may do.
    #[inline(always)]
    pub(super) fn first(self, sizes: &[Size]) -> Option<usize> {
        let (blocks, rest) = sizes.as_chunks::<TOGETHER>();
        for (nth, block) in blocks.iter().enumerate() {
            count_look();
            if self.is_among(block) {
                return self.first_of_block(block).map(|place| nth * TOGETHER + place);
            }
        }
        count_look();
        let place = rest.iter().position(|size| *size >= self.size)?;
        Some(blocks.len() * TOGETHER + place)
    }

    /// Returns whether any of some sizes may do.
    #[inline(always)]
    fn is_among(self, sizes: &[Size; TOGETHER]) -> bool {
        sizes.iter().fold(false, |any, size| any | (size.0 >= self.size.0))
    }

    #[inline(always)]
    fn first_of_block(self, sizes: &[Size; TOGETHER]) -> Option<usize> {
        let fours = sizes.as_chunks().0.iter().enumerate();
        let mut hits = fours.map(|(nth, four)| (nth, self.among(*four)));
        let (nth, hits) = hits.find(|&(_, hits)| hits != 0)?;
        Some(nth * 4 + hits.trailing_zeros() as usize / 16)
    }

    /// Returns which of four sizes may do, by the topmost bit of each sixteen.
    #[inline]
    fn among(self, four: [Size; 4]) -> u64 {
        let [a, b, c, d] = four.map(|size| u64::from(size.0.cast_unsigned()));
        let four = a | b << 16 | c << 32 | d << 48;
        ((four | ABOVE) - self.four) & ABOVE
    }
}

/// Counts a look at memory that a search need not have touched before, for tests.
#[inline(always)]
pub(super) fn count_look() {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
}

#[cfg(test)]
thread_local! {
    pub(super) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
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
        (0..36u32, any::<u64>()).prop_map(|(power, low)| (1 << power) | (low & ((1 << power) - 1)))
    }

    proptest! {
        #[test]
        fn p2_what_has_a_larger_size_is_longer(one in len(), other in len()) {
            prop_assert_eq!(one.cmp(&other).then(Size::of(one).cmp(&Size::of(other))), one.cmp(&other));
            prop_assert!(Size::of(one) <= Size::of(one + 1) && Size::of(one) > Size::NONE);
        }

        #[test]
        fn p2_the_first_that_is_long_enough_is_found(lens in prop::collection::vec(len(), 0..40), want in len()) {
            let sizes: Vec<_> = lens.iter().map(|&len| Size::of(len)).collect();
            let expected = sizes.iter().position(|&size| size >= Size::of(want));
            prop_assert_eq!(Wanted::new(want).first(&sizes), expected);
            let mut chunk = Chunk::EMPTY;
            let few = &lens[..lens.len().min(CHUNK)];
            for (entry, &len) in few.iter().enumerate() {
                chunk.insert(entry, Run { at: 1 << 40 | entry as u64, len: len.min(LONGEST), stamp: u64::MAX });
            }
            prop_assert_eq!(chunk.first_of(Wanted::new(want)), few.iter().position(|&len| len.min(LONGEST) >= want));
            prop_assert_eq!(chunk.first_of(Wanted::new(LONGEST + 1)), None);
        }

        #[test]
        fn p2_a_search_counts_what_is_at_most(mut sorted in prop::array::uniform16(0..40u64), at in 0..41u64) {
            sorted.sort_unstable();
            prop_assert_eq!(up_to(&sorted, at), sorted.iter().filter(|&&n| n <= at).count());
        }

        /// A stamp comes out as it went in or, where that is long ago, as a later one that has the same lowest bits.
        #[test]
        fn p2_a_stamp_is_never_taken_for_an_earlier_one(stamp in any::<u64>(), age in len()) {
            let (latest, mut chunk) = (stamp.saturating_add(age), Chunk::EMPTY);
            chunk.insert(0, Run { at: 0, len: 1, stamp });
            let kept = chunk.get(0, latest).stamp;
            prop_assert!((stamp..=latest).contains(&kept) && latest - kept <= STAMP_MASK);
            prop_assert!(latest - stamp > STAMP_MASK || kept == stamp);
        }
    }
}
