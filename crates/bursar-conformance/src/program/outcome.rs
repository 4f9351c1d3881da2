//! What came of a program.

use super::op::Op;
use bursar_core::{Progress, Status};
use std::fmt::Debug;

/// What a driver answered to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Said(Progress),
    /// It was asked for something that depends on the schedule, and answered.
    Open,
    Failed(Status),
    /// It was not asked: the block had not been allocated.
    Skipped,
}

impl Answer {
    /// What a query said, where that is determined.
    pub(super) fn query(said: Progress, expected: Option<Progress>) -> Self {
        match expected {
            Some(_) => Self::Said(said),
            None => Self::Open,
        }
    }

    pub(super) fn of(answer: Result<Self, Status>) -> Self {
        answer.unwrap_or_else(Self::Failed)
    }
}

/// Everything about the run of a program that does not depend on the schedule.
///
/// ```
/// use bursar_conformance::program::{Program, Shape};
///
/// let (one, other) = (Program::generate(1, Shape::DRIVER), Program::generate(2, Shape::DRIVER));
/// assert_eq!(one.expected().difference(&one.expected()), None);
/// assert!(one.expected().difference(&other.expected()).is_some());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// One answer an operation.
    pub(super) answers: Vec<Answer>,
    /// What each read-back found, by the number of its operation.
    pub(super) read_backs: Vec<(usize, Vec<u8>)>,
    /// What was in each live block at the end, by its number.
    pub(super) blocks: Vec<(usize, Vec<u8>)>,
    /// For each stream, the numbers of its host functions in the order in which they ran.
    pub(super) host_functions: Vec<Vec<u32>>,
}

impl Outcome {
    /// The first thing that two runs of one program disagree about, this one's first.
    pub fn difference(&self, other: &Self) -> Option<String> {
        listed("operation", &self.answers, &other.answers)
            .or_else(|| bytes("the read-back of operation", &self.read_backs, &other.read_backs))
            .or_else(|| bytes("block", &self.blocks, &other.blocks))
            .or_else(|| listed("the host functions of stream", &self.host_functions, &other.host_functions))
    }
}

fn listed<T: Debug + PartialEq>(what: &str, these: &[T], those: &[T]) -> Option<String> {
    if these.len() != those.len() {
        return Some(format!("{what} {}: only one has it", these.len().min(those.len())));
    }
    let at = these.iter().zip(those).position(|(this, that)| this != that)?;
    Some(format!("{what} {at}: {:?} and {:?}", these[at], those[at]))
}

type Contents = (usize, Vec<u8>);

fn bytes(what: &str, these: &[Contents], those: &[Contents]) -> Option<String> {
    let lengths = |contents: &[Contents]| contents.iter().map(|(at, bytes)| (*at, bytes.len())).collect::<Vec<_>>();
    listed(what, &lengths(these), &lengths(those)).or_else(|| {
        let mut pairs = these.iter().zip(those);
        let ((number, this), (_, that)) = pairs.find(|(this, that)| this != that)?;
        let at = this.iter().zip(that).position(|(this, that)| this != that)?;
        let (one, other) = (this[at], that[at]);
        Some(format!("{what} {number}: byte {at} of {} is {one:#04x} and {other:#04x}", this.len()))
    })
}

/// The read-backs of a program, found in the host memory they were made to.
pub(super) fn read_backs(
    ops: &[Op],
    mut read: impl FnMut(super::op::Place, usize) -> Vec<u8>,
) -> Vec<(usize, Vec<u8>)> {
    let found = ops.iter().enumerate().filter_map(|(number, op)| match op {
        Op::ReadBack { part, to, .. } => Some((number, read(*to, part.bytes as usize))),
        _ => None,
    });
    found.collect()
}
