//! The arithmetic of one memory: how many workers fit into so many bytes.

use super::Headroom;
use bursar_core::Bytes;

/// The number of workers that fit.
///
/// ```
/// use bursar::Bytes;
/// use bursar::fit::{Headroom, compute_fit};
///
/// let fit = compute_fit(Bytes::gib(64), Bytes::gib(10), Bytes::gib(4), 16, Headroom::default());
/// assert_eq!((fit.workers, fit.reduced, fit.overflow), (8, true, None));
/// assert_eq!(compute_fit(Bytes(10), Bytes(0), Bytes(1), 16, Headroom::default()).workers, 7);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The number of workers to start: at least one.
    pub workers: u64,
    /// True if that is fewer than were wanted.
    pub reduced: bool,
    /// The part that exceeds the budget, if not even one worker fits.
    pub overflow: Option<Overflow>,
    /// The part of the available memory that may be used.
    pub budget: Bytes,
}

/// The part that is too large for the budget.
///
/// ```
/// use bursar::Bytes;
/// use bursar::fit::{Headroom, Overflow, compute_fit};
///
/// let overflow = |fixed, per_worker| compute_fit(Bytes(10), fixed, per_worker, 1, Headroom::ALL).overflow;
/// assert_eq!(overflow(Bytes(11), Bytes(1)), Some(Overflow::Shared));
/// assert_eq!(overflow(Bytes(5), Bytes(6)), Some(Overflow::Worker));
/// assert_eq!(overflow(Bytes(5), Bytes(5)), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The data that all workers share exceeds the budget by itself.
    Shared,
    /// One worker exceeds what the shared data leaves of the budget.
    Worker,
}

/// Computes how many of `want` workers fit into `headroom` of `available`, beside `fixed` bytes that they share.
///
/// `want` of zero or none means one worker. With `per_worker` of zero or none the result is `want`, and only the shared data
/// can overflow. Where nothing fits, the result is one worker with [`overflow`](Fit::overflow) set.
pub fn compute_fit(
    available: Bytes,
    fixed: Bytes,
    per_worker: impl Into<Option<Bytes>>,
    want: impl Into<Option<u64>>,
    headroom: Headroom,
) -> Fit {
    let (per_worker, want) = (per_worker.into().unwrap_or_default(), want.into().unwrap_or_default().max(1));
    let budget = headroom.of(available);
    let room = room(budget, fixed, per_worker, want);
    let overflow = overflow(budget, fixed, room);
    let workers = match per_worker {
        Bytes::ZERO => want,
        _ => room.clamp(1, want),
    };
    Fit { workers, reduced: workers < want, overflow, budget }
}

/// Returns how many workers have room in `budget` beside `fixed`: `want` of those that need nothing.
pub(super) fn room(budget: Bytes, fixed: Bytes, per_worker: Bytes, want: u64) -> u64 {
    match budget.0.checked_sub(fixed.0) {
        None => 0,
        Some(left) => left.checked_div(per_worker.0).unwrap_or(want),
    }
}

/// Returns which part overflows if `room` is zero.
pub(super) fn overflow(budget: Bytes, fixed: Bytes, room: u64) -> Option<Overflow> {
    (room == 0).then_some(if fixed > budget { Overflow::Shared } else { Overflow::Worker })
}
