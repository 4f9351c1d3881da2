//! The errors of requests for pinned memory.

use crate::{Errno, PinStep};
use bursar_core::{Bytes, DriverError, Error, ExternalError, NumaNode};
use std::path::PathBuf;
use std::time::Duration;

/// The reason why a request for pinned memory was refused or failed.
///
/// ```
/// use bursar::Bytes;
/// use bursar::host::HostError;
///
/// let refused = HostError::NoMemory { requested: Bytes::gib(8), available: Bytes::gib(2), total: Bytes::gib(4) };
/// assert!(refused.is_capacity());
/// assert_eq!(refused.to_string(), "the machine has no room for 8 GiB more: 2 GiB of 4 GiB are available");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Zero bytes were requested.
    #[error("zero bytes of pinned memory were asked for: a buffer holds at least one")]
    ZeroBytes,
    /// The size overflows when it is rounded up to pages.
    #[error("{requested} bytes overflow when rounded up to pages")]
    TooLarge {
        /// The requested size in bytes.
        requested: u64,
    },
    /// The account that the memory is charged to has too little left, or cannot be used.
    #[error("the account refuses {requested} of pinned memory: {why}")]
    Account {
        /// The bytes that would have been held.
        requested: Bytes,
        /// The reason of the account.
        #[source]
        why: Error,
    },
    /// The control group of this process, or one that encloses it, has too little memory left.
    #[error(
        "control group {} has no room for {requested} more: {available} of {limit} are available; raise its memory limit",
        group.display()
    )]
    ControlGroup {
        /// The bytes that would have been held.
        requested: Bytes,
        /// The bytes that the group has left; cached files count as free.
        available: Bytes,
        /// The limit of the group.
        limit: Bytes,
        /// The folder of the group.
        group: PathBuf,
    },
    /// The machine has too little memory left.
    #[error("the machine has no room for {requested} more: {available} of {total} are available")]
    NoMemory {
        /// The bytes that would have been held.
        requested: Bytes,
        /// The bytes that the kernel estimates can be allocated without swapping.
        available: Bytes,
        /// All memory of the machine.
        total: Bytes,
    },
    /// The driver refused to pin memory that the limit on locked memory does not cover.
    #[error(
        "{requested} cannot be pinned beside the {locked} that are: the limit on locked memory is {limit}; \
         raise it (ulimit -l, or LimitMEMLOCK), or grant CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// The bytes to be pinned.
        requested: Bytes,
        /// The bytes that this process has locked and pinned already.
        locked: Bytes,
        /// The soft limit.
        limit: Bytes,
        /// The error of the driver.
        #[source]
        why: DriverError,
    },
    /// The kernel refused a required step.
    #[error("{step} of {requested} was refused: {why}")]
    System {
        /// The step.
        step: PinStep,
        /// The bytes that would have been held.
        requested: Bytes,
        /// The kernel's reason.
        #[source]
        why: Errno,
    },
    /// A driver call failed, or the device has recorded that one did.
    #[error(transparent)]
    Device(#[from] Error),
    /// The deadline passed first. Everything taken until then is released.
    #[error(
        "{requested} of pinned memory did not come within {patience:?}: {}",
        at.map_or("the worker was busy with other requests".to_owned(), |step| format!("it was at {step}"))
    )]
    Deadline {
        /// The requested bytes.
        requested: Bytes,
        /// The time that the request was allowed to take.
        patience: Duration,
        /// The step it was at; none if its worker had not begun.
        at: Option<PinStep>,
    },
    /// The caller dropped the request; nobody is left to see this.
    #[error("the request was given up")]
    GivenUp,
    /// The worker panicked during this request. Another thread has taken its place.
    #[error("the worker of NUMA node {node} panicked: {message}")]
    WorkerPanicked {
        /// The node of the worker.
        node: NumaNode,
        /// The message of the panic.
        message: String,
    },
    /// No worker thread could be started.
    #[error("no worker could be started for NUMA node {node}: {why}")]
    WorkerNotStarted {
        /// The node of the worker.
        node: NumaNode,
        /// The kernel's reason.
        #[source]
        why: Errno,
    },
    /// The calling thread could not be restricted to the CPUs near a node.
    #[error("the thread cannot be pinned near NUMA node {node}: {why}")]
    ThreadNotPinned {
        /// The node.
        node: NumaNode,
        /// The kernel's reason.
        #[source]
        why: Errno,
    },
    /// The workers were closed before the request was met.
    #[error("the workers have been closed")]
    Closed,
    /// A file that describes the machine is malformed.
    #[error("{}: {why}", path.display())]
    Topology {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        why: String,
    },
}

impl HostError {
    /// Returns whether the request failed for lack of memory, so that it could succeed after some is freed.
    pub const fn is_capacity(&self) -> bool {
        match self {
            Self::Account { why, .. } | Self::Device(why) => why.is_capacity(),
            Self::ControlGroup { .. } | Self::NoMemory { .. } | Self::LockedMemory { .. } => true,
            Self::System { why, .. } => why.0 == libc::ENOMEM,
            _ => false,
        }
    }
}

/// An error of the device stays what it is; any other is kept whole in [`Error::External`], so that `?` works in a function
/// that returns the core's error, and [`is_capacity`](Error::is_capacity) says the same of both.
///
/// ```
/// use bursar::device::DeviceContext;
/// use bursar::host::{HostError, NumaWorkerPool, PinnedBuffer};
/// use bursar::{Bytes, Error};
/// use std::sync::Arc;
///
/// fn staging(context: &Arc<DeviceContext>) -> bursar::Result<PinnedBuffer> {
///     Ok(NumaWorkerPool::global()?.pin(context, 1 << 20).wait()?)
/// }
///
/// let refused = HostError::NoMemory { requested: Bytes::gib(8), available: Bytes::gib(2), total: Bytes::gib(4) };
/// let error = Error::from(refused.clone());
/// assert!(error.is_capacity());
/// let Error::External(external) = error else { unreachable!() };
/// assert_eq!(external.downcast_ref(), Some(&refused));
/// ```
impl From<HostError> for Error {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Device(error) => error,
            other => {
                let is_capacity = other.is_capacity();
                Self::External(ExternalError::new(other, is_capacity))
            }
        }
    }
}
