//! The time that requests spent in the queue.

use crate::format::counter;
use std::time::Duration;

/// The number of requests that have left the queue of a ledger since it was made, by how long they had waited: those that were
/// granted, at once or later, those whose time ran out and those that were given up. Nothing in it ever goes down.
///
/// ```
/// use bursar::Bytes;
/// use bursar::ledger::{Ledger, Priority};
/// use std::time::Duration;
///
/// # fn main() -> bursar::Result<()> {
/// let ledger = Ledger::private(Bytes::gib(1));
/// let all = ledger.reserve_within(Bytes::gib(1), Duration::from_secs(1), Priority::NORMAL)?;
/// assert!(ledger.reserve_within(Bytes(1), Duration::from_millis(20), Priority::NORMAL).is_err());
/// let waits = ledger.reading()?.waits;
/// assert_eq!(waits.count(), 2);
/// assert!(waits.sum() >= Duration::from_millis(20));
/// // As Prometheus has it: each bucket counts all that waited for no longer than its bound.
/// let upto: Vec<u64> = waits.cumulative().map(|(_, count)| count).collect();
/// assert_eq!(upto.last(), Some(&2));
/// # drop(all);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitHistogram {
    counts: [u64; counter::BUCKETS],
    sum: Duration,
}

impl WaitHistogram {
    /// The longest wait that each bucket counts; one more bucket counts those that were longer than all of them.
    pub const BOUNDS: [Duration; counter::BUCKETS - 1] = [
        Duration::from_millis(10),
        Duration::from_millis(100),
        Duration::from_secs(1),
        Duration::from_secs(5),
        Duration::from_secs(10),
        Duration::from_secs(30),
        Duration::from_secs(60),
        Duration::from_secs(300),
        Duration::from_secs(1800),
        Duration::from_secs(7200),
    ];

    pub(crate) const fn new(counts: [u64; counter::BUCKETS], sum: Duration) -> Self {
        Self { counts, sum }
    }

    /// Returns the bucket that counts a wait of so many milliseconds.
    pub(crate) fn bucket_of(millis: u64) -> usize {
        Self::BOUNDS.iter().take_while(|bound| bound.as_millis() < u128::from(millis)).count()
    }

    /// Returns an iterator over the buckets: the longest wait that each counts, `None` for the last, and how many waited so
    /// long, but longer than the bound before.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        Self::BOUNDS.into_iter().map(Some).chain([None]).zip(self.counts)
    }

    /// Returns an iterator over the buckets, each with all that waited for no longer than its bound.
    pub fn cumulative(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        self.buckets().scan(0u64, |upto, (bound, count)| {
            *upto = upto.saturating_add(count);
            Some((bound, *upto))
        })
    }

    /// Returns the number of all waits.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the time that all of them waited together, each counted in whole milliseconds.
    #[must_use]
    pub const fn sum(&self) -> Duration {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_counted_where_its_bound_says() {
        assert!(WaitHistogram::BOUNDS.is_sorted());
        let last = WaitHistogram::BOUNDS.len();
        assert_eq!(WaitHistogram::bucket_of(0), 0);
        assert_eq!(WaitHistogram::bucket_of(u64::MAX), last);
        for (at, bound) in WaitHistogram::BOUNDS.into_iter().enumerate() {
            let millis = bound.as_millis() as u64;
            assert_eq!((WaitHistogram::bucket_of(millis), WaitHistogram::bucket_of(millis + 1)), (at, at + 1));
        }
    }
}
