//! Why pinned memory could not be had.

use crate::{Errno, PinStep};
use bursar_core::{Bytes, DriverError, Error, NumaNode};
use std::path::PathBuf;
use std::time::Duration;

/// Why a request for pinned memory was refused or failed.
///
/// ```
/// use bursar_core::Bytes;
/// use bursar_host::HostError;
///
/// let refused = HostError::NoMemory { requested: Bytes::gib(8), available: Bytes::gib(2), total: Bytes::gib(4) };
/// assert!(refused.is_capacity());
/// assert_eq!(refused.to_string(), "the machine has no room for 8 GiB more: 2 GiB of 4 GiB are available");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Nothing was asked for.
    #[error("zero bytes of pinned memory were asked for: a buffer holds at least one")]
    ZeroBytes,
    /// A size that overflows when it is rounded up to pages.
    #[error("{requested} bytes overflow when rounded up to pages")]
    TooLarge {
        /// The size asked for, in bytes.
        requested: u64,
    },
    /// The account that the memory is charged to has no room, or cannot be used.
    #[error("the account refuses {requested} of pinned memory: {why}")]
    Account {
        /// What would have been held.
        requested: Bytes,
        /// Its own reason.
        #[source]
        why: Error,
    },
    /// The control group of this process, or one above it, has no room.
    #[error(
        "control group {} has no room for {requested} more: {available} of {limit} are available; raise its memory limit",
        group.display()
    )]
    ControlGroup {
        /// What would have been held.
        requested: Bytes,
        /// What the group has left, its file caches counted as free.
        available: Bytes,
        /// All it has.
        limit: Bytes,
        /// Its folder.
        group: PathBuf,
    },
    /// The machine has no room.
    #[error("the machine has no room for {requested} more: {available} of {total} are available")]
    NoMemory {
        /// What would have been held.
        requested: Bytes,
        /// What the kernel says could be had without swapping.
        available: Bytes,
        /// All there is.
        total: Bytes,
    },
    /// The driver refused to pin memory that the limit on locked memory does not cover.
    #[error(
        "{requested} cannot be pinned beside the {locked} that are: the limit on locked memory is {limit}; \
         raise it (ulimit -l, or LimitMEMLOCK), or grant CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// What was to be pinned.
        requested: Bytes,
        /// What this process has locked and pinned already.
        locked: Bytes,
        /// The soft limit.
        limit: Bytes,
        /// What the driver answered.
        #[source]
        why: DriverError,
    },
    /// The kernel refused a step that cannot be done without.
    #[error("{step} of {requested} was refused: {why}")]
    System {
        /// Which one.
        step: PinStep,
        /// What would have been held.
        requested: Bytes,
        /// The kernel's reason.
        why: Errno,
    },
    /// A driver call failed, or the device remembers that one has.
    #[error(transparent)]
    Device(#[from] Error),
    /// The deadline passed first. Whatever had been taken by then is given back.
    #[error(
        "{requested} of pinned memory did not come within {patience:?}: {}",
        at.map_or("the worker was busy with other requests".to_owned(), |step| format!("it was at {step}"))
    )]
    Deadline {
        /// What was asked for.
        requested: Bytes,
        /// How long it was waited for.
        patience: Duration,
        /// The step it was at; none if its worker had not begun.
        at: Option<PinStep>,
    },
    /// The caller has gone; nobody is left to see this.
    #[error("the request was given up")]
    GivenUp,
    /// The worker panicked over this request. Another has taken its place.
    #[error("the worker of NUMA node {node} panicked: {message}")]
    WorkerPanicked {
        /// Whose worker it was.
        node: NumaNode,
        /// What it said.
        message: String,
    },
    /// No thread could be started.
    #[error("no worker could be started for NUMA node {node}: {why}")]
    WorkerNotStarted {
        /// Whose worker it would have been.
        node: NumaNode,
        /// The kernel's reason.
        why: Errno,
    },
    /// The workers were closed before the request was met.
    #[error("the workers have been closed")]
    Closed,
    /// A file that describes the machine says something else than it should.
    #[error("{}: {why}", path.display())]
    Topology {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl HostError {
    /// Whether the request failed for want of memory, so that freeing some and asking again could succeed.
    pub const fn is_capacity(&self) -> bool {
        match self {
            Self::Account { why, .. } | Self::Device(why) => why.is_capacity(),
            Self::ControlGroup { .. } | Self::NoMemory { .. } | Self::LockedMemory { .. } => true,
            Self::System { why, .. } => why.0 == libc::ENOMEM,
            _ => false,
        }
    }
}
