//! Why the kernel said no, and how each step of a placement went.

use std::fmt;

/// An error number of the kernel.
///
/// ```
/// use bursar_host::Errno;
///
/// assert!(Errno(libc::EPERM).to_string().contains("not permitted"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// The last one of this thread.
    pub(crate) fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// The one inside an error of the standard library, if it has one.
    pub(crate) fn of(error: &std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&std::io::Error::from_raw_os_error(self.0), f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}

/// How a step went that a request can do without.
///
/// ```
/// use bursar_host::{Errno, Outcome};
///
/// assert!(Outcome::Done.is_done());
/// assert!(Outcome::Refused(Errno(libc::EPERM)).to_string().starts_with("refused"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It was done, and what came of it is as it should be.
    Done,
    /// Nobody asked for it.
    NotAsked,
    /// The machine has nothing to do it with: no such node, or no CPU of it that may be used.
    Absent,
    /// The kernel refused it.
    Refused(Errno),
}

impl Outcome {
    /// Whether it was done.
    pub const fn is_done(self) -> bool {
        matches!(self, Self::Done)
    }

    /// Whether it was asked for and not done.
    pub const fn has_failed(self) -> bool {
        matches!(self, Self::Absent | Self::Refused(_))
    }
}

impl From<Result<(), Errno>> for Outcome {
    fn from(result: Result<(), Errno>) -> Self {
        result.map_or_else(Self::Refused, |()| Self::Done)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::NotAsked => f.write_str("not asked for"),
            Self::Absent => f.write_str("not to be had here"),
            Self::Refused(errno) => write!(f, "refused: {errno}"),
        }
    }
}
