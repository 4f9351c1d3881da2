//! What a search found, and the words it says it in.

use super::{Explained, SEED_VARIABLE};
use bursar_core::{Access, AllocTag};
use bursar_sim::{CallRecord, DriverLeakReport, Executor, HazardKind, Operation};
use std::fmt;
use std::panic::Location;

/// What was found with one seed.
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
    /// Memory was used in a way that nothing ordered.
    Hazard(Box<Explained>),
    /// The program ended with an error.
    Failed {
        /// The error.
        error: String,
    },
    /// The program panicked.
    Panicked {
        /// What it said.
        message: String,
    },
    /// Something is still held.
    Leak(DriverLeakReport),
    /// `BURSAR_SEED` is no seed; nothing was run.
    Variable {
        /// What it says.
        text: String,
    },
}

impl Finding {
    /// Whether this is worth more to a reader than what an earlier seed showed: a hazard rather than anything else, and
    /// the shorter of two.
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

/// A seed that shows something wrong, and what that is.
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
    /// What is wrong.
    pub finding: Finding,
    /// How many seeds were run.
    pub tried: u64,
    /// With how many of them something was wrong.
    pub failing: u64,
}

impl Race {
    pub(super) fn new(seed: u64, finding: Finding) -> Box<Self> {
        Box::new(Self { seed, finding, tried: 0, failing: 0 })
    }

    /// The hazard, if it is one.
    pub fn hazard(&self) -> Option<&Explained> {
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

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hazard, allocation, schedule, calls, ended } = self;
        write!(f, "{}", hazard.kind)?;
        match hazard.device {
            Some(device) => write!(f, " on {device}, bytes {}", hazard.range)?,
            None => write!(f, ", host bytes {}", hazard.range)?,
        }
        if let Some(first) = &hazard.first {
            write!(f, "\n  first: {}", Told(first))?;
        }
        write!(f, "\n  then:  {}", Told(&hazard.second))?;
        if let Some(reused) = &hazard.reused {
            write!(f, "\n  in between: {}", Told(reused))?;
        }
        write!(f, "\n  {}", self.missing())?;
        if let Some(allocation) = allocation {
            write!(f, "\n  the memory was given out by call {}{}", allocation.number, At(allocation.location))?;
        }
        if let Some(ended) = ended {
            write!(f, "\n  and then {ended}")?;
        }
        let shown = schedule.iter().filter(|call| !call.ran).count();
        write!(f, "\nthe shortest schedule found, {shown} of {calls} driver calls:")?;
        schedule.iter().try_for_each(|call| write!(f, "\n  {}", Line(call)))
    }
}

impl Explained {
    /// Which order was missing.
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

/// An operation as a party to a missing order, like "stream 2's read".
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

/// A place in the program, or that it is unknown.
struct At(Option<&'static Location<'static>>);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(location) => write!(f, ", at {location}"),
            None => f.write_str(", at an unknown place"),
        }
    }
}

/// An operation with all that is known of it.
struct Told<'a>(&'a Operation);

impl fmt::Display for Told<'_> {
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
        write!(f, "{}", At(op.location))
    }
}

/// A line of the schedule, with its place where that is known.
struct Line<'a>(&'a CallRecord);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        match self.0.location {
            Some(location) => write!(f, ", at {location}"),
            None => Ok(()),
        }
    }
}
