//! The finding of a search.

use super::{HazardExplanation, InjectedFault, SEED_VARIABLE};
use bursar_sim::DriverLeakReport;
use std::fmt;

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
    Hazard(Box<HazardExplanation>),
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
    /// The driver call that failed on purpose in that run, if one did.
    pub fault: Option<InjectedFault>,
    /// The finding.
    pub finding: Finding,
    /// The number of runs: one for each seed and, where [each call fails](super::Races::failing_each_call), one more
    /// for each fault.
    pub tried: u64,
    /// The number of runs in which something was wrong.
    pub failing: u64,
}

impl Race {
    pub(super) fn new(seed: u64, fault: Option<InjectedFault>, finding: Finding) -> Box<Self> {
        Box::new(Self { seed, fault, finding, tried: 0, failing: 0 })
    }

    /// Returns the hazard, if the finding is one.
    pub fn hazard(&self) -> Option<&HazardExplanation> {
        match &self.finding {
            Finding::Hazard(found) => Some(found),
            _ => None,
        }
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, fault, finding, tried, failing } = self;
        write!(f, "{finding}")?;
        if let Finding::Variable { .. } = finding {
            return Ok(());
        }
        match fault {
            Some(fault) => write!(f, "\nfound with seed {seed}, where {fault}; {failing} of {tried} runs")?,
            None => write!(f, "\nfound with seed {seed}; {failing} of {tried} seeds")?,
        }
        f.write_str(" show something wrong")?;
        write!(f, "\nto see it again, run this test alone with {SEED_VARIABLE}={seed}")
    }
}

impl std::error::Error for Race {}
