//! The explanation of a hazard: its run, cut down to the calls that matter to it.

mod text;

use bursar_sim::{CallOutcome, CallRecord, Hazard, HazardKind, KernelPanic, Operation, Sim};
use std::collections::BTreeSet;

/// The most hazards of one run that are explained: the first are the causes of the others.
const HAZARDS_MAX: usize = 16;

/// A hazard, and the calls of its run that matter to it.
///
/// ```
/// use bursar::prelude::*;
/// use bursar::sim::Launch;
/// use bursar::testing::races;
///
/// let race = races(|rig| {
///     let (a, b) = (rig.stream()?, rig.stream()?);
///     let block = rig.allocate(64, a, tag!("shared"))?;
///     rig.launch(b, Launch::new("too soon").writes(block.ptr(), 64))?;
///     rig.context().order(b, a)?;
///     rig.deallocate(block, a)?;
///     Ok(())
/// });
/// let race = race.check().unwrap_err();
/// let found = race.hazard().unwrap();
/// let last = found.schedule.iter().filter(|call| !call.ran).last().unwrap();
/// assert_eq!((last.name, last.number), ("too soon", found.hazard.second.call));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HazardExplanation {
    /// The hazard, with both operations.
    pub hazard: Hazard,
    /// The call that allocated the memory, if it is known.
    pub allocation: Option<CallRecord>,
    /// The calls that matter, in order: the allocation, both operations, the calls that might have ordered them and do not,
    /// and the moments at which the two ran.
    pub schedule: Vec<CallRecord>,
    /// The number of driver calls of the run.
    pub calls: u64,
    /// The error or the panic that the program ended with, if it did.
    pub ended: Option<String>,
    /// The kernels that panicked while they ran, which are reported with whatever else was found.
    pub kernel_panics: Vec<KernelPanic>,
}

impl HazardExplanation {
    /// Returns the explanation of the hazard of a run that takes the fewest calls to show. `ended` is the error or the panic of the
    /// program.
    pub(super) fn shortest(sim: &Sim, ended: Option<String>) -> Option<Self> {
        let mut hazards = sim.hazards();
        if hazards.is_empty() {
            return None;
        }
        hazards.truncate(HAZARDS_MAX);
        let (log, calls, kernel_panics) = (sim.calls(), sim.call_count(), sim.kernel_panics());
        let cut = |hazard: Hazard| {
            let allocation = allocation_of(&log, &hazard);
            let schedule = cut(&log, &hazard, allocation);
            let (ended, kernel_panics) = (ended.clone(), kernel_panics.clone());
            Self { hazard, allocation: allocation.map(|at| log[at]), schedule, calls, ended, kernel_panics }
        };
        let last = hazards.iter().filter(|hazard| !hazards.iter().any(|other| covers(other, hazard)));
        last.copied().map(cut).min_by_key(Self::length)
    }

    /// Returns the sort key of explanations: a race before a panic that may follow from it, then the length of the
    /// schedule, and then how early the hazard shows.
    pub(super) fn length(&self) -> (bool, usize, u64) {
        (self.hazard.kind == HazardKind::KernelPanicked, self.schedule.len(), self.hazard.second.call)
    }
}

/// Returns whether a fix of `one` fixes `other` too: the same operation, to be ordered after something later on the same
/// stream.
fn covers(one: &Hazard, other: &Hazard) -> bool {
    let (Some(first), Some(earlier)) = (one.first, other.first) else { return false };
    let is_same_stream = first.device == earlier.device && first.executor == earlier.executor;
    one.second.call == other.second.call && is_same_stream && earlier.call < first.call
}

/// Returns the index in the log of the call that last allocated the memory of a hazard.
fn allocation_of(log: &[CallRecord], hazard: &Hazard) -> Option<usize> {
    hazard.device?;
    let allocates_it = |call: &CallRecord| {
        let start = match (call.name, call.outcome) {
            ("granted", _) => call.ptr,
            ("allocate" | "allocate_async", CallOutcome::Value(ptr)) => ptr,
            _ => return false,
        };
        (start..start.saturating_add(call.bytes)).contains(&hazard.range.start)
    };
    log.iter().rposition(|call| !call.ran && call.number < hazard.second.call && allocates_it(call))
}

/// Returns whether a call was made on the stream of an operation.
fn is_on(call: &CallRecord, op: &Operation) -> bool {
    call.device == op.device && call.stream == Some(op.executor)
}

/// Returns the calls of a run that matter to a hazard.
fn cut(log: &[CallRecord], hazard: &Hazard, allocation: Option<usize>) -> Vec<CallRecord> {
    let mut kept: BTreeSet<usize> = allocation.into_iter().collect();
    let parties = [hazard.first, Some(hazard.second), hazard.reused];
    let numbers: Vec<u64> = parties.into_iter().flatten().map(|op| op.call).collect();
    kept.extend((0..log.len()).filter(|at| numbers.contains(&log[*at].number)));
    if let Some(first) = hazard.first {
        kept.extend(attempts(log, &first, &hazard.second));
    }
    kept.into_iter().map(|at| log[at]).collect()
}

/// Returns the calls between two operations that look as if they order them: events recorded on the stream of the first, and
/// waits on that of the second with the records that they wait for.
fn attempts(log: &[CallRecord], first: &Operation, second: &Operation) -> Vec<usize> {
    let mut found = Vec::new();
    for (at, call) in log.iter().enumerate().filter(|(_, call)| !call.ran) {
        let is_between = first.call < call.number && call.number < second.call;
        match call.name {
            "event_record" if is_between && is_on(call, first) => found.push(at),
            "stream_wait" if is_between && is_on(call, second) => {
                found.push(at);
                let is_its_record =
                    |other: &CallRecord| !other.ran && other.name == "event_record" && other.ptr == call.ptr;
                found.extend(log[..at].iter().rposition(is_its_record));
            }
            _ => {}
        }
    }
    found
}
