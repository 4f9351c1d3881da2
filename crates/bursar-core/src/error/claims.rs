//! Claims on the memory that an account draws on: of those who have it, and of those who wait for it.

use crate::Bytes;
use std::fmt;

/// The part of an account's memory that one process has.
///
/// ```
/// use bursar::Bytes;
/// use bursar::error::Claim;
///
/// let claim = Claim {
///     pid: 4711,
///     name: "train".into(),
///     labels: vec!["nightly".into()],
///     held: Bytes::gib(2),
///     set_aside: Bytes::gib(6),
///     is_own: false,
/// };
/// assert_eq!(claim.who(), "train (pid 4711) [nightly]");
/// assert_eq!((claim.to_string(), claim.bytes()), ("train (pid 4711) [nightly]: 2 GiB held, 6 GiB set aside".into(), Bytes::gib(8)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The id of the process in its own namespace.
    pub pid: u32,
    /// The name of the process.
    pub name: String,
    /// The labels of what it has set aside or draws on, each once.
    pub labels: Vec<String>,
    /// The bytes that it holds.
    pub held: Bytes,
    /// The bytes that it has set aside and does not hold.
    pub set_aside: Bytes,
    /// True if it is the process whose request was refused.
    pub is_own: bool,
}

impl Claim {
    /// Returns the name of the process with its id and labels.
    pub fn who(&self) -> String {
        let labels = match self.labels.join(", ") {
            labels if labels.is_empty() => labels,
            labels => format!(" [{labels}]"),
        };
        format!("{} (pid {}){labels}", self.name, self.pid)
    }

    /// Returns what it holds and what it has set aside together.
    pub fn bytes(&self) -> Bytes {
        self.held.saturating_add(self.set_aside)
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { held, set_aside, .. } = self;
        write!(f, "{}: ", self.who())?;
        match (*held, *set_aside) {
            (held, Bytes::ZERO) => write!(f, "{held} held"),
            (Bytes::ZERO, set_aside) => write!(f, "{set_aside} set aside"),
            (held, set_aside) => write!(f, "{held} held, {set_aside} set aside"),
        }
    }
}

/// A request that waits for its turn.
///
/// ```
/// use bursar::Bytes;
/// use bursar::error::WaitingClaim;
///
/// let waiting = WaitingClaim { pid: 4711, name: "train".into(), bytes: Bytes::gib(6) };
/// assert_eq!(waiting.to_string(), "train (pid 4711) waits for 6 GiB");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingClaim {
    /// The id of the process that asks, in its own namespace.
    pub pid: u32,
    /// The name of the process.
    pub name: String,
    /// The bytes that it waits for.
    pub bytes: Bytes,
}

impl fmt::Display for WaitingClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, name, bytes } = self;
        write!(f, "{name} (pid {pid}) waits for {bytes}")
    }
}

/// The words for memory that is kept for those who wait: the first of them, and how many are behind it.
pub(super) struct QueuedFirst<'a>(pub(super) &'a WaitingClaim, pub(super) usize);

impl fmt::Display for QueuedFirst<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(first, behind) = self;
        write!(f, "is kept for those who wait: {first}")?;
        if *behind > 0 { write!(f, ", and {behind} more behind it") } else { Ok(()) }
    }
}

/// The claims that stand against a request which an account refused.
///
/// ```
/// use bursar::error::Claims;
///
/// let claims = Claims::default();
/// assert!(claims.processes.is_empty() && claims.waiting.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// The processes that have memory under the limit that refused, the one with the most first.
    pub processes: Vec<Claim>,
    /// The requests whose turn comes first, in the order of service, where there is room and it is kept for them; empty
    /// otherwise.
    pub waiting: Vec<WaitingClaim>,
    /// The bytes that programs use of the device which have no account, where these count.
    pub unmanaged: Bytes,
}
