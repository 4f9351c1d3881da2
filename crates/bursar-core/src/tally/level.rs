//! How high something stands, and how high it ever stood.

use super::Amount;
use super::slack::{BOUND_BYTES, BOUND_COUNT, Slack};
use crate::Bytes;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// A level that threads raise and lower through a slack of their own.
///
/// What is claimed here is what is live plus the slack of all threads. A thread that frees keeps what it freed as slack,
/// up to a bound, and what it allocates next is taken from there; only what the slack does not cover is claimed. So the
/// claim is never below the truth, and never further above it than the bound for each other thread.
///
/// Frees of blocks that were never counted make the claim negative, like what is live: neither then raises a peak.
#[derive(Debug, Default)]
pub(super) struct Level {
    bytes: Mark,
    count: Mark,
}

#[derive(Debug, Default)]
struct Mark {
    claimed: AtomicI64,
    peak: AtomicU64,
}

impl Level {
    /// One more block of `bytes`, by the thread whose slack it is.
    pub(super) fn rise(&self, slack: &Slack, bytes: u64) {
        let (spare, spare_count) = slack.get();
        slack.set(self.bytes.rise(spare, bytes), self.count.rise(spare_count, 1));
    }

    /// One block of `bytes` less, by the thread whose slack it is.
    pub(super) fn fall(&self, slack: &Slack, bytes: u64) {
        let (spare, spare_count) = slack.get();
        slack.set(self.bytes.fall(spare, bytes, BOUND_BYTES), self.count.fall(spare_count, 1, BOUND_COUNT));
    }

    /// The highest it ever stood, given where it stands.
    pub(super) fn peak(&self, current: Amount) -> Amount {
        Amount { bytes: Bytes(self.bytes.peak().max(current.bytes.get())), count: self.count.peak().max(current.count) }
    }
}

impl Mark {
    /// Claims what the slack does not cover, and answers what is left of it.
    fn rise(&self, slack: u64, n: u64) -> u64 {
        if n > slack {
            let more = (n - slack).cast_signed();
            let claimed = self.claimed.fetch_add(more, Relaxed).wrapping_add(more);
            self.peak.fetch_max(above_zero(claimed), Relaxed);
        }
        slack.saturating_sub(n)
    }

    /// Lets go of what is too much for a slack, and answers what becomes of it.
    fn fall(&self, slack: u64, n: u64, bound: u64) -> u64 {
        let slack = slack.saturating_add(n);
        let kept = if slack < bound { slack } else { bound / 2 };
        if kept < slack {
            self.claimed.fetch_sub((slack - kept).cast_signed(), Relaxed);
        }
        kept
    }

    fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }
}

/// What a balance comes to where nothing can be negative.
pub(super) fn above_zero(balance: i64) -> u64 {
    balance.max(0).cast_unsigned()
}
