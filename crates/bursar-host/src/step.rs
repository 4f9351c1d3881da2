//! The steps of a request, in their order.

use crate::Errno;
use std::fmt;

/// A step of a request. Between each two it is asked whether anybody still wants the memory.
///
/// ```
/// use bursar_host::PinStep;
///
/// assert!(PinStep::Charge < PinStep::Register);
/// assert_eq!(PinStep::Reserve.to_string(), "reserving");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PinStep {
    /// Asks whether there is memory, and charges the account.
    Charge,
    /// Reserves addresses.
    Reserve,
    /// Names the node.
    Bind,
    /// Asks for huge pages.
    Advise,
    /// Puts memory behind the addresses.
    Touch,
    /// Has the driver pin it.
    Register,
    /// Asks the kernel where the pages are.
    Verify,
    /// Hands it over.
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

/// How a step went that a request can do without.
///
/// ```
/// use bursar_host::{Errno, StepOutcome};
///
/// assert!(StepOutcome::Done.is_done());
/// assert!(StepOutcome::Refused(Errno(libc::EPERM)).to_string().starts_with("refused"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepOutcome {
    /// It was done, and what came of it is as it should be.
    Done,
    /// Nobody asked for it.
    NotAsked,
    /// The machine has nothing to do it with: no such node, or no CPU of it that may be used.
    Absent,
    /// The kernel refused it.
    Refused(Errno),
}

impl StepOutcome {
    /// Whether it was done.
    pub const fn is_done(self) -> bool {
        matches!(self, Self::Done)
    }

    /// Whether it was asked for and not done.
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
