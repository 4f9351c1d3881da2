//! The outcome of a program.

use super::op::Op;
use bursar_core::{Progress, Status};
use std::fmt::Debug;

/// The result of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallResult {
    Done,
    Progress(Progress),
    /// A query succeeded whose result depends on the schedule.
    Unspecified,
    Failed(Status),
    /// The operation was skipped: its block had not been allocated.
    Skipped,
}

impl CallResult {
    /// Returns the result of a query, if it does not depend on the schedule.
    pub(super) fn query(found: Progress, expected: Option<Progress>) -> Self {
        match expected {
            Some(_) => Self::Progress(found),
            None => Self::Unspecified,
        }
    }

    pub(super) fn from_result(result: Result<Self, Status>) -> Self {
        result.unwrap_or_else(Self::Failed)
    }
}

/// Everything about the run of a program that does not depend on the schedule.
///
/// ```
/// use bursar_conformance::program::{DriverProgram, ProgramShape};
///
/// let (one, other) = (DriverProgram::generate(1, ProgramShape::DRIVER), DriverProgram::generate(2, ProgramShape::DRIVER));
/// assert_eq!(one.expected().difference(&one.expected()), None);
/// assert!(one.expected().difference(&other.expected()).is_some());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramOutcome {
    /// The result of each operation.
    pub(super) results: Vec<CallResult>,
    /// The bytes of each read-back, by the number of its operation.
    pub(super) read_backs: Vec<(usize, Vec<u8>)>,
    /// The contents of each live block at the end, by its number.
    pub(super) blocks: Vec<(usize, Vec<u8>)>,
    /// For each stream, the numbers of its host functions in the order in which they ran.
    pub(super) host_functions: Vec<Vec<u32>>,
}

impl ProgramOutcome {
    /// Describes the first difference between two runs of one program, this one's value first.
    pub fn difference(&self, other: &Self) -> Option<String> {
        listed("operation", &self.results, &other.results)
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

/// Collects the read-backs of a program from the host memory that they were copied to.
pub(super) fn read_backs(
    ops: &[Op],
    mut read: impl FnMut(super::op::HostOffset, usize) -> Vec<u8>,
) -> Vec<(usize, Vec<u8>)> {
    let found = ops.iter().enumerate().filter_map(|(number, op)| match op {
        Op::ReadBack { range, to, .. } => Some((number, read(*to, range.bytes as usize))),
        _ => None,
    });
    found.collect()
}
