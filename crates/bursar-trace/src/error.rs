//! What can be wrong with a trace.

use crate::{Format, Place, Trace, gzip};
use bursar_core::Bytes;
use std::fmt;
use std::io;

/// A trace that could not be read or written: which file, where in it, and why.
///
/// ```
/// let error = bursar_trace::read("no/such/file.csv").unwrap_err();
/// assert!(error.to_string().starts_with("no/such/file.csv: "));
/// assert_eq!(error.place, None);
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct TraceError {
    /// The file, as it was named.
    pub file: String,
    /// The line, or the record of a binary format, where it is known.
    pub place: Option<Place>,
    /// What is wrong there.
    pub reason: Reason,
    unit: &'static str,
}

impl TraceError {
    pub(crate) fn new(file: &str, reason: impl Into<Reason>) -> Self {
        Self { file: file.to_owned(), place: None, reason: reason.into(), unit: "line" }
    }

    pub(crate) fn at(file: &str, format: Format, place: Place, reason: impl Into<Reason>) -> Self {
        Self { place: Some(place), unit: format.unit(), ..Self::new(file, reason) }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some(Place(number)) => write!(f, "{}: {} {number}: {}", self.file, self.unit, self.reason),
            None => write!(f, "{}: {}", self.file, self.reason),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.reason {
            Reason::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// Why a trace could not be read or written.
///
/// ```
/// let error = bursar_trace::read_from(&b""[..], "empty.csv").unwrap_err();
/// assert!(matches!(error.reason, bursar_trace::Reason::Empty));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The file could not be opened, read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file ends in the middle: of a gzip stream, of a pickle.
    #[error("the file ends in the middle of {within}")]
    Truncated {
        /// What it ends in the middle of.
        within: &'static str,
    },
    /// Behind the end of a gzipped file there is something that is neither another member nor zeros.
    #[error("the gzipped file has bytes behind its end, from byte {offset} on, that belong to no gzip stream")]
    TrailingBytes {
        /// Where in the compressed file they begin.
        offset: u64,
    },
    /// There is nothing in it: no bytes, or no allocation, free or failure.
    #[error("the trace is empty")]
    Empty,
    /// It begins like none of the formats.
    #[error("not a trace: expected an RMM CSV log, JSON lines or a PyTorch memory snapshot, or one of them gzipped")]
    UnknownFormat,
    /// No format is known by the file's extension.
    #[error("cannot tell the format from the name: use .csv, .jsonl or .pickle, with or without .gz")]
    UnknownExtension,
    /// The first line does not begin with RMM's six columns.
    #[error("the columns are {found:?}, expected Thread,Time,Action,Pointer,Size,Stream and any more behind them")]
    Columns {
        /// The line, cut to its first 80 bytes.
        found: String,
    },
    /// A row has fewer columns than RMM's six.
    #[error("the row has {found} columns, expected at least 6")]
    TooFewColumns {
        /// How many it has.
        found: usize,
    },
    /// A field that cannot be read.
    #[error("{field} is {found:?}, expected {expected}")]
    Field {
        /// The column or key.
        field: &'static str,
        /// What is there, cut to its first 80 bytes.
        found: String,
        /// What should be.
        expected: &'static str,
    },
    /// A line too long to be a record.
    #[error("the line is longer than {limit} bytes")]
    LongLine {
        /// The longest that is read.
        limit: usize,
    },
    /// A line that is not the JSON object expected.
    #[error("{0}")]
    Json(String),
    /// The pickle would run code when loaded. It was not run.
    #[error("the pickle carries code (opcode {opcode} at byte {offset}); it was not run")]
    Code {
        /// The opcode's name.
        opcode: &'static str,
        /// Where it is in the pickle.
        offset: u64,
    },
    /// Not a well-formed pickle.
    #[error("malformed pickle at byte {offset}: {what}")]
    Pickle {
        /// Where in the pickle.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A well-formed pickle that is no memory snapshot.
    #[error("not a PyTorch memory snapshot: {what}")]
    NotSnapshot {
        /// What is missing or in the way.
        what: &'static str,
    },
    /// More than a trace can hold.
    #[error("{0}")]
    Limit(#[from] Limit),
    /// A trace that is read as it is replayed was not the same the second time.
    #[error("the file has changed since it was opened")]
    Changed,
    /// In strict reading: frees of what was not allocated in the trace.
    #[error("free of {pointer:#x}, which is not allocated ({count} such in the trace)")]
    UnknownFree {
        /// The first one's address.
        pointer: u64,
        /// How many there are.
        count: u64,
    },
    /// In strict reading: blocks that were never freed.
    #[error("{} at {pointer:#x} is never freed ({count} such in the trace)", Bytes(*bytes))]
    MissingFree {
        /// The first one's address.
        pointer: u64,
        /// Its size.
        bytes: u64,
        /// How many there are.
        count: u64,
    },
}

impl Reason {
    /// What an error met while reading means: a compressed stream that stops early is a file that was cut.
    pub(crate) fn of_read(error: io::Error) -> Self {
        if let Some(offset) = gzip::trailing(&error) {
            return Self::TrailingBytes { offset };
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated { within: "its gzip stream" },
            _ => Self::Io(error),
        }
    }
}

/// Why a replay stopped: the memory failed, or the trace, where it is read meanwhile.
///
/// ```
/// use bursar_trace::ReplayError;
///
/// let error = ReplayError::from(bursar_core::Error::NoDevice);
/// assert_eq!(error.to_string(), "no usable device");
/// ```
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The memory failed in another way than having no room.
    #[error(transparent)]
    Memory(#[from] bursar_core::Error),
    /// The trace could not be read to its end.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl From<bursar_core::DriverError> for ReplayError {
    fn from(error: bursar_core::DriverError) -> Self {
        Self::Memory(error.into())
    }
}

/// More than a trace can hold. Real recordings are far below all of these.
///
/// ```
/// use bursar_core::AllocTag;
/// use bursar_trace::{Limit, Site, TraceBuilder};
///
/// let absurd = TraceBuilder::default().allocate(Site::default(), 0x1000, u64::MAX, AllocTag::UNTAGGED);
/// assert_eq!(absurd, Err(Limit::BlockBytes { bytes: u64::MAX }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Limit {
    /// One allocation of more than [`Trace::MAX_BLOCK_BYTES`].
    #[error("an allocation of {bytes} bytes is absurd: no device has more than {}", Bytes(Trace::MAX_BLOCK_BYTES))]
    BlockBytes {
        /// Its size.
        bytes: u64,
    },
    /// More than 2⁶⁴ bytes live at a time.
    #[error("more bytes are live at once than 64 bits count")]
    LiveBytes,
    /// More than 2³² blocks.
    #[error("more than {} allocations in one trace", u32::MAX - 1)]
    Blocks,
    /// More than 65,536 threads.
    #[error("more than 65536 threads in one trace")]
    Threads,
    /// More than 65,536 streams.
    #[error("more than 65536 streams in one trace")]
    Streams,
    /// A device's ordinal above 255.
    #[error("device {device}, expected an ordinal of at most 255")]
    Device {
        /// The ordinal.
        device: u64,
    },
}
