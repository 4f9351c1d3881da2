//! The steps of a request, in their order.

use std::fmt;

/// A step of a request. Between each two it is asked whether anybody still wants the memory.
///
/// ```
/// use bursar_host::Step;
///
/// assert!(Step::Charge < Step::Register);
/// assert_eq!(Step::Reserve.to_string(), "reserving");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Step {
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

impl fmt::Display for Step {
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
