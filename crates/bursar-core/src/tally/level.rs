//! How high something stands, and how high it ever stood.

use super::Amount;
use super::chunks::Chunks;
use super::place::NEAR_TAGS;
use super::slack::{BOUND_BYTES, BOUND_COUNT, Slack};
use crate::{Bytes, Latch};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// The levels of a tally. Whoever moves them has the turn, and anyone may read them.
#[derive(Debug, Default)]
pub(super) struct Levels {
    pub(super) turn: Latch<()>,
    pub(super) whole: Level,
    pub(super) tags: Chunks<Level, NEAR_TAGS>,
}

/// A level that threads raise and lower through a slack of their own, on a cache line of its own.
///
/// What is claimed here is what is live plus the slack of all threads. A thread that frees keeps what it freed as slack,
/// up to a bound, and what it allocates next is taken from there; only what the slack does not cover is claimed. So the
/// claim is never below the truth, and never further above it than the bound for each other thread.
///
/// Frees of blocks that were never counted make the claim negative, like what is live: neither then raises a peak.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Level {
    bytes: AtomicI64,
    count: AtomicI64,
}

/// The highest that one thread ever made a level stand. Only that thread writes, so to raise it is a load and a store; the
/// level's peak is the highest of all threads'.
#[derive(Debug, Default)]
pub(super) struct Top {
    bytes: AtomicI64,
    count: AtomicI64,
}

/// A level, and what the current thread has of it.
pub(super) struct Share<'a> {
    pub(super) level: &'a Level,
    pub(super) slack: &'a Slack,
    pub(super) top: &'a Top,
}

impl Share<'_> {
    #[inline]
    fn rise(&self, bytes: u64) {
        let Self { level, slack, top } = self;
        let (spare, spare_count) = slack.get();
        slack.set(claim(&level.bytes, &top.bytes, spare, bytes), claim(&level.count, &top.count, spare_count, 1));
    }

    #[inline]
    fn fall(&self, bytes: u64) {
        let Self { level, slack, .. } = self;
        let (spare, spare_count) = slack.get();
        slack.set(let_go(&level.bytes, spare, bytes, BOUND_BYTES), let_go(&level.count, spare_count, 1, BOUND_COUNT));
    }
}

/// The shares of everything and of one tag.
pub(super) struct Shares<'a> {
    pub(super) turn: &'a Latch<()>,
    pub(super) whole: Share<'a>,
    pub(super) tag: Share<'a>,
}

impl Shares<'_> {
    /// One more block of `bytes`.
    #[inline]
    pub(super) fn rise(&self, bytes: u64) {
        let _turn = self.turn.lock();
        self.whole.rise(bytes);
        self.tag.rise(bytes);
    }

    /// One block of `bytes` less.
    #[inline]
    pub(super) fn fall(&self, bytes: u64) {
        let _turn = self.turn.lock();
        self.whole.fall(bytes);
        self.tag.fall(bytes);
    }
}

impl Top {
    pub(super) const fn new() -> Self {
        Self { bytes: AtomicI64::new(0), count: AtomicI64::new(0) }
    }

    /// The higher of this and another, in bytes and in blocks.
    pub(super) fn or(&self, other: Amount) -> Amount {
        let [bytes, count] = [&self.bytes, &self.count].map(|top| above_zero(top.load(Relaxed)));
        Amount { bytes: Bytes(bytes.max(other.bytes.get())), count: count.max(other.count) }
    }

    /// Makes it what it was when it was new.
    pub(super) fn clear(&self) {
        self.bytes.store(0, Relaxed);
        self.count.store(0, Relaxed);
    }
}

/// Claims what a slack does not cover, and answers what is left of it.
#[inline]
fn claim(claimed: &AtomicI64, top: &AtomicI64, slack: u64, n: u64) -> u64 {
    if n <= slack {
        return slack - n;
    }
    let stands = claimed.load(Relaxed).wrapping_add((n - slack).cast_signed());
    claimed.store(stands, Relaxed);
    if stands > top.load(Relaxed) {
        top.store(stands, Relaxed);
    }
    0
}

/// Lets go of what is too much for a slack, and answers what becomes of it.
#[inline]
fn let_go(claimed: &AtomicI64, slack: u64, n: u64, bound: u64) -> u64 {
    if n < bound - slack {
        return slack + n;
    }
    let less = n.wrapping_add(slack).wrapping_sub(bound / 2).cast_signed();
    claimed.store(claimed.load(Relaxed).wrapping_sub(less), Relaxed);
    bound / 2
}

/// What a balance comes to where nothing can be negative.
#[inline]
pub(super) fn above_zero(balance: i64) -> u64 {
    balance.max(0).cast_unsigned()
}
