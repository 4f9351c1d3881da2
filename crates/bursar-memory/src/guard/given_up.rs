//! Memory whose contents were given up while it slept: what lies there now was written by nobody.
//!
//! Fills and margins in it are not looked at until they are written anew. A submission that was begun before contents were
//! given up may be made after that: the *version* says so, and whatever it finds then says nothing.

use bursar_core::DevicePtr;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The ranges whose contents were given up and that were not filled since.
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    /// Counted up with the ranges locked.
    version: AtomicU64,
    /// Ranges that do not overlap: the first address, and the one after the last.
    ranges: Mutex<BTreeMap<u64, u64>>,
}

impl GivenUp {
    fn ranges(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how often contents were given up.
    pub(super) fn version(&self) -> u64 {
        self.version.load(SeqCst)
    }

    /// Enters ranges whose contents are given up.
    pub(super) fn add(&self, given_up: &[Range<DevicePtr>]) {
        let mut ranges = self.ranges();
        for range in given_up {
            let (mut start, mut end) = (range.start.0, range.end.0);
            while let Some((&first, &last)) = ranges.range(..=end).next_back()
                && start <= last
            {
                ranges.remove(&first);
                (start, end) = (start.min(first), end.max(last));
            }
            ranges.insert(start, end);
        }
        self.version.fetch_add(1, SeqCst);
    }

    /// Takes a range out that was filled, unless contents were given up since `version`.
    pub(super) fn remove_filled(&self, ptr: DevicePtr, bytes: u64, version: u64) {
        let (start, end) = (ptr.0, ptr.0 + bytes);
        let mut ranges = self.ranges();
        if self.version() != version {
            return;
        }
        while let Some((&first, &last)) = ranges.range(..end).next_back()
            && start < last
        {
            ranges.remove(&first);
            ranges.extend([(first, start), (end, last)].into_iter().filter(|(from, to)| from < to));
        }
    }

    /// Returns whether the contents of any part of a range were given up.
    pub(super) fn has_any(&self, ptr: DevicePtr, bytes: u64) -> bool {
        self.ranges().range(..ptr.0 + bytes).next_back().is_some_and(|(_, &end)| ptr.0 < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn g3_ranges_are_given_up_until_they_are_filled(
            steps in prop::collection::vec((any::<bool>(), 0u64..64, 1u64..32), 0..40),
        ) {
            let (given_up, mut expected) = (GivenUp::default(), [false; 128]);
            for (adds, at, len) in steps {
                match adds {
                    true => given_up.add(&[DevicePtr(at)..DevicePtr(at + len)]),
                    false => given_up.remove_filled(DevicePtr(at), len, given_up.version()),
                }
                expected[at as usize..(at + len) as usize].fill(adds);
                for (at, &expected) in (0..).zip(&expected) {
                    prop_assert_eq!(given_up.has_any(DevicePtr(at), 1), expected);
                }
            }
            let before = given_up.version();
            given_up.add(&[DevicePtr(1)..DevicePtr(2)]);
            given_up.remove_filled(DevicePtr(0), 64, before);
            prop_assert!(given_up.has_any(DevicePtr(0), 4), "the fill may have come before");
        }
    }
}
