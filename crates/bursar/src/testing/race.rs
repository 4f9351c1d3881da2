//! The finding of a search, and its text.

use super::{HazardReport, SEED_VARIABLE};
use bursar_core::{Access, AllocTag};
use bursar_sim::{CallRecord, DriverLeakReport, Executor, HazardKind, Operation};
use std::fmt;
use std::panic::Location;

/// The finding of one seed.
///
/// ```
/// use bursar::testing::{Finding, races};
///
/// let race = races(|_| Err("out of ideas".into())).check().unwrap_err();
/// assert!(matches!(&race.finding, Finding::Failed { error } if error == "out of ideas"));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Finding {
    /// Memory was used without the order that it needs.
    Hazard(Box<HazardReport>),
    /// The program ended with an error.
    Failed {
        /// The error.
        error: String,
    },
    /// The program panicked.
    Panicked {
        /// The panic message.
        message: String,
    },
    /// Memory is still held.
    Leak(DriverLeakReport),
    /// `BURSAR_SEED` is no seed; nothing was run.
    Variable {
        /// The value of the variable.
        text: String,
    },
}

impl Finding {
    /// Returns whether this says more than the finding of an earlier seed: a hazard rather than anything else, and the
    /// shorter of two hazards.
    pub(super) fn says_more_than(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::Hazard(one), Self::Hazard(other)) => one.length() < other.length(),
            (Self::Hazard(_), _) => true,
            (Self::Failed { .. } | Self::Panicked { .. }, Self::Leak(_)) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hazard(found) => write!(f, "{found}"),
            Self::Failed { error } => write!(f, "the program failed: {error}"),
            Self::Panicked { message } => write!(f, "the program panicked: {message}"),
            Self::Leak(report) => write!(f, "{report:#}"),
            Self::Variable { text } => write!(f, "{SEED_VARIABLE} is no number: {text:?}"),
        }
    }
}

/// A seed with which something is wrong, and the finding.
///
/// ```
/// use bursar::prelude::*;
/// use bursar::testing::races;
///
/// let race = races(|rig| {
///     let stream = rig.stream()?;
///     let _forgotten = rig.allocate(4096, stream, tag!("forgotten"))?;
///     Ok(())
/// });
/// let text = race.seeds(5).check().unwrap_err().to_string();
/// assert!(text.contains("1 allocation, 4 KiB, forgotten, from"), "{text}");
/// assert!(text.contains("with seed 0"), "{text}");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Race {
    /// The seed that shows it.
    pub seed: u64,
    /// The finding.
    pub finding: Finding,
    /// The number of seeds that were run.
    pub tried: u64,
    /// The number of those with which something was wrong.
    pub failing: u64,
}

impl Race {
    pub(super) fn new(seed: u64, finding: Finding) -> Box<Self> {
        Box::new(Self { seed, finding, tried: 0, failing: 0 })
    }

    /// Returns the hazard, if the finding is one.
    pub fn hazard(&self) -> Option<&HazardReport> {
        match &self.finding {
            Finding::Hazard(found) => Some(found),
            _ => None,
        }
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, finding, tried, failing } = self;
        write!(f, "{finding}")?;
        if let Finding::Variable { .. } = finding {
            return Ok(());
        }
        write!(f, "\nfound with seed {seed}; {failing} of {tried} seeds show something wrong")?;
        write!(f, "\nto see it again, run this test alone with {SEED_VARIABLE}={seed}")
    }
}

impl std::error::Error for Race {}

impl fmt::Display for HazardReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hazard, allocation, schedule, calls, ended } = self;
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
        if let Some(ended) = ended {
            write!(f, "\n  and then {ended}")?;
        }
        let shown = schedule.iter().filter(|call| !call.ran).count();
        write!(f, "\nthe shortest schedule found, {shown} of {calls} driver calls:")?;
        schedule.iter().try_for_each(|call| write!(f, "\n  {}", CallText(call)))
    }
}

impl HazardReport {
    /// Returns a sentence that says which order was missing.
    fn missing(&self) -> String {
        let then = party(&self.hazard.second);
        let Some(first) = self.hazard.first.as_ref().map(party) else {
            return match self.hazard.kind {
                HazardKind::OutOfBounds => format!("{then} reaches bytes that belong to no block"),
                HazardKind::CallFromHostFunction => format!("{then} was called by host code that runs in stream order"),
                HazardKind::KernelPanicked => format!("{then} panicked while it ran"),
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
