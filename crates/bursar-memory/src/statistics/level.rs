//! How high something stands, and how high it ever stood.

use super::Amount;
use bursar_core::Bytes;
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

/// One thread's slack.
#[derive(Debug, Default)]
pub(super) struct Slack {
    bytes: AtomicU64,
    count: AtomicU64,
}

const SLACK_BYTES: u64 = 1 << 20;
const SLACK_COUNT: u64 = 256;

impl Level {
    /// One more block of `bytes`, by the thread whose slack it is.
    #[inline]
    pub(super) fn rise(&self, slack: &Slack, bytes: u64) {
        self.bytes.rise(&slack.bytes, bytes);
        self.count.rise(&slack.count, 1);
    }

    /// One block of `bytes` less, by the thread whose slack it is.
    #[inline]
    pub(super) fn fall(&self, slack: &Slack, bytes: u64) {
        self.bytes.fall(&slack.bytes, bytes, SLACK_BYTES);
        self.count.fall(&slack.count, 1, SLACK_COUNT);
    }

    /// The highest it ever stood, given where it stands.
    pub(super) fn peak(&self, current: Amount) -> Amount {
        Amount { bytes: Bytes(self.bytes.peak().max(current.bytes.get())), count: self.count.peak().max(current.count) }
    }
}

impl Mark {
    #[inline]
    fn rise(&self, slack: &AtomicU64, n: u64) {
        let spare = slack.load(Relaxed);
        slack.store(spare.saturating_sub(n), Relaxed);
        if n > spare {
            let more = (n - spare).cast_signed();
            let claimed = self.claimed.fetch_add(more, Relaxed).wrapping_add(more);
            self.peak.fetch_max(above_zero(claimed), Relaxed);
        }
    }

    #[inline]
    fn fall(&self, slack: &AtomicU64, n: u64, bound: u64) {
        let spare = slack.load(Relaxed).saturating_add(n);
        let kept = if spare > bound { bound / 2 } else { spare };
        slack.store(kept, Relaxed);
        if spare > kept {
            self.claimed.fetch_sub((spare - kept).cast_signed(), Relaxed);
        }
    }

    fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }
}

/// What a balance comes to where nothing can be negative.
#[inline]
pub(super) fn above_zero(balance: i64) -> u64 {
    balance.max(0).cast_unsigned()
}
