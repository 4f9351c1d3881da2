//! A sparse array that allocates memory as it is used.

use std::sync::OnceLock;

/// An array of `N` × `N` elements, of which the first `N` are in place and the others are allocated with their
/// neighbours when one of them is first used.
#[derive(Debug)]
pub(super) struct Chunks<T, const N: usize> {
    near: [T; N],
    far: OnceLock<Far<T>>,
}

/// All chunks but the first.
type Far<T> = Box<[OnceLock<Box<[T]>>]>;

impl<T: Default, const N: usize> Default for Chunks<T, N> {
    fn default() -> Self {
        Self { near: std::array::from_fn(|_| T::default()), far: OnceLock::new() }
    }
}

impl<T, const N: usize> Chunks<T, N> {
    /// Makes an array with its first elements.
    pub(super) const fn new(near: [T; N]) -> Self {
        Self { near, far: OnceLock::new() }
    }
}

impl<T: Default, const N: usize> Chunks<T, N> {
    /// Returns one of the first elements.
    #[inline]
    pub(super) fn near(&self, at: usize) -> Option<&T> {
        self.near.get(at)
    }

    /// Returns one of the first elements; larger indices wrap around.
    #[inline]
    pub(super) fn nearest(&self, at: usize) -> &T {
        &self.near[at % N]
    }

    /// Returns an element, if it was allocated.
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        self.near.get(at).or_else(|| Some(&self.far.get()?[at / N - 1].get()?[at % N]))
    }

    /// Returns an element, allocating its chunk if necessary.
    pub(super) fn get_or_make(&self, at: usize) -> &T {
        self.near.get(at).unwrap_or_else(|| {
            let far = self.far.get_or_init(|| (1..N).map(|_| OnceLock::new()).collect());
            &far[at / N - 1].get_or_init(|| (0..N).map(|_| T::default()).collect())[at % N]
        })
    }

    /// Returns the element at an index if one is given and was allocated, or all that were.
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
