//! Plans how many workers go to which device: the most that fit, then the most even, then the nearest.
//!
//! Everything here is arithmetic on numbers given by the caller; no machine is asked.
//!
//! A plan is levelled, not searched. Room on one device does not depend on another, so the most even plan is the one that
//! fills all devices to the same level. Bisection finds that level, and the remaining workers, fewer than there are devices
//! above it, go to the nearest. This is exact at any size; a test compares it with every possible plan.

mod cluster;
mod explanation;
mod fit;
mod headroom;
mod memory_kind;
mod one_more;

pub use cluster::{ClusterPlacement, ClusterPlanner, ClusterRequest};
pub use fit::{Fit, Overflow, compute_fit};
pub use headroom::{Headroom, HeadroomError};
pub use memory_kind::{MemoryKind, UnknownMemoryKind};
pub use one_more::OneMore;

use bursar_core::{Bytes, DeviceId};
use fit::{overflow, room};

/// The memory that the workers of a stage need.
///
/// ```
/// use bursar::Bytes;
/// use bursar::fit::Need;
///
/// let need = Need { fixed: Bytes::gib(10), per_worker: Bytes::gib(4), want: 16, ..Need::default() };
/// assert_eq!(need.headroom.to_string(), "0.7");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// The bytes that the workers of one device share, needed once on each device that has workers.
    pub fixed: Bytes,
    /// The bytes that each worker needs in addition; zero if that is not known.
    pub per_worker: Bytes,
    /// The number of workers wanted; zero means one.
    pub want: u64,
    /// The fraction of the memory that may be used, by these workers and those who came before.
    pub headroom: Headroom,
}

impl Need {
    /// Returns the number of workers wanted, at least one.
    pub fn wanted(&self) -> u64 {
        self.want.max(1)
    }
}

/// A device, or the machine's memory, that workers could be placed on.
///
/// ```
/// use bursar::fit::Candidate;
/// use bursar::{Bytes, DeviceId};
///
/// let candidate = Candidate { device: Some(DeviceId(0)), available: Bytes::gib(80), charged: Bytes::ZERO, distance: 0, limit: None };
/// assert_eq!(candidate.to_string(), "gpu0");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The device; none for the machine's memory, and for a probe that is not about a particular device.
    pub device: Option<DeviceId>,
    /// The bytes available there.
    pub available: Bytes,
    /// The bytes that programs hold or have set aside there already, as its ledger knows; the headroom is of both together.
    pub charged: Bytes,
    /// The distance from the program: a smaller number is nearer.
    pub distance: u32,
    /// The limit of its ledger, if that and not the memory is why no more is available.
    pub limit: Option<Bytes>,
}

/// A candidate, and the number of workers assigned to it.
///
/// ```
/// use bursar::Bytes;
/// use bursar::fit::{Candidate, MemoryKind, Need, Plan};
///
/// let candidate = Candidate { device: None, available: Bytes(10), charged: Bytes::ZERO, distance: 0, limit: None };
/// let need = Need { per_worker: Bytes(2), want: 2, ..Need::default() };
/// let plan = Plan::of(MemoryKind::Ram, need, &[candidate]).unwrap();
/// let assignment = plan.assignments[0];
/// assert_eq!((assignment.budget, assignment.room, assignment.workers), (Bytes(7), 3, 2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The device, or the machine's memory.
    pub candidate: Candidate,
    /// The part of the available memory that may be used.
    pub budget: Bytes,
    /// The number of workers that would fit here, also where that is more than are wanted; of workers that need nothing, as
    /// many as are wanted.
    pub room: u64,
    /// The number of workers that go here.
    pub workers: u64,
}

impl Assignment {
    /// Returns the bytes that the workers assigned here need together, or none if that overflows.
    pub fn bytes(&self, need: &Need) -> Option<Bytes> {
        match self.workers {
            0 => Some(Bytes::ZERO),
            workers => need.per_worker.0.checked_mul(workers)?.checked_add(need.fixed.0).map(Bytes),
        }
    }
}

/// The number of workers that go to each device, with the numbers that led to it.
///
/// ```
/// use bursar::fit::{Candidate, Headroom, MemoryKind, Need, Plan};
/// use bursar::{Bytes, DeviceId};
///
/// let gpu = |device, gib| Candidate { device: Some(DeviceId(device)), available: Bytes::gib(gib), charged: Bytes::ZERO, distance: 0, limit: None };
/// let need = Need { fixed: Bytes::gib(1), per_worker: Bytes::gib(2), want: 8, headroom: Headroom::ALL };
/// let plan = Plan::of(MemoryKind::Vram, need, &[gpu(0, 4), gpu(1, 80)]).unwrap();
/// assert_eq!(plan.assignments.iter().map(|assignment| assignment.workers).collect::<Vec<_>>(), [1, 7]);
/// assert!(plan.explanation().starts_with("All 8 workers fit: 1 on gpu0 and 7 on gpu1."));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The kind of memory that was planned.
    pub memory: MemoryKind,
    /// The request.
    pub need: Need,
    /// An assignment for each candidate in the order given, including those with no workers.
    pub assignments: Vec<Assignment>,
    /// The number of workers: at least one.
    pub workers: u64,
    /// True if that is fewer than were wanted.
    pub reduced: bool,
    /// The part that fits nowhere, if not even one worker fits.
    pub overflow: Option<Overflow>,
}

impl Plan {
    /// Plans `need` over `candidates`. Returns none if there are no candidates.
    ///
    /// Of all ways to start as many workers as fit and are wanted, the plan is the one whose fullest candidate has the
    /// fewest, whose next fullest has the fewest, and so on; of those, the one whose remaining workers are nearest; of
    /// those, the first. Where not even one fits, one goes to the candidate with the most available.
    pub fn of(memory: MemoryKind, need: Need, candidates: &[Candidate]) -> Option<Self> {
        let want = need.wanted();
        let mut assignments: Vec<Assignment> = candidates
            .iter()
            .map(|&candidate| {
                let budget = need.headroom.of_rest(candidate.available, candidate.charged);
                let room = room(budget, need.fixed, need.per_worker, want);
                Assignment { candidate, budget, room, workers: 0 }
            })
            .collect();
        let fitting = placed(&assignments, u64::MAX).min(u128::from(want)) as u64;
        let (workers, overflow) = match fitting {
            0 => assign_overflowing(&mut assignments, &need)?,
            _ => {
                spread(&mut assignments, fitting);
                (fitting, None)
            }
        };
        Some(Self { memory, need, assignments, workers, reduced: workers < want, overflow })
    }

    /// Returns the bytes available on all candidates together.
    pub fn available(&self) -> Bytes {
        self.sum(|assignment| assignment.candidate.available)
    }

    /// Returns the bytes that programs have on all candidates together already.
    pub fn charged(&self) -> Bytes {
        self.sum(|assignment| assignment.candidate.charged)
    }

    /// Returns the bytes that may be used on all candidates together.
    pub fn budget(&self) -> Bytes {
        self.sum(|assignment| assignment.budget)
    }

    fn sum(&self, bytes: impl Fn(&Assignment) -> Bytes) -> Bytes {
        self.assignments.iter().fold(Bytes::ZERO, |sum, assignment| sum.saturating_add(bytes(assignment)))
    }

    /// Returns how many workers fit: zero for a plan that overflows.
    pub fn fitting(&self) -> u64 {
        if self.overflow.is_some() { 0 } else { self.workers }
    }
}

/// Returns how many workers are placed if every candidate takes at most `level`.
fn placed(assignments: &[Assignment], level: u64) -> u128 {
    assignments.iter().map(|assignment| u128::from(assignment.room.min(level))).sum()
}

/// Assigns `workers`, for which there is room.
fn spread(assignments: &mut [Assignment], workers: u64) {
    let (mut level, mut above) = (0, workers);
    while level < above {
        let middle = level + (above - level).div_ceil(2);
        if placed(assignments, middle) <= u128::from(workers) { level = middle } else { above = middle - 1 }
    }
    let remaining = (u128::from(workers) - placed(assignments, level)) as usize;
    assignments.iter_mut().for_each(|assignment| assignment.workers = assignment.room.min(level));
    let mut roomy: Vec<&mut Assignment> = assignments.iter_mut().filter(|assignment| assignment.room > level).collect();
    // The sort is stable: candidates at the same distance keep their order.
    roomy.sort_by_key(|assignment| assignment.candidate.distance);
    roomy.into_iter().take(remaining).for_each(|assignment| assignment.workers += 1);
}

/// Assigns a worker where none fits, and returns the number assigned and the part that overflows.
fn assign_overflowing(assignments: &mut [Assignment], need: &Need) -> Option<(u64, Option<Overflow>)> {
    let nearness = |assignment: &Assignment| std::cmp::Reverse(assignment.candidate.distance);
    let size = |assignment: &&mut Assignment| (assignment.candidate.available, nearness(assignment));
    // `max_by_key` returns the last of equals, and the first is wanted.
    let widest = assignments.iter_mut().rev().max_by_key(size)?;
    widest.workers = if need.per_worker == Bytes::ZERO { need.wanted() } else { 1 };
    Some((widest.workers, overflow(widest.budget, need.fixed, 0)))
}
