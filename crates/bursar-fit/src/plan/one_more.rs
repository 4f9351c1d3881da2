//! The least change that would make one more worker fit.

use super::{Assignment, Candidate, Headroom, Plan};
use bursar_core::Bytes;

/// The changes each of which would, by itself and only just, make one more worker fit, or the first one where none does.
///
/// ```
/// use bursar::Bytes;
/// use bursar::fit::{Candidate, Headroom, MemoryKind, Need, Plan};
///
/// let candidate = Candidate { device: None, available: Bytes(100), charged: Bytes::ZERO, distance: 0, limit: None };
/// let need = Need { fixed: Bytes(10), per_worker: Bytes(7), want: 16, ..Need::default() };
/// let more = Plan::of(MemoryKind::Ram, need, &[candidate]).unwrap().one_more().unwrap();
/// assert_eq!((more.available, more.headroom), (Some(Bytes(105)), Headroom::millionths(730_000).ok()));
/// assert_eq!((more.per_worker, more.fixed), (Some(Bytes(6)), Some(Bytes(7))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OneMore {
    /// The index, in [`Plan::assignments`], of the candidate that lacks the least.
    pub candidate: usize,
    /// The least that would have to be available there.
    pub available: Option<Bytes>,
    /// The most that each worker may need.
    pub per_worker: Option<Bytes>,
    /// The most that may be shared.
    pub fixed: Option<Bytes>,
    /// The least fraction of the available memory that would have to be usable.
    pub headroom: Option<Headroom>,
}

impl Plan {
    /// Returns the changes that would make one more worker fit, or none if as many fit as are wanted.
    pub fn one_more(&self) -> Option<OneMore> {
        if self.fitting() >= self.need.wanted() {
            return None;
        }
        let lack = |assignment: &Assignment| {
            let Assignment { candidate, .. } = assignment;
            let least = self.least_available(assignment);
            (least.map_or(u64::MAX, |least| least.saturating_sub(candidate.available).0), candidate.distance)
        };
        let (candidate, lacking) =
            self.assignments.iter().enumerate().min_by_key(|(_, assignment)| lack(assignment))?;
        let headrooms = self.assignments.iter().filter_map(|assignment| {
            let Candidate { available, charged, .. } = assignment.candidate;
            let whole = available.0.checked_add(charged.0).map(Bytes)?;
            Headroom::least_for(self.needed_for_one_more(assignment) + u128::from(charged.0), whole)
        });
        Some(OneMore {
            candidate,
            available: self.least_available(lacking),
            per_worker: self.most_per_worker(),
            fixed: self.most_fixed(),
            headroom: headrooms.min(),
        })
    }

    /// Returns the least that would have to be available on a candidate, with what others have there, for one worker more.
    fn least_available(&self, assignment: &Assignment) -> Option<Bytes> {
        let charged = assignment.candidate.charged;
        let needed = self.needed_for_one_more(assignment) + u128::from(charged.0);
        self.need.headroom.least_available(needed).map(|whole| whole.saturating_sub(charged))
    }

    /// Returns the bytes that a candidate needs for one worker more than it has room for.
    fn needed_for_one_more(&self, assignment: &Assignment) -> u128 {
        (u128::from(assignment.room) + 1) * u128::from(self.need.per_worker.0) + u128::from(self.need.fixed.0)
    }

    /// Returns the most that each worker may need for one more to fit.
    fn most_per_worker(&self) -> Option<Bytes> {
        let enough = u128::from(self.fitting()) + 1;
        let fitting = |per_worker: u64| -> u128 {
            let left =
                self.assignments.iter().filter_map(|assignment| assignment.budget.0.checked_sub(self.need.fixed.0));
            left.map(|left| u128::from(left / per_worker)).sum()
        };
        let (mut most, mut above) = (0, self.need.per_worker.0);
        while most < above {
            let middle = most + (above - most).div_ceil(2);
            if fitting(middle) >= enough { most = middle } else { above = middle - 1 }
        }
        (most > 0).then_some(Bytes(most))
    }

    /// Returns the most that may be shared for one more to fit.
    fn most_fixed(&self) -> Option<Bytes> {
        let most = |assignment: &Assignment| {
            let workers = (u128::from(assignment.room) + 1) * u128::from(self.need.per_worker.0);
            u64::try_from(workers).ok().and_then(|workers| assignment.budget.0.checked_sub(workers))
        };
        self.assignments.iter().filter_map(most).max().map(Bytes)
    }
}
