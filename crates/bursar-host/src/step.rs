//! The steps of a request, and their outcomes.

use crate::Errno;
use std::fmt;

/// A step of a request. The request can be given up between any two.
///
/// ```
/// use bursar::host::PinStep;
///
/// assert!(PinStep::Charge < PinStep::Register);
/// assert_eq!(PinStep::Reserve.to_string(), "reserving");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PinStep {
    /// Checks the limits on memory, and charges the account.
    Charge,
    /// Reserves addresses.
    Reserve,
    /// Binds the addresses to the node.
    Bind,
    /// Asks for huge pages.
    Advise,
    /// Puts memory behind the addresses.
    Touch,
    /// Lets the driver pin the memory.
    Register,
    /// Asks the kernel where the pages are.
    Verify,
    /// Delivers the memory to the caller.
    Deliver,
}

impl fmt::Display for PinStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Charge => "charging",
            Self::Reserve => "reserving",
            Self::Bind => "binding",
            Self::Advise => "advising",
            Self::Touch => "touching",
            Self::Register => "registering",
            Self::Verify => "verifying",
            Self::Deliver => "delivering",
        })
    }
}

/// The outcome of an optional step.
///
/// ```
/// use bursar::host::{Errno, StepOutcome};
///
/// assert!(StepOutcome::Done.is_done());
/// assert!(StepOutcome::Refused(Errno(libc::EPERM)).to_string().starts_with("refused"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepOutcome {
    /// It was done, and has the intended effect.
    Done,
    /// It was not requested.
    NotAsked,
    /// The machine lacks the means: there is no such node, or no usable CPU on it.
    Absent,
    /// The kernel refused it.
    Refused(Errno),
}

impl StepOutcome {
    /// Returns whether it was done.
    pub const fn is_done(self) -> bool {
        matches!(self, Self::Done)
    }

    /// Returns whether it was requested and not done.
    pub const fn has_failed(self) -> bool {
        matches!(self, Self::Absent | Self::Refused(_))
    }
}

impl From<Result<(), Errno>> for StepOutcome {
    fn from(result: Result<(), Errno>) -> Self {
        result.map_or_else(Self::Refused, |()| Self::Done)
    }
}

impl fmt::Display for StepOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::NotAsked => f.write_str("not asked for"),
            Self::Absent => f.write_str("not to be had here"),
            Self::Refused(errno) => write!(f, "refused: {errno}"),
        }
    }
}
