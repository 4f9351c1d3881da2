//! An array that takes memory as it is used.

use std::sync::OnceLock;

/// `N` times `N` things, of which the first `N` are in place and the others are made with their neighbours when one of them
/// is first used.
#[derive(Debug)]
pub(super) struct Chunks<T, const N: usize> {
    near: [T; N],
    far: OnceLock<Far<T>>,
}

/// All but the first chunk, by their place.
type Far<T> = Box<[OnceLock<Box<[T]>>]>;

impl<T: Default, const N: usize> Default for Chunks<T, N> {
    fn default() -> Self {
        Self { near: std::array::from_fn(|_| T::default()), far: OnceLock::new() }
    }
}

impl<T, const N: usize> Chunks<T, N> {
    /// With these in place.
    pub(super) const fn new(near: [T; N]) -> Self {
        Self { near, far: OnceLock::new() }
    }
}

impl<T: Default, const N: usize> Chunks<T, N> {
    /// One of the first.
    #[inline]
    pub(super) fn near(&self, at: usize) -> Option<&T> {
        self.near.get(at)
    }

    /// One of the first; others have one of those.
    #[inline]
    pub(super) fn nearest(&self, at: usize) -> &T {
        &self.near[at % N]
    }

    /// One that there is.
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        self.near.get(at).or_else(|| Some(&self.far.get()?[at / N - 1].get()?[at % N]))
    }

    /// Any one.
    pub(super) fn get_or_make(&self, at: usize) -> &T {
        self.near.get(at).unwrap_or_else(|| {
            let far = self.far.get_or_init(|| (1..N).map(|_| OnceLock::new()).collect());
            &far[at / N - 1].get_or_init(|| (0..N).map(|_| T::default()).collect())[at % N]
        })
    }

    /// One, if it is named and there; all there are, if none is.
    pub(super) fn one_or_all(&self, one: Option<usize>) -> impl Iterator<Item = &T> {
        let all = one.is_none().then(|| {
            let far = self.far.get().into_iter().flat_map(|far| far.iter().filter_map(OnceLock::get));
            self.near.iter().chain(far.flat_map(|chunk| chunk.iter()))
        });
        one.and_then(|at| self.get(at)).into_iter().chain(all.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[test]
    fn every_place_is_another_and_stays_what_it_is() {
        let chunks = Chunks::<AtomicUsize, 8>::default();
        assert!(chunks.get(8).is_none() && chunks.near(8).is_none() && chunks.near(7).is_some());
        for at in 0..64 {
            chunks.get_or_make(at).store(at + 1, Relaxed);
        }
        for at in 0..64 {
            assert_eq!(chunks.get(at).map(|place| place.load(Relaxed)), Some(at + 1));
        }
        assert_eq!(chunks.one_or_all(Some(40)).map(|place| place.load(Relaxed)).collect::<Vec<_>>(), [41]);
        assert_eq!(chunks.one_or_all(None).map(|place| place.load(Relaxed)).sum::<usize>(), 65 * 32);
    }
}
