//! How many workers go where: the most that fit, then the most even, then the nearest.

use crate::fit::{overflow, room};
use crate::{Headroom, Overflow, Pool};
use bursar_core::{Bytes, DeviceId};

/// What a stage needs.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_fit::Need;
///
/// let need = Need { fixed: Bytes::gib(10), per_worker: Bytes::gib(4), want: 16, ..Need::default() };
/// assert_eq!(need.headroom.to_string(), "0.7");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// What the workers of one device share, once for each device that has any.
    pub fixed: Bytes,
    /// What each worker needs beside it; zero where that is not known.
    pub per_worker: Bytes,
    /// How many workers there should be; zero is one.
    pub want: u64,
    /// The fraction of what is available that may be used.
    pub headroom: Headroom,
}

impl Need {
    /// How many are wanted, at least one.
    pub fn wanted(&self) -> u64 {
        self.want.max(1)
    }
}

/// Somewhere that workers can go: a device, or the machine's memory.
///
/// ```
/// use bursar_core::{Bytes, DeviceId};
/// use bursar_fit::Seat;
///
/// let seat = Seat { device: Some(DeviceId(0)), available: Bytes::gib(80), distance: 0 };
/// assert_eq!(seat.to_string(), "gpu0");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The device; none for the machine's memory, or where nobody said which device it is.
    pub device: Option<DeviceId>,
    /// What is available there.
    pub available: Bytes,
    /// How far away it is: a smaller number is nearer.
    pub distance: u32,
}

/// A seat, and how many workers go there.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_fit::{Need, Plan, Pool, Seat};
///
/// let seat = Seat { device: None, available: Bytes(10), distance: 0 };
/// let plan = Plan::of(Pool::Ram, Need { per_worker: Bytes(2), want: 2, ..Need::default() }, &[seat]).unwrap();
/// assert_eq!((plan.places[0].budget, plan.places[0].room, plan.places[0].workers), (Bytes(7), 2, 2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where.
    pub seat: Seat,
    /// What may be used of what is available there.
    pub budget: Bytes,
    /// How many workers would fit there, at most as many as are wanted.
    pub room: u64,
    /// How many go there.
    pub workers: u64,
}

impl Place {
    /// What the workers that go here need together; none where that is more than there can be.
    pub fn bytes(&self, need: &Need) -> Option<Bytes> {
        match self.workers {
            0 => Some(Bytes::ZERO),
            workers => need.per_worker.0.checked_mul(workers)?.checked_add(need.fixed.0).map(Bytes),
        }
    }
}

/// How many workers go where, and why.
///
/// ```
/// use bursar_core::{Bytes, DeviceId};
/// use bursar_fit::{Headroom, Need, Plan, Pool, Seat};
///
/// let seat = |device, gib| Seat { device: Some(DeviceId(device)), available: Bytes::gib(gib), distance: 0 };
/// let need = Need { fixed: Bytes::gib(1), per_worker: Bytes::gib(2), want: 8, headroom: Headroom::ALL };
/// let plan = Plan::of(Pool::Vram, need, &[seat(0, 4), seat(1, 80)]).unwrap();
/// assert_eq!(plan.places.iter().map(|place| place.workers).collect::<Vec<_>>(), [1, 7]);
/// assert!(plan.explanation().starts_with("All 8 workers fit: 1 on gpu0 and 7 on gpu1."));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The memory that it is about.
    pub pool: Pool,
    /// What was asked for.
    pub need: Need,
    /// Each seat in the order given, also those that nobody goes to.
    pub places: Vec<Place>,
    /// How many workers there are: at least one.
    pub workers: u64,
    /// Whether that is fewer than were wanted.
    pub reduced: bool,
    /// What does not fit anywhere, where even one worker is too many.
    pub overflow: Option<Overflow>,
}

impl Plan {
    /// The plan for `need` over `seats`; none without a seat.
    ///
    /// Of all ways to start as many workers as fit and are wanted, the one whose fullest seat has the fewest, whose next
    /// fullest has the fewest, and so on; then the one whose odd workers are nearest; then the first. Where not even one
    /// fits, one goes to the seat with the most available.
    pub fn of(pool: Pool, need: Need, seats: &[Seat]) -> Option<Self> {
        let want = need.wanted();
        let mut places: Vec<Place> = seats
            .iter()
            .map(|&seat| {
                let budget = need.headroom.of(seat.available);
                Place { seat, budget, room: room(budget, need.fixed, need.per_worker, want), workers: 0 }
            })
            .collect();
        let fitting = seated(&places, u64::MAX).min(u128::from(want)) as u64;
        let (workers, overflow) = match fitting {
            0 => overflowing(&mut places, &need)?,
            _ => {
                spread(&mut places, fitting);
                (fitting, None)
            }
        };
        Some(Self { pool, need, places, workers, reduced: workers < want, overflow })
    }

    /// What is available at all seats together.
    pub fn available(&self) -> Bytes {
        self.sum(|place| place.seat.available)
    }

    /// What may be used of that.
    pub fn budget(&self) -> Bytes {
        self.sum(|place| place.budget)
    }

    fn sum(&self, bytes: impl Fn(&Place) -> Bytes) -> Bytes {
        self.places.iter().fold(Bytes::ZERO, |sum, place| sum.saturating_add(bytes(place)))
    }

    /// How many workers fit: none where the plan is one that overflows.
    pub fn fitting(&self) -> u64 {
        if self.overflow.is_some() { 0 } else { self.workers }
    }
}

/// How many workers there are if no place has more than `level`.
fn seated(places: &[Place], level: u64) -> u128 {
    places.iter().map(|place| u128::from(place.room.min(level))).sum()
}

/// Seats `workers`, for whom there is room.
fn spread(places: &mut [Place], workers: u64) {
    let (mut level, mut above) = (0, workers);
    while level < above {
        let middle = level + (above - level).div_ceil(2);
        if seated(places, middle) <= u128::from(workers) { level = middle } else { above = middle - 1 }
    }
    let odd = (u128::from(workers) - seated(places, level)) as usize;
    places.iter_mut().for_each(|place| place.workers = place.room.min(level));
    let mut roomy: Vec<&mut Place> = places.iter_mut().filter(|place| place.room > level).collect();
    // The order of seats at the same distance stays.
    roomy.sort_by_key(|place| place.seat.distance);
    roomy.into_iter().take(odd).for_each(|place| place.workers += 1);
}

/// Seats a worker where none fits, and says what is to blame.
fn overflowing(places: &mut [Place], need: &Need) -> Option<(u64, Option<Overflow>)> {
    let nearness = |place: &Place| std::cmp::Reverse(place.seat.distance);
    // The last of equals is chosen, so they are looked at from the end.
    let widest = places.iter_mut().rev().max_by_key(|place| (place.seat.available, nearness(place)))?;
    widest.workers = if need.per_worker == Bytes::ZERO { need.wanted() } else { 1 };
    Some((widest.workers, overflow(widest.budget, need.fixed, 0)))
}
