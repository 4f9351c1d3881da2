//! Errors of reading and writing traces.

use super::{FilePosition, Format, Trace};
use bursar_core::Bytes;
use std::fmt;
use std::io;

/// A trace that could not be read or written: the file, the position in it and the reason.
///
/// ```
/// let error = bursar::trace::read("no/such/file.csv").unwrap_err();
/// assert!(error.to_string().starts_with("no/such/file.csv: "));
/// assert_eq!(error.position, None);
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct TraceError {
    /// The name of the file, as the caller gave it.
    pub file: String,
    /// The line, or the record of a binary format, if it is known.
    pub position: Option<FilePosition>,
    /// The reason.
    pub reason: Reason,
    unit: &'static str,
}

impl TraceError {
    pub(crate) fn new(file: &str, reason: impl Into<Reason>) -> Self {
        Self { file: file.to_owned(), position: None, reason: reason.into(), unit: "line" }
    }

    pub(crate) fn at(file: &str, format: Format, position: FilePosition, reason: impl Into<Reason>) -> Self {
        Self { position: Some(position), unit: format.unit(), ..Self::new(file, reason) }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(FilePosition(number)) => write!(f, "{}: {} {number}: {}", self.file, self.unit, self.reason),
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

/// The reason why a trace could not be read or written.
///
/// ```
/// let error = bursar::trace::read_from(&b""[..], "empty.csv").unwrap_err();
/// assert!(matches!(error.reason, bursar::trace::Reason::Empty));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The file could not be opened, read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file ends in the middle of a gzip stream or of a pickle.
    #[error("the file ends in the middle of {within}")]
    Truncated {
        /// The structure that is cut off.
        within: &'static str,
    },
    /// After the end of a gzipped file there are bytes that are neither another member nor zeros.
    #[error("the gzipped file has bytes behind its end, from byte {offset} on, that belong to no gzip stream")]
    TrailingBytes {
        /// The offset in the compressed file at which they begin.
        offset: u64,
    },
    /// The file has no bytes, or no allocation, free or failure.
    #[error("the trace is empty")]
    Empty,
    /// The file begins like none of the formats.
    #[error(
        "not a trace: expected an RMM CSV log, JSON lines, records of 16 bytes or a PyTorch memory snapshot, or one of them gzipped"
    )]
    UnknownFormat,
    /// The extension of the file belongs to no format.
    #[error("cannot tell the format from the name: use .csv, .jsonl, .bin or .pickle, with or without .gz")]
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
        /// The number of its columns.
        found: usize,
    },
    /// A field that cannot be read.
    #[error("{field} is {found:?}, expected {expected}")]
    Field {
        /// The column or key.
        field: &'static str,
        /// The text of the field, cut to its first 80 bytes.
        found: String,
        /// The expected form.
        expected: &'static str,
    },
    /// A line too long to be a record.
    #[error("the line is longer than {limit} bytes")]
    LongLine {
        /// The length of the longest line that is read.
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
        /// Its offset in the pickle.
        offset: u64,
    },
    /// Not a well-formed pickle.
    #[error("malformed pickle at byte {offset}: {what}")]
    Pickle {
        /// The offset in the pickle.
        offset: u64,
        /// The defect.
        what: &'static str,
    },
    /// A well-formed pickle that is no memory snapshot.
    #[error("not a PyTorch memory snapshot: {what}")]
    NotSnapshot {
        /// The part that is missing or of the wrong type.
        what: &'static str,
    },
    /// The file has more of something than a trace can hold.
    #[error("{0}")]
    Limit(#[from] TraceLimit),
    /// The file of a trace that is read in windows changed between two passes.
    #[error("the file has changed since it was opened")]
    Changed,
    /// Strict reading only: frees of addresses that were not allocated in the trace.
    #[error("free of {pointer:#x}, which is not allocated ({count} such in the trace)")]
    UnknownFree {
        /// The address of the first one.
        pointer: u64,
        /// The number of them.
        count: u64,
    },
    /// Strict reading only: blocks that were never freed.
    #[error("{} at {pointer:#x} is never freed ({count} such in the trace)", Bytes(*bytes))]
    MissingFree {
        /// The address of the first one.
        pointer: u64,
        /// The size of the first one.
        bytes: u64,
        /// The number of them.
        count: u64,
    },
}

/// A limit of traces that was exceeded. Real recordings are far below all of them.
///
/// ```
/// use bursar::memory::AllocTag;
/// use bursar::trace::{EventOrigin, TraceBuilder, TraceLimit};
///
/// let absurd = TraceBuilder::default().allocate(EventOrigin::default(), 0x1000, u64::MAX, AllocTag::UNTAGGED);
/// assert_eq!(absurd, Err(TraceLimit::BlockBytes { bytes: u64::MAX }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceLimit {
    /// An allocation of more than [`Trace::MAX_BLOCK_BYTES`].
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
