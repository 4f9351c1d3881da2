//! Why something was refused or failed: numbers as fields, one classifier, no strings to match on.

mod advice;
mod shortage;

pub use advice::Advice;
pub use shortage::{Holding, Shortage, Standing};

use crate::{AllocTag, Bytes, DeviceId, DevicePtr, DriverError, Generation, Status};
use std::fmt;

/// What everything here answers with.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request was refused or failed.
///
/// ```
/// use bursar_core::{Bytes, Error};
///
/// let refused = Error::OutOfBudget {
///     requested: Bytes::mib(2),
///     remaining: Bytes::mib(1),
///     limit: Bytes::gib(1),
/// };
/// assert!(refused.is_capacity());
/// assert_eq!(refused.to_string(), "over budget: 2 MiB requested, 1 MiB of 1 GiB left");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size of zero, or one that overflows when it is rounded up.
    #[error("{requested} bytes cannot be allocated: {}", if *requested == 0 { "a block holds at least one byte" } else { "the size overflows when rounded up" })]
    InvalidSize {
        /// The size asked for, in bytes.
        requested: u64,
    },
    /// An alignment that is no power of two, or larger than any leaf can honour.
    #[error("alignment {align} is not a power of two up to {max}", max = crate::MAX_ALIGN)]
    InvalidAlignment {
        /// The alignment asked for.
        align: u64,
    },
    /// A budget has no room for the request.
    #[error("over budget: {requested} requested, {remaining} of {limit} left")]
    OutOfBudget {
        /// What would have been granted.
        requested: Bytes,
        /// What the budget had left.
        remaining: Bytes,
        /// All the budget has.
        limit: Bytes,
    },
    /// What somebody is owed is lent to others, who did not give it back in time.
    #[error("{requested} requested of what is owed, {remaining} left; still lent to {by}")]
    Withheld {
        /// What was asked for.
        requested: Bytes,
        /// What was left.
        remaining: Bytes,
        /// Who borrows, and how much.
        by: Box<str>,
    },
    /// The device itself has no room for the request.
    #[error("{device} is out of memory: {requested} requested, {free} of {total} free")]
    OutOfMemory {
        /// The device that was asked.
        device: DeviceId,
        /// What would have been granted.
        requested: Bytes,
        /// What the driver could still give out, read after the failure.
        free: Bytes,
        /// All the device has.
        total: Bytes,
    },
    /// There was no memory for the request, of a limit or of the device, with what explains it: show it with `{:#}`.
    #[error(transparent)]
    Shortage(Box<Shortage>),
    /// The stream may not be used for this.
    #[error("{stream} cannot be used on {device}: {why}")]
    StreamMisuse {
        /// The device whose memory was asked for.
        device: DeviceId,
        /// The number of the stream in its own table.
        stream: StreamNumber,
        /// What is wrong with it.
        why: StreamMisuse,
    },
    /// A block that was freed already.
    #[error("{ptr} ({generation}, {tag}) was freed already")]
    UseAfterFree {
        /// Its address.
        ptr: DevicePtr,
        /// Which life of that address was meant.
        generation: Generation,
        /// What it was for, where that is still known.
        tag: AllocTag,
    },
    /// Something was written outside a block, next to it.
    #[error("{tag}: something was written at offset {offset} of {ptr} ({generation}), outside the block")]
    OutOfBounds {
        /// Where the block begins.
        ptr: DevicePtr,
        /// Which life of that address was meant.
        generation: Generation,
        /// What it is for.
        tag: AllocTag,
        /// The first byte that was overwritten, from the start of the block: negative before it, or at least its size.
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
        /// How many there may be.
        max: usize,
    },
    /// The driver could not create a stream.
    #[error("a stream could not be created")]
    CreateFailed(#[source] DriverError),
    /// The driver that was asked for cannot be had.
    #[error("{why}")]
    NoDriver {
        /// Which one, and what is missing.
        why: Box<str>,
    },
    /// No device can be used.
    #[error("no usable device")]
    NoDevice,
    /// There is no such device.
    #[error("there is no {device} among {count} device{}", if *count == 1 { "" } else { "s" })]
    InvalidDevice {
        /// The device asked for.
        device: DeviceId,
        /// How many there are to ask for.
        count: u32,
    },
    /// A number makes no sense.
    #[error("invalid value: {what}: {number}")]
    InvalidNumber {
        /// What is wrong with it.
        what: &'static str,
        /// The number.
        number: u64,
    },
    /// An argument makes no sense.
    #[error("invalid value: {what}")]
    InvalidValue {
        /// Which one, and why.
        what: &'static str,
    },
    /// The device cannot do this.
    #[error("{device} does not support {what}")]
    Unsupported {
        /// The device that was asked.
        device: DeviceId,
        /// What it lacks.
        what: &'static str,
    },
    /// The account that memory is charged to cannot be used.
    #[error("{why}")]
    Account {
        /// Which one, what is wrong with it, and what helps.
        why: Box<str>,
    },
    /// The process was forked: what the parent opened stays the parent's.
    #[error("this process was forked from the one that opened the ledger; open it anew after exec")]
    Forked,
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl Error {
    /// Whether the request failed for want of memory, so that freeing some and asking again could succeed.
    pub const fn is_capacity(&self) -> bool {
        match self {
            Self::OutOfBudget { .. } | Self::Withheld { .. } | Self::OutOfMemory { .. } | Self::Shortage(_) => true,
            Self::Driver(error) => matches!(error.status, Status::OutOfMemory) && !error.is_remembered,
            _ => false,
        }
    }

    /// The failure of the driver that it is about, if it is.
    ///
    /// ```
    /// use bursar_core::{DeviceId, DriverError, Error, Status};
    ///
    /// let failure = DriverError::new("cuStreamCreate", DeviceId(0), Status::OutOfMemory);
    /// assert_eq!(Error::CreateFailed(failure).driver_error(), Some(failure));
    /// assert_eq!(Error::NoDevice.driver_error(), None);
    /// ```
    pub const fn driver_error(&self) -> Option<DriverError> {
        match self {
            Self::Driver(error) | Self::CreateFailed(error) => Some(*error),
            _ => None,
        }
    }

    /// The error without what explains it: the refusal inside a [`Shortage`], any other as it is.
    ///
    /// ```
    /// use bursar_core::Error;
    ///
    /// assert_eq!(Error::NoDevice.root(), &Error::NoDevice);
    /// ```
    pub fn root(&self) -> &Self {
        match self {
            Self::Shortage(shortage) => shortage.cause.root(),
            other => other,
        }
    }
}

const _: () = assert!(size_of::<Error>() <= 56, "errors travel by value on every allocation path");

/// A stream as messages name it: its number in the table that made it.
///
/// ```
/// use bursar_core::StreamNumber;
///
/// assert_eq!(StreamNumber(0).to_string(), "the default stream");
/// assert_eq!(StreamNumber(3).to_string(), "stream 3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamNumber(pub u32);

impl fmt::Display for StreamNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.pad("the default stream"),
            n => f.pad(&format!("stream {n}")),
        }
    }
}

/// What is wrong with the use of a stream.
///
/// ```
/// use bursar_core::StreamMisuse;
///
/// assert!(StreamMisuse::PerThread.to_string().contains("CU_STREAM_PER_THREAD"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamMisuse {
    /// It belongs to another device.
    OtherDevice {
        /// The device it belongs to.
        device: DeviceId,
    },
    /// It was made by another context of the same device.
    OtherContext,
    /// It was adopted, and the adoption has ended.
    Ended,
    /// It is being captured into a graph.
    Capturing,
    /// It is the per-thread default stream, which is a different stream on each thread.
    PerThread,
}

impl fmt::Display for StreamMisuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherDevice { device } => write!(f, "it belongs to {device}"),
            Self::OtherContext => f.write_str("it was made by another context"),
            Self::Ended => f.write_str("its adoption has ended"),
            Self::Capturing => f.write_str("it is being captured into a graph"),
            Self::PerThread => f.write_str("CU_STREAM_PER_THREAD is a different stream on each thread"),
        }
    }
}
