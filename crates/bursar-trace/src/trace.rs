//! The data of a trace: the events of a recorded run, how frees are matched to allocations, and what can be wrong.

mod address_hash;
mod builder;
mod error;
mod format;
mod layout;
mod live_blocks;
mod numbering;
mod summary;

pub(crate) use address_hash::AddressState;
pub use builder::{EventOrigin, TraceBuilder};
pub use error::{Reason, TraceError, TraceLimit};
pub use format::Format;
pub(crate) use format::is_gzip_path;
pub use layout::{Segment, TraceLayout};
pub use summary::Summary;

use bursar_core::{AllocTag, Bytes};

/// The kind of an [`Event`].
///
/// ```
/// assert_ne!(bursar::trace::EventKind::Allocate, bursar::trace::EventKind::Free);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A block was allocated.
    Allocate,
    /// A block was freed.
    Free,
    /// An allocation that was refused or failed: it has a size and no block.
    Fail,
}

/// An allocation, a free or a failed allocation. Threads, streams and blocks are small dense numbers.
///
/// ```
/// use bursar::trace::{Event, EventKind};
///
/// assert_eq!(size_of::<Event>(), 24);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The size that was requested, in bytes; a free has the size of its allocation.
    pub bytes: u64,
    /// The number of the block, in the order of allocation: an allocation and its free have the same. A failure has
    /// [`Event::NO_BLOCK`].
    pub block: u32,
    /// The tag of the allocation.
    pub tag: AllocTag,
    /// The thread, an index into [`Trace::threads`].
    pub thread: u16,
    /// The stream, an index into [`Trace::streams`].
    pub stream: u16,
    /// Allocation, free or failure.
    pub kind: EventKind,
    /// The device, an ordinal of the recording.
    pub device: u8,
}

impl Event {
    /// The block of an event that has none.
    pub const NO_BLOCK: u32 = u32::MAX;
}

/// A position in a trace file: the number of a line, or of a record in a binary format, counted from 1.
///
/// ```
/// assert_eq!(bursar::trace::FilePosition(3).to_string(), "line 3");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilePosition(pub u64);

impl std::fmt::Display for FilePosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}", self.0)
    }
}

/// A free without its allocation, or an allocation without its free.
///
/// ```
/// use bursar::trace::{FilePosition, UnmatchedEvent};
///
/// let unknown = UnmatchedEvent { position: FilePosition(7), pointer: 0x1000, bytes: 512 };
/// assert_eq!(unknown.position, FilePosition(7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnmatchedEvent {
    /// Its position in the file.
    pub position: FilePosition,
    /// The address of the block.
    pub pointer: u64,
    /// The size of the block.
    pub bytes: u64,
}

/// A recorded run.
///
/// ```
/// use bursar::Bytes;
///
/// let log = "Thread,Time,Action,Pointer,Size,Stream\n\
///            1,00:00:00.000000,allocate,0x1000,512,0\n\
///            1,00:00:00.000010,free,0x1000,512,0\n\
///            1,00:00:00.000020,free,0x2000,512,0\n";
/// let trace = bursar::trace::read_from(log.as_bytes(), "run.csv")?;
/// assert_eq!((trace.events.len(), trace.peak_live()), (2, Bytes(512)));
/// assert_eq!(trace.unknown_frees[0].position.to_string(), "line 4");
/// assert!(trace.strict().is_err());
/// # Ok::<(), bursar::trace::TraceError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The name of the file it was read from.
    pub name: String,
    /// The format of that file, which determines whether a [`FilePosition`] in it counts lines or records.
    pub format: Format,
    /// The events, in order.
    pub events: Vec<Event>,
    /// The recording's identifier of each thread.
    pub threads: Vec<u64>,
    /// The recording's identifier of each stream; the first is the default stream, 0.
    pub streams: Vec<u64>,
    /// The number of blocks: one more than the highest block number.
    pub blocks: u32,
    /// Frees of addresses that were not allocated in the trace. They are not among the events.
    pub unknown_frees: Vec<UnmatchedEvent>,
    /// Allocations that were never freed.
    pub missing_frees: Vec<UnmatchedEvent>,
}

impl Trace {
    /// The largest allocation that is accepted: 256 TiB. A larger one means a damaged or hostile file.
    pub const MAX_BLOCK_BYTES: u64 = 1 << 48;

    /// Returns the most requested bytes that were live at a time, on all devices together.
    pub fn peak_live(&self) -> Bytes {
        self.summary().peak_live
    }

    /// Returns the trace in numbers.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary::new(&self.name, self.format);
        summary.count(self);
        summary.complete(self);
        summary
    }

    /// Checks that every free has its allocation and every allocation its free. The error names the first free of an
    /// address that was not allocated, or else the first block that was never freed.
    pub fn strict(&self) -> Result<(), TraceError> {
        self.summary().strict()
    }
}

const _: () = assert!(size_of::<Event>() == 24);
