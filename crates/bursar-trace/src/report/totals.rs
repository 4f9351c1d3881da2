//! Totals of the allocations of a run: by size, by lifetime, by tag and by stream.

use bursar_core::AllocTag;
use std::collections::HashMap;

/// A number of allocations and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) count: u64,
    pub(super) bytes: u64,
}

impl Total {
    pub(super) fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// A histogram of power-of-two classes: class 0 is of the value 0, class `n` of values of at least 2ⁿ⁻¹ and less than 2ⁿ.
#[derive(Clone, Debug)]
pub(super) struct Log2Histogram([Total; 65]);

impl Default for Log2Histogram {
    fn default() -> Self {
        Self([Total::default(); 65])
    }
}

/// Returns the class of a value; see [`Log2Histogram`].
pub(super) fn class(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()) as usize
}

/// Returns the least value of a class.
pub(super) fn least(class: usize) -> u64 {
    if class == 0 { 0 } else { 1 << (class - 1) }
}

impl Log2Histogram {
    pub(super) fn add(&mut self, value: u64, bytes: u64) {
        self.0[class(value)].add(bytes);
    }

    /// Returns the classes from the first to the last that are not empty, each with its number.
    pub(super) fn classes(&self) -> impl Iterator<Item = (usize, Total)> {
        let is_used = |sum: &Total| sum.count > 0;
        let first = self.0.iter().position(is_used).unwrap_or(0);
        let after = self.0.iter().rposition(is_used).map_or(first, |last| last + 1);
        (first..after).map(|class| (class, self.0[class]))
    }
}

/// Totals of everything that a run was granted.
#[derive(Debug, Default)]
pub(super) struct AllocationTotals {
    /// By requested bytes.
    pub(super) sizes: Log2Histogram,
    /// By the number of operations from the allocation to the free.
    pub(super) lifetimes: Log2Histogram,
    pub(super) by_tag: HashMap<AllocTag, Total>,
    /// By the index of the stream.
    pub(super) by_stream: HashMap<u16, Total>,
}

impl AllocationTotals {
    pub(super) fn add_allocation(&mut self, bytes: u64, tag: AllocTag, stream: u16) {
        self.sizes.add(bytes, bytes);
        self.by_tag.entry(tag).or_default().add(bytes);
        self.by_stream.entry(stream).or_default().add(bytes);
    }

    /// Adds a refused allocation: it has no size here, but its stream was used.
    pub(super) fn add_refusal(&mut self, stream: u16) {
        self.by_stream.entry(stream).or_default();
    }

    pub(super) fn add_free(&mut self, bytes: u64, operations: u64) {
        self.lifetimes.add(operations, bytes);
    }

    /// Returns whether any allocation has a tag.
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
        let mut sizes = Log2Histogram::default();
        [512, 700, 5000].iter().for_each(|&size| sizes.add(size, size));
        let found: Vec<_> = sizes.classes().map(|(class, sum)| (least(class), sum.count, sum.bytes)).collect();
        assert_eq!(found, [(512, 2, 1212), (1024, 0, 0), (2048, 0, 0), (4096, 1, 5000)]);
        assert_eq!(Log2Histogram::default().classes().count(), 0);
    }
}
