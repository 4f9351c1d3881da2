//! The error of every fallible call: numbers as fields, one classifier, no strings to match on.

mod advice;
mod claims;
mod external;
mod limit_name;
mod shortage;
mod stream_misuse;
mod survey;
mod text;

pub use advice::Advice;
pub(crate) use advice::{Refusal, ScopeHoldings};
pub use claims::{Claim, Claims, WaitingClaim};
pub use external::ExternalError;
pub(crate) use limit_name::LimitId;
pub use limit_name::LimitName;
pub use shortage::{Holding, MemoryUsage, Shortage};
pub use stream_misuse::StreamMisuse;
pub use survey::{LimitReading, PoolFigures, Survey, SurveyStep};

use crate::{AllocTag, Bytes, DeviceId, DevicePtr, DriverError, Generation, Status};
use claims::QueuedFirst;
use std::fmt;
use text::{EachCause, show_out_of_budget, show_out_of_memory};

/// The result of every fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a request was refused or failed.
///
/// `{}` shows it on one line. `{:#}`, and `{:?}` for whoever returns it from `main`, show a refusal for want of memory
/// with its whole [explanation](Self::shortage), and any other error with its cause.
///
/// ```
/// use bursar::error::LimitName;
/// use bursar::{Bytes, Error};
///
/// let refused = Error::over_limit(&LimitName::new("model-a"), Bytes::mib(2), Bytes::mib(1), Bytes::gib(1));
/// assert!(refused.is_capacity() && matches!(refused, Error::OutOfBudget { .. }));
/// assert_eq!(refused.to_string(), "over `model-a`: 2 MiB requested, 1 MiB of 1 GiB left");
/// assert_eq!(format!("{refused:?}"), refused.to_string());
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size of zero, or one that overflows when it is rounded up.
    #[error("{requested} bytes cannot be allocated: {}", if *requested == 0 { "a block holds at least one byte" } else { "no device has as much" })]
    InvalidSize {
        /// The requested size in bytes.
        requested: u64,
    },
    /// An alignment that is not a power of two, or larger than any leaf can honour.
    #[error("alignment {align} is not a power of two up to {max}", max = crate::MAX_ALIGN)]
    InvalidAlignment {
        /// The requested alignment.
        align: u64,
    },
    /// A limit has no room for the request.
    #[error(fmt = show_out_of_budget)]
    OutOfBudget {
        /// The bytes that were asked of the limit: what would have been granted or, below a pool, what the pool had to
        /// ask for beside what it had.
        requested: Bytes,
        /// The bytes that the limit had left.
        remaining: Bytes,
        /// The limit.
        limit: Bytes,
        /// The name of the limit, where it has one.
        by: Option<LimitName>,
        /// The explanation, where there is one.
        explanation: Option<Box<Shortage>>,
    },
    /// Memory that the caller is guaranteed is lent to others, who did not give it back in time.
    #[error("{requested} requested of what is owed, {remaining} left; still lent to {by}")]
    Withheld {
        /// The requested bytes.
        requested: Bytes,
        /// The bytes that were left.
        remaining: Bytes,
        /// The names of those who borrow, and how much each does.
        by: Box<str>,
    },
    /// There is room for a reservation that asks for it at once, and it is kept for requests that wait.
    #[error("{requested} requested out of turn: {remaining} of {limit} left, which {}", QueuedFirst(first, *behind))]
    OutOfTurn {
        /// The requested bytes.
        requested: Bytes,
        /// The bytes that were left.
        remaining: Bytes,
        /// The most that could be left.
        limit: Bytes,
        /// The first that waits.
        first: Box<WaitingClaim>,
        /// The number of requests that wait behind it.
        behind: usize,
    },
    /// The device itself has no room for the request.
    #[error(fmt = show_out_of_memory)]
    OutOfMemory {
        /// The device that was asked.
        device: DeviceId,
        /// The bytes that were asked of the driver.
        requested: Bytes,
        /// The bytes that the driver could still allocate, read after the failure.
        free: Bytes,
        /// All memory of the device.
        total: Bytes,
        /// The explanation, where there is one.
        explanation: Option<Box<Shortage>>,
    },
    /// The stream may not be used for this.
    #[error("{stream} cannot be used on {device}: {why}")]
    StreamMisuse {
        /// The device whose memory was requested.
        device: DeviceId,
        /// The number of the stream.
        stream: StreamNumber,
        /// The reason.
        why: StreamMisuse,
    },
    /// A block that was freed already.
    #[error("{ptr} ({generation}, {tag}) was freed already")]
    UseAfterFree {
        /// The address of the block.
        ptr: DevicePtr,
        /// The generation of the block.
        generation: Generation,
        /// The tag of the allocation, where that is still known.
        tag: AllocTag,
    },
    /// Something was written outside a block, next to it.
    #[error("{tag}: something was written at offset {offset} of {ptr} ({generation}), outside the block")]
    OutOfBounds {
        /// The address of the block.
        ptr: DevicePtr,
        /// The generation of the block.
        generation: Generation,
        /// The tag of the allocation.
        tag: AllocTag,
        /// The offset of the first byte that was overwritten, from the start of the block: negative before it, or at
        /// least its size.
        offset: i64,
    },
    /// A block of another resource, or of nobody.
    #[error("{ptr} on {device} belongs to another resource, or to none")]
    ForeignBlock {
        /// The device that was asked.
        device: DeviceId,
        /// The address.
        ptr: DevicePtr,
    },
    /// Every stream there may be is in use.
    #[error("all {max} streams are in use")]
    Capacity {
        /// The most streams there may be.
        max: usize,
    },
    /// The driver could not create a stream.
    #[error("a stream could not be created")]
    CreateFailed(#[source] DriverError),
    /// The driver that was requested is not available.
    #[error("{why}")]
    NoDriver {
        /// The driver's name, and what is missing.
        why: Box<str>,
    },
    /// There is no device.
    #[error("there is no device")]
    NoDevice,
    /// A device that was asked for cannot be used.
    #[error("{device} cannot be used: {cause}")]
    DeviceUnusable {
        /// The device.
        device: DeviceId,
        /// The failure to open it, or to build its memory.
        #[source]
        cause: Box<Error>,
    },
    /// There are devices, and none of them can be used.
    #[error("no device can be used: {}", EachCause(causes))]
    NoUsableDevice {
        /// Each device, and the failure to open it or to build its memory.
        causes: Box<[(DeviceId, Error)]>,
    },
    /// There is no such device.
    #[error("there is no {device} among {count} device{}", if *count == 1 { "" } else { "s" })]
    InvalidDevice {
        /// The requested device.
        device: DeviceId,
        /// The number of devices there are.
        count: u32,
    },
    /// A number that makes no sense.
    #[error("invalid value: {what}: {number}")]
    InvalidNumber {
        /// The reason.
        what: &'static str,
        /// The number.
        number: u64,
    },
    /// Two sides of a copy that differ in length.
    #[error("the lengths differ: {expected} {unit} needed, {found} given", unit = if *expected == 1 { "element is" } else { "elements are" })]
    LengthMismatch {
        /// The elements of the side that was to be written or read.
        expected: usize,
        /// The elements that were given for it.
        found: usize,
    },
    /// Memory of another size than the elements it is for take.
    #[error("the sizes differ: {expected} bytes are needed, {found} given")]
    SizeMismatch {
        /// The bytes that the elements take.
        expected: usize,
        /// The bytes that were given.
        found: usize,
    },
    /// A range that does not lie in the buffer.
    #[error("{start}..{end} does not lie in a buffer or slice of {len} elements")]
    InvalidRange {
        /// The first element of the range.
        start: usize,
        /// The element after its last.
        end: usize,
        /// The number of elements there are.
        len: usize,
    },
    /// An argument that makes no sense.
    #[error("invalid value: {what}")]
    InvalidValue {
        /// The argument, and what is wrong with it.
        what: &'static str,
    },
    /// The device cannot do this.
    #[error("{device} does not support {what}")]
    Unsupported {
        /// The device that was asked.
        device: DeviceId,
        /// The operation that it lacks.
        what: &'static str,
    },
    /// The account that memory is charged to cannot be used.
    #[error("{why}")]
    Account {
        /// The account's name, what is wrong with it, and the remedy.
        why: Box<str>,
    },
    /// The process was forked: what the parent opened stays the parent's.
    #[error("this process was forked from the one that has the memory and the ledger; open them anew after exec")]
    Forked,
    /// Memory that sleeps, falls asleep, or is not awake yet.
    #[error("{what} of {device} {}", if *is_moving { "is falling asleep or waking just now: wait until it has" } else { "is asleep: wake it first" })]
    Asleep {
        /// The device.
        device: DeviceId,
        /// The memory: a pool, or a block.
        what: &'static str,
        /// Set where it is falling asleep or waking just now.
        is_moving: bool,
    },
    /// Work that had to run first was still running when there was no more time to wait for it.
    #[error("{stream} of {device} was still in use after {waited_ms} ms")]
    StillInUse {
        /// The device.
        device: DeviceId,
        /// The number of the stream.
        stream: StreamNumber,
        /// The time that was waited, in milliseconds.
        waited_ms: u64,
    },
    /// An error of a part that the core does not know, such as pinned host memory.
    #[error(transparent)]
    External(ExternalError),
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl Error {
    /// Returns whether the request failed for want of memory, so that freeing some and trying again could succeed.
    pub const fn is_capacity(&self) -> bool {
        match self {
            Self::OutOfBudget { .. } | Self::Withheld { .. } | Self::OutOfTurn { .. } | Self::OutOfMemory { .. } => {
                true
            }
            Self::External(error) => error.is_capacity(),
            Self::Driver(error) => matches!(error.status, Status::OutOfMemory) && !error.is_remembered,
            Self::DeviceUnusable { cause, .. } => cause.is_capacity(),
            _ => false,
        }
    }

    /// Returns the driver's failure, if the error is one.
    ///
    /// ```
    /// use bursar::driver::{DriverError, Status};
    /// use bursar::{DeviceId, Error};
    ///
    /// let failure = DriverError::new("cuStreamCreate", DeviceId(0), Status::OutOfMemory);
    /// assert_eq!(Error::CreateFailed(failure).driver_error(), Some(failure));
    /// assert_eq!(Error::NoDevice.driver_error(), None);
    /// ```
    pub const fn driver_error(&self) -> Option<DriverError> {
        match self {
            Self::Driver(error) | Self::CreateFailed(error) => Some(*error),
            Self::DeviceUnusable { cause, .. } => cause.driver_error(),
            _ => None,
        }
    }

    /// Makes the refusal of a limit without a name.
    ///
    /// ```
    /// use bursar::{Bytes, Error};
    ///
    /// let refused = Error::out_of_budget(Bytes::mib(2), Bytes::mib(1), Bytes::gib(1));
    /// assert_eq!(refused.to_string(), "over budget: 2 MiB requested, 1 MiB of 1 GiB left");
    /// ```
    pub const fn out_of_budget(requested: Bytes, remaining: Bytes, limit: Bytes) -> Self {
        Self::OutOfBudget { requested, remaining, limit, by: None, explanation: None }
    }

    /// Makes the refusal of a limit with a name.
    pub fn over_limit(by: &LimitName, requested: Bytes, remaining: Bytes, limit: Bytes) -> Self {
        Self::OutOfBudget { requested, remaining, limit, by: Some(by.clone()), explanation: None }
    }

    /// Makes the refusal of a device.
    pub const fn out_of_memory(device: DeviceId, requested: Bytes, free: Bytes, total: Bytes) -> Self {
        Self::OutOfMemory { device, requested, free, total, explanation: None }
    }

    /// Returns the explanation of a refusal for want of memory, if it has one.
    ///
    /// ```
    /// use bursar::error::Shortage;
    /// use bursar::{Bytes, DeviceId, Error};
    ///
    /// let refused = Error::out_of_budget(Bytes::mib(2), Bytes::mib(1), Bytes::gib(1));
    /// assert_eq!(refused.shortage(), None);
    /// let explained = refused.explained(Shortage::new(DeviceId(0), Bytes::mib(2)));
    /// assert_eq!(explained.shortage().map(|shortage| shortage.requested), Some(Bytes::mib(2)));
    /// ```
    pub fn shortage(&self) -> Option<&Shortage> {
        match self {
            Self::OutOfBudget { explanation, .. } | Self::OutOfMemory { explanation, .. } => explanation.as_deref(),
            _ => None,
        }
    }

    /// Returns the explanation, to be completed.
    pub fn shortage_mut(&mut self) -> Option<&mut Shortage> {
        match self {
            Self::OutOfBudget { explanation, .. } | Self::OutOfMemory { explanation, .. } => explanation.as_deref_mut(),
            _ => None,
        }
    }

    /// Returns the error without the name of a limit and without an explanation: its numbers alone, to be compared.
    ///
    /// ```
    /// use bursar::error::LimitName;
    /// use bursar::{Bytes, Error};
    ///
    /// let [requested, remaining, limit] = [2, 1, 8].map(Bytes::gib);
    /// let refused = Error::over_limit(&LimitName::new("model-a"), requested, remaining, limit);
    /// assert_eq!(refused.plain(), Error::out_of_budget(requested, remaining, limit));
    /// ```
    #[must_use]
    pub fn plain(&self) -> Self {
        match *self {
            Self::OutOfBudget { requested, remaining, limit, .. } => Self::out_of_budget(requested, remaining, limit),
            Self::OutOfMemory { device, requested, free, total, .. } => {
                Self::out_of_memory(device, requested, free, total)
            }
            ref other => other.clone(),
        }
    }

    /// Returns the refusal with an explanation; an error that is no refusal for want of memory stays as it is.
    #[must_use]
    pub fn explained(mut self, shortage: Shortage) -> Self {
        match &mut self {
            Self::OutOfBudget { explanation, .. } | Self::OutOfMemory { explanation, .. } => {
                *explanation = Some(Box::new(shortage));
            }
            _ => {}
        }
        self
    }
}

/// The text for people, since this is what `main` prints of an error that it returns.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("{self:#}");
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let said = error.to_string();
            // Many texts end with their cause already.
            if !text.contains(&said) {
                text = format!("{text}: {said}");
            }
            cause = error.source();
        }
        f.write_str(&text)
    }
}

const _: () = assert!(size_of::<Error>() <= 56, "errors travel by value on every allocation path");

/// A stream as messages, records and reports name it; see [`Stream::number`](crate::Stream::number).
///
/// ```
/// use bursar::error::StreamNumber;
///
/// assert_eq!(StreamNumber(0).to_string(), "the default stream");
/// assert_eq!(StreamNumber(3).to_string(), "stream 3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamNumber(pub u32);

impl StreamNumber {
    /// The per-thread default stream, which no table has.
    pub(crate) const PER_THREAD: Self = Self(u32::MAX);
}

impl fmt::Display for StreamNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self(0) => f.pad("the default stream"),
            Self::PER_THREAD => f.pad("the per-thread default stream"),
            Self(n) => f.pad(&format!("stream {n}")),
        }
    }
}
