//! What would make one more worker fit.

use crate::{Headroom, Place, Plan};
use bursar_core::Bytes;

/// What would make one more worker fit than do, or the first where none does: each by itself, and only just.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_fit::{Headroom, Need, Plan, Pool, Seat};
///
/// let seat = Seat { device: None, available: Bytes(100), distance: 0 };
/// let need = Need { fixed: Bytes(10), per_worker: Bytes(7), want: 16, ..Need::default() };
/// let more = Plan::of(Pool::Ram, need, &[seat]).unwrap().one_more().unwrap();
/// assert_eq!((more.available, more.headroom), (Some(Bytes(105)), Headroom::millionths(730_000).ok()));
/// assert_eq!((more.per_worker, more.fixed), (Some(Bytes(6)), Some(Bytes(7))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OneMore {
    /// The place in the plan that lacks the least.
    pub place: usize,
    /// The least that would have to be available there.
    pub available: Option<Bytes>,
    /// The most that each worker may need.
    pub per_worker: Option<Bytes>,
    /// The most that may be shared.
    pub fixed: Option<Bytes>,
    /// The least fraction of what is available that would have to be usable.
    pub headroom: Option<Headroom>,
}

impl Plan {
    /// What would make one more worker fit; none where as many fit as are wanted.
    pub fn one_more(&self) -> Option<OneMore> {
        if self.fitting() >= self.need.wanted() {
            return None;
        }
        let lack = |place: &Place| {
            let least = self.need.headroom.least_available(self.wanted_at(place));
            (least.map_or(u64::MAX, |least| least.saturating_sub(place.seat.available).0), place.seat.distance)
        };
        let (place, lacking) = self.places.iter().enumerate().min_by_key(|(_, place)| lack(place))?;
        let headrooms =
            self.places.iter().filter_map(|place| Headroom::least_for(self.wanted_at(place), place.seat.available));
        Some(OneMore {
            place,
            available: self.need.headroom.least_available(self.wanted_at(lacking)),
            per_worker: self.most_per_worker(),
            fixed: self.most_fixed(),
            headroom: headrooms.min(),
        })
    }

    /// What a place needs for one worker more than have room there.
    fn wanted_at(&self, place: &Place) -> u128 {
        (u128::from(place.room) + 1) * u128::from(self.need.per_worker.0) + u128::from(self.need.fixed.0)
    }

    /// The most that each worker may need for one more to fit.
    fn most_per_worker(&self) -> Option<Bytes> {
        let enough = u128::from(self.fitting()) + 1;
        let fitting = |per_worker: u64| -> u128 {
            let left = self.places.iter().filter_map(|place| place.budget.0.checked_sub(self.need.fixed.0));
            left.map(|left| u128::from(left / per_worker)).sum()
        };
        let (mut most, mut above) = (0, self.need.per_worker.0);
        while most < above {
            let middle = most + (above - most).div_ceil(2);
            if fitting(middle) >= enough { most = middle } else { above = middle - 1 }
        }
        (most > 0).then_some(Bytes(most))
    }

    /// The most that may be shared for one more to fit.
    fn most_fixed(&self) -> Option<Bytes> {
        let of = |place: &Place| {
            let workers = (u128::from(place.room) + 1) * u128::from(self.need.per_worker.0);
            u64::try_from(workers).ok().and_then(|workers| place.budget.0.checked_sub(workers))
        };
        self.places.iter().filter_map(of).max().map(Bytes)
    }
}
