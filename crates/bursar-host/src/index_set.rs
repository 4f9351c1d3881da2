//! Sets of CPU and node numbers, as the kernel lists them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// The kernel has fewer CPUs and nodes than this; a larger number is malformed.
const LIMIT: u32 = 1 << 16;

/// A set of CPU or node numbers, written as the kernel writes it: `0-3,8,10-11`.
///
/// ```
/// use bursar::host::IndexSet;
///
/// let cpus: IndexSet = "0-2,8\n".parse()?;
/// assert_eq!(cpus.iter().collect::<Vec<_>>(), [0, 1, 2, 8]);
/// assert_eq!(cpus.to_string(), "0-2,8");
/// # Ok::<(), bursar::host::ParseIndexSetError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct IndexSet(BTreeSet<u32>);

impl IndexSet {
    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the set contains a number.
    pub fn contains(&self, index: u32) -> bool {
        self.0.contains(&index)
    }

    /// Returns the smallest number.
    pub fn first(&self) -> Option<u32> {
        self.0.first().copied()
    }

    /// Returns the largest number.
    pub fn last(&self) -> Option<u32> {
        self.0.last().copied()
    }

    /// Returns the numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Returns the intersection of two sets.
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Returns whether the set is a subset of `other`.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for IndexSet {
    fn from_iter<I: IntoIterator<Item = u32>>(indices: I) -> Self {
        Self(indices.into_iter().collect())
    }
}

impl Extend<u32> for IndexSet {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, indices: I) {
        self.0.extend(indices);
    }
}

impl fmt::Display for IndexSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = numbers.next() {
            let mut last = first;
            while let Some(next) = numbers.next_if(|next| next - last == 1) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for IndexSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// The error of a text that is not a list of numbers.
///
/// ```
/// let error = "3-1".parse::<bursar::host::IndexSet>().unwrap_err();
/// assert_eq!(error.to_string(), r#""3-1" is not a list of CPUs or nodes"#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a list of CPUs or nodes")]
pub struct ParseIndexSetError {
    text: String,
}

impl FromStr for IndexSet {
    type Err = ParseIndexSetError;

    fn from_str(text: &str) -> Result<Self, ParseIndexSetError> {
        let wrong = || ParseIndexSetError { text: text.trim().to_owned() };
        let mut indices = BTreeSet::new();
        for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.parse().ok().filter(|number: &u32| *number < LIMIT).ok_or_else(wrong);
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            indices.extend(first..=last);
        }
        Ok(Self(indices))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn n6_lists_that_make_no_sense_are_refused() {
        for text in ["x", "1-", "-1", "1,,2", "2-1", "0-99999999999", "0-4294967295", "1 2", "0x3"] {
            assert!(text.parse::<IndexSet>().is_err(), "{text}");
        }
        for empty in ["", "\n"] {
            assert_eq!(empty.parse(), Ok(IndexSet::default()));
        }
    }

    proptest! {
        #[test]
        fn n6_a_set_survives_being_written_and_read(numbers in proptest::collection::btree_set(0u32..200, 0..60)) {
            let set: IndexSet = numbers.into_iter().collect();
            prop_assert_eq!(set.to_string().parse(), Ok(set));
        }
    }
}
