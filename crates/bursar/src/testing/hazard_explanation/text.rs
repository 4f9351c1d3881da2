//! The explanation of a hazard as text.

use super::HazardExplanation;
use bursar_core::{Access, AllocTag};
use bursar_sim::{CallRecord, Executor, HazardKind, KernelPanic, Operation};
use std::fmt;
use std::panic::Location;

impl fmt::Display for HazardExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hazard, allocation, schedule, calls, ended, kernel_panics } = self;
        write!(f, "{}", hazard.kind)?;
        match hazard.device {
            Some(device) => write!(f, " on {device}, bytes {}", hazard.range)?,
            None => write!(f, ", host bytes {}", hazard.range)?,
        }
        if let Some(first) = &hazard.first {
            write!(f, "\n  first: {}", OperationText(first))?;
        }
        write!(f, "\n  then:  {}", OperationText(&hazard.second))?;
        if let Some(reused) = &hazard.reused {
            write!(f, "\n  in between: {}", OperationText(reused))?;
        }
        write!(f, "\n  {}", self.missing())?;
        if let Some(allocation) = allocation {
            write!(
                f,
                "\n  the memory was given out by call {}{}",
                allocation.number,
                LocationText(allocation.location)
            )?;
        }
        for panic in kernel_panics {
            let KernelPanic { operation, message, .. } = panic;
            write!(f, "\n  {:?} on {} panicked: {message}", operation.what, operation.executor)?;
        }
        if let Some(ended) = ended {
            write!(f, "\n  and then {ended}")?;
        }
        let shown = schedule.iter().filter(|call| !call.ran).count();
        write!(f, "\nthe shortest schedule found, {shown} of {calls} driver calls:")?;
        schedule.iter().try_for_each(|call| write!(f, "\n  {}", CallText(call)))
    }
}

impl HazardExplanation {
    /// Returns a sentence that says which order was missing.
    fn missing(&self) -> String {
        let then = party(&self.hazard.second);
        let Some(first) = self.hazard.first.as_ref().map(party) else {
            return match self.hazard.kind {
                HazardKind::OutOfBounds => format!("{then} reaches bytes that belong to no block"),
                HazardKind::CallFromHostFunction => format!("{then} was called by host code that runs in stream order"),
                HazardKind::KernelPanicked => format!("{then} panicked while it ran"),
                HazardKind::ContentsLost => "what is awake does not hold what it held when it fell asleep".into(),
                HazardKind::FreeUnordered => format!("{then} is of something that is no live block"),
                _ => format!("{then} reaches memory that nobody was given"),
            };
        };
        match self.hazard.kind {
            HazardKind::UseAfterFree | HazardKind::NotMapped => format!("{then} comes after {first}"),
            HazardKind::Overlap => format!("{then} gives out bytes that are still held since {first}"),
            HazardKind::OutOfBounds => format!("{then} reaches beyond {first}"),
            HazardKind::UnmapUnderUse | HazardKind::HostTouched => {
                format!("nothing orders {then} after {first}: the host does not know that to be over")
            }
            _ => format!("nothing orders {then} after {first}"),
        }
    }
}

/// Names an operation as a party to a missing order, such as "stream 2's read".
fn party(op: &Operation) -> String {
    let executor = op.executor;
    match (op.access, op.what) {
        (Some(Access::Read), _) => format!("{executor}'s read"),
        (Some(Access::Write), _) => format!("{executor}'s write"),
        (_, "granted" | "allocate" | "allocate_async") => format!("the allocation on {executor}"),
        (_, "freed" | "free" | "free_async") => format!("the free on {executor}"),
        (_, what) => format!("{what} on {executor}"),
    }
}

/// Formats a place in the source, or that it is unknown.
struct LocationText(Option<&'static Location<'static>>);

impl fmt::Display for LocationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(location) => write!(f, ", at {location}"),
            None => f.write_str(", at an unknown place"),
        }
    }
}

/// Formats an operation with all that is known of it.
struct OperationText<'a>(&'a Operation);

impl fmt::Display for OperationText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = self.0;
        let what = match op.what {
            "granted" => "allocation",
            "freed" => "free",
            what => what,
        };
        match op.executor {
            Executor::Host => write!(f, "{what} by the host")?,
            executor => write!(f, "{what} on {executor}")?,
        }
        if let Some(bytes) = op.bytes {
            let how = match op.access {
                Some(Access::Read) => "reading",
                Some(Access::Write) => "writing",
                None => "of",
            };
            write!(f, ", {how} {bytes}")?;
        }
        if op.tag != AllocTag::UNTAGGED {
            write!(f, ", tag {:?}", op.tag.name())?;
        }
        write!(f, "{}", LocationText(op.location))
    }
}

/// Formats a call of the schedule, with its place if that is known.
struct CallText<'a>(&'a CallRecord);

impl fmt::Display for CallText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        match self.0.location {
            Some(location) => write!(f, ", at {location}"),
            None => Ok(()),
        }
    }
}
