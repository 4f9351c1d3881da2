//! What a run asked for: how large, for how long, and for what.

use bursar_core::AllocTag;
use std::collections::HashMap;

/// How many and how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) count: u64,
    pub(super) bytes: u64,
}

impl Sum {
    pub(super) fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Classes that double: the first holds 0, class `n` holds what is at least 2ⁿ⁻¹ and less than 2ⁿ.
#[derive(Clone, Debug)]
pub(super) struct Doubling([Sum; 65]);

impl Default for Doubling {
    fn default() -> Self {
        Self([Sum::default(); 65])
    }
}

/// The class of a value, see [`Doubling`].
pub(super) fn class(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()) as usize
}

/// The least value of a class.
pub(super) fn least(class: usize) -> u64 {
    if class == 0 { 0 } else { 1 << (class - 1) }
}

impl Doubling {
    pub(super) fn add(&mut self, value: u64, bytes: u64) {
        self.0[class(value)].add(bytes);
    }

    /// The classes from the first to the last that hold anything, each with its number.
    pub(super) fn classes(&self) -> impl Iterator<Item = (usize, Sum)> {
        let is_used = |sum: &Sum| sum.count > 0;
        let first = self.0.iter().position(is_used).unwrap_or(0);
        let after = self.0.iter().rposition(is_used).map_or(first, |last| last + 1);
        (first..after).map(|class| (class, self.0[class]))
    }
}

/// Everything a run allocated, granted or not freed, by several measures.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// By what was asked for.
    pub(super) sizes: Doubling,
    /// By the operations from the allocation to the free.
    pub(super) lifetimes: Doubling,
    pub(super) by_tag: HashMap<AllocTag, Sum>,
    /// By the index of the stream.
    pub(super) by_stream: HashMap<u16, Sum>,
}

impl Tally {
    pub(super) fn allocated(&mut self, bytes: u64, tag: AllocTag, stream: u16) {
        self.sizes.add(bytes, bytes);
        self.by_tag.entry(tag).or_default().add(bytes);
        self.by_stream.entry(stream).or_default().add(bytes);
    }

    /// Nothing was granted, and yet the stream was used.
    pub(super) fn refused(&mut self, stream: u16) {
        self.by_stream.entry(stream).or_default();
    }

    pub(super) fn freed(&mut self, bytes: u64, operations: u64) {
        self.lifetimes.add(operations, bytes);
    }

    /// Whether anything was named.
    pub(super) fn has_tags(&self) -> bool {
        self.by_tag.keys().any(|&tag| tag != AllocTag::UNTAGGED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_double() {
        for class_number in 0..65 {
            let value = least(class_number);
            assert_eq!(class(value), class_number);
            assert_eq!(class(value.saturating_sub(1)), class_number.saturating_sub(1));
        }
        assert_eq!(class(u64::MAX), 64);
    }

    #[test]
    fn classes_between_the_first_and_the_last_are_shown_even_if_empty() {
        let mut sizes = Doubling::default();
        [512, 700, 5000].iter().for_each(|&size| sizes.add(size, size));
        let found: Vec<_> = sizes.classes().map(|(class, sum)| (least(class), sum.count, sum.bytes)).collect();
        assert_eq!(found, [(512, 2, 1212), (1024, 0, 0), (2048, 0, 0), (4096, 1, 5000)]);
        assert_eq!(Doubling::default().classes().count(), 0);
    }
}
