//! A run cut down to the calls that a hazard is about.

use super::Finding;
use bursar_sim::{CallOutcome, CallRecord, Hazard, Operation, Sim};
use std::collections::BTreeSet;

/// How many hazards of one run are looked at: the first are the causes of the others.
const LOOKED_AT: usize = 16;

/// A hazard, and what of its run matters to it.
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
pub struct Explained {
    /// What is wrong, with both operations.
    pub hazard: Hazard,
    /// The call that gave the memory out, where it is known.
    pub allocation: Option<CallRecord>,
    /// The calls that matter, in order: what gave the memory out, both operations, what might have ordered them and does
    /// not, and the moments at which the two ran.
    pub schedule: Vec<CallRecord>,
    /// How many driver calls the run made altogether.
    pub calls: u64,
    /// How the program ended, where that was by an error or a panic.
    pub ended: Option<String>,
}

impl Explained {
    /// The hazard of a run that takes the fewest calls to show.
    pub(super) fn shortest(sim: &Sim, trouble: Option<&Finding>) -> Option<Self> {
        let mut hazards = sim.hazards();
        if hazards.is_empty() {
            return None;
        }
        hazards.truncate(LOOKED_AT);
        let (log, calls) = (sim.calls(), sim.call_count());
        let cut = |hazard: Hazard| {
            let allocation = allocation_of(&log, &hazard);
            let schedule = cut(&log, &hazard, allocation);
            let ended = trouble.map(ToString::to_string);
            Self { hazard, allocation: allocation.map(|at| log[at]), schedule, calls, ended }
        };
        let last = hazards.iter().filter(|hazard| !hazards.iter().any(|other| covers(other, hazard)));
        last.copied().map(cut).min_by_key(Self::length)
    }

    /// How long it is to read, and then how early it shows.
    pub(super) fn length(&self) -> (usize, u64) {
        (self.schedule.len(), self.hazard.second.call)
    }
}

/// Whether whoever mends `one` mends `other` too: the same operation, to be ordered after something later on the same
/// stream.
fn covers(one: &Hazard, other: &Hazard) -> bool {
    let (Some(first), Some(earlier)) = (one.first, other.first) else { return false };
    let is_same_stream = first.device == earlier.device && first.executor == earlier.executor;
    one.second.call == other.second.call && is_same_stream && earlier.call < first.call
}

/// Where in the log the memory of a hazard was last given out.
fn allocation_of(log: &[CallRecord], hazard: &Hazard) -> Option<usize> {
    hazard.device?;
    let gives_it = |call: &CallRecord| {
        let start = match (call.name, call.outcome) {
            ("granted", _) => call.ptr,
            ("allocate" | "allocate_async", CallOutcome::Value(ptr)) => ptr,
            _ => return false,
        };
        (start..start.saturating_add(call.bytes)).contains(&hazard.range.start)
    };
    log.iter().rposition(|call| !call.ran && call.number < hazard.second.call && gives_it(call))
}

/// Whether a call was made on the stream of an operation.
fn is_on(call: &CallRecord, op: &Operation) -> bool {
    call.device == op.device && call.stream == Some(op.executor)
}

/// The calls of a run that matter to a hazard.
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

/// What between two operations looks as if it might order them: events recorded on the stream of the first, and waits on
/// that of the second with the records they wait for.
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
