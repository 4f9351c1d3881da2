//! Generations: numbers that never repeat in a process.

use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that tells the blocks at one address apart: never used twice in a process, in no particular order.
///
/// ```
/// use bursar::memory::Generation;
///
/// assert_ne!(Generation::next(), Generation::next());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(NonZeroU64);

/// The number of generations that a thread takes at a time, so that threads seldom touch the shared counter.
const SHARE: u64 = 1 << 16;

static NEXT_SHARE: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The next number of this thread's share; a multiple of `SHARE` means that the share is used up.
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

impl Generation {
    /// Returns a generation that was never used.
    #[inline]
    pub fn next() -> Self {
        NEXT.with(|next| {
            let mut number = next.get();
            if number.is_multiple_of(SHARE) {
                number = NEXT_SHARE.fetch_add(1, Relaxed) * SHARE + 1;
            }
            next.set(number + 1);
            Self::numbered(number)
        })
    }

    /// Returns the generation with a number that [`next`](Self::next) has used.
    #[inline]
    pub(crate) const fn numbered(number: u64) -> Self {
        match NonZeroU64::new(number) {
            Some(number) => Self(number),
            None => Self(NonZeroU64::MIN),
        }
    }

    /// Returns the number itself, for raw boundaries.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns the generation with a number that a raw boundary got from [`get`](Self::get); `None` for zero, which no
    /// generation has.
    pub const fn from_raw(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn r2_generations_never_repeat() {
        let taken: Vec<Vec<Generation>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..SHARE * 2 + 7).map(|_| Generation::next()).collect())).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let distinct: HashSet<_> = taken.iter().flatten().collect();
        assert_eq!(distinct.len(), 4 * (SHARE as usize * 2 + 7));
    }
}
