//! Levels: how much is claimed by all threads, and the most that ever was.

use super::Amount;
use super::chunks::Chunks;
use super::key::NEAR_TAGS;
use super::slack::{BOUND_BYTES, BOUND_COUNT, Slack};
use crate::{Bytes, Latch};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// The levels of a tally. Whoever moves them has the latch; anybody may read them.
#[derive(Debug, Default)]
pub(super) struct Levels {
    pub(super) latch: Latch<()>,
    pub(super) whole: Level,
    pub(super) tags: Chunks<Level, NEAR_TAGS>,
}

/// A level that threads raise and lower through a slack of their own, on a cache line of its own.
///
/// The claim is what is live plus the slack of all threads. A thread that frees keeps what it freed as slack, up to a
/// bound, and what it allocates next is taken from there; what the slack does not cover is claimed. So the claim is
/// never below the truth, and never further above it than the bound for each thread. Before a claim would raise the
/// peak, the thread that makes it gives up its slack, which is not live: where one thread does everything, peaks are
/// exact.
///
/// Frees of blocks that were never counted can make the claim, and the sum of live blocks, negative. A negative claim
/// never raises the peak.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Level {
    bytes: ClaimAndPeak,
    count: ClaimAndPeak,
}

/// A claim, and the most that it ever was. Only whoever has the latch writes, so an addition is a load and a store.
#[derive(Debug, Default)]
struct ClaimAndPeak {
    claimed: AtomicI64,
    peak: AtomicI64,
}

impl Level {
    /// Returns the peak.
    pub(super) fn peak(&self) -> Amount {
        let [bytes, count] = [&self.bytes, &self.count].map(|one| above_zero(one.peak.load(Relaxed)));
        Amount { bytes: Bytes(bytes), count }
    }
}

impl ClaimAndPeak {
    /// Claims `n` where a slack does not cover it, and returns the new slack.
    #[inline(always)]
    fn claim(&self, slack: u64, n: u64) -> u64 {
        if n <= slack {
            return slack - n;
        }
        let claimed = self.claimed.load(Relaxed).wrapping_add(n.cast_signed());
        if claimed > self.peak.load(Relaxed) {
            return self.raise_to(claimed.wrapping_sub(slack.cast_signed()));
        }
        self.claimed.store(claimed, Relaxed);
        slack
    }

    /// Sets the claim, which may be a new peak, and leaves no slack.
    #[cold]
    fn raise_to(&self, claimed: i64) -> u64 {
        self.claimed.store(claimed, Relaxed);
        self.peak.store(claimed.max(self.peak.load(Relaxed)), Relaxed);
        0
    }

    /// Gives up what is too much for a slack, and returns the new slack. A block that is large by itself leaves the
    /// slack as it was.
    #[inline(always)]
    fn release(&self, slack: u64, n: u64, bound: u64) -> u64 {
        if n < bound - slack {
            return slack + n;
        }
        let kept = if n < bound / 2 { bound / 2 } else { slack };
        let less = slack.wrapping_add(n).wrapping_sub(kept).cast_signed();
        self.claimed.store(self.claimed.load(Relaxed).wrapping_sub(less), Relaxed);
        kept
    }
}

/// A level, and the current thread's slack of it.
pub(super) struct Share<'a> {
    pub(super) level: &'a Level,
    pub(super) slack: &'a Slack,
}

impl Share<'_> {
    #[inline(always)]
    fn add(&self, bytes: u64) {
        let (Level { bytes: whole, count }, (spare, spare_count)) = (self.level, self.slack.get());
        self.slack.set(whole.claim(spare, bytes), count.claim(spare_count, 1));
    }

    #[inline(always)]
    fn remove(&self, bytes: u64) {
        let (Level { bytes: whole, count }, (spare, spare_count)) = (self.level, self.slack.get());
        self.slack.set(whole.release(spare, bytes, BOUND_BYTES), count.release(spare_count, 1, BOUND_COUNT));
    }

    /// Counts bytes of a block that is counted already.
    fn add_bytes(&self, bytes: u64) {
        let (spare, spare_count) = self.slack.get();
        self.slack.set(self.level.bytes.claim(spare, bytes), spare_count);
    }

    /// Counts bytes less of a block that stays counted.
    fn remove_bytes(&self, bytes: u64) {
        let (spare, spare_count) = self.slack.get();
        self.slack.set(self.level.bytes.release(spare, bytes, BOUND_BYTES), spare_count);
    }
}

/// The shares of a tag whose blocks are divided, and of the tag of a part.
pub(super) struct Division<'a> {
    pub(super) latch: &'a Latch<()>,
    pub(super) divided: Share<'a>,
    pub(super) part: Share<'a>,
}

impl Division<'_> {
    /// Counts a part of `bytes` as a block of its own tag.
    pub(super) fn part(&self, bytes: u64) {
        let _turn = self.latch.lock();
        self.divided.remove_bytes(bytes);
        self.part.add(bytes);
    }

    /// Undoes [`part`](Self::part).
    pub(super) fn rejoin(&self, bytes: u64) {
        let _turn = self.latch.lock();
        self.part.remove(bytes);
        self.divided.add_bytes(bytes);
    }
}

/// The shares of the total and of one tag.
pub(super) struct Shares<'a> {
    pub(super) latch: &'a Latch<()>,
    pub(super) whole: Share<'a>,
    pub(super) tag: Share<'a>,
}

impl Shares<'_> {
    /// Counts one more block of `bytes`.
    #[inline(always)]
    pub(super) fn add(&self, bytes: u64) {
        let _turn = self.latch.lock();
        self.whole.add(bytes);
        self.tag.add(bytes);
    }

    /// Counts one block of `bytes` less.
    #[inline(always)]
    pub(super) fn remove(&self, bytes: u64) {
        let _turn = self.latch.lock();
        self.whole.remove(bytes);
        self.tag.remove(bytes);
    }
}

/// Returns a balance, or zero where it is negative.
#[inline]
pub(super) fn above_zero(balance: i64) -> u64 {
    balance.max(0).cast_unsigned()
}
