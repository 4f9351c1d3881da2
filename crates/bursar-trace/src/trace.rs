//! A trace: what was allocated and freed, by which thread, on which stream.

use crate::{Format, Summary, TraceError};
use bursar_core::{AllocTag, Bytes};

/// What happened.
///
/// ```
/// assert_ne!(bursar_trace::EventKind::Allocate, bursar_trace::EventKind::Free);
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

/// One thing that happened, in the order of the trace. Threads, streams and blocks are small dense numbers.
///
/// ```
/// use bursar_trace::{Event, EventKind};
///
/// assert_eq!(size_of::<Event>(), 24);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What was asked for, in bytes; a free has the size of its allocation.
    pub bytes: u64,
    /// The block, numbered in order of allocation: an allocation and its free have the same. A failure has
    /// [`Event::NO_BLOCK`].
    pub block: u32,
    /// What it was for.
    pub tag: AllocTag,
    /// The thread, an index into [`Trace::threads`].
    pub thread: u16,
    /// The stream, an index into [`Trace::streams`].
    pub stream: u16,
    /// What happened.
    pub kind: EventKind,
    /// The device, an ordinal of the recording.
    pub device: u8,
}

impl Event {
    /// The block of an event that has none.
    pub const NO_BLOCK: u32 = u32::MAX;
}

/// Where in its file something was: lines count from 1; records of a binary format likewise.
///
/// ```
/// assert_eq!(bursar_trace::Place(3).to_string(), "line 3");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(pub u64);

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}", self.0)
    }
}

/// Something without its other half.
///
/// ```
/// use bursar_trace::{Place, Unmatched};
///
/// let unknown = Unmatched { place: Place(7), pointer: 0x1000, bytes: 512 };
/// assert_eq!(unknown.place, Place(7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmatched {
    /// Where it was.
    pub place: Place,
    /// The address it named.
    pub pointer: u64,
    /// The size it named.
    pub bytes: u64,
}

/// A recorded run.
///
/// ```
/// use bursar_core::Bytes;
///
/// let log = "Thread,Time,Action,Pointer,Size,Stream\n\
///            1,00:00:00.000000,allocate,0x1000,512,0\n\
///            1,00:00:00.000010,free,0x1000,512,0\n\
///            1,00:00:00.000020,free,0x2000,512,0\n";
/// let trace = bursar_trace::read_from(log.as_bytes(), "run.csv")?;
/// assert_eq!((trace.events.len(), trace.peak_live()), (2, Bytes(512)));
/// assert_eq!(trace.unknown_frees[0].place.to_string(), "line 4");
/// assert!(trace.strict().is_err());
/// # Ok::<(), bursar_trace::TraceError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The file it was read from.
    pub name: String,
    /// What that file was, which says what a [`Place`] in it counts.
    pub format: Format,
    /// What happened, in order.
    pub events: Vec<Event>,
    /// The recording's own name of each thread.
    pub threads: Vec<u64>,
    /// The recording's own name of each stream; the first is the default stream, 0.
    pub streams: Vec<u64>,
    /// How many blocks there are: one more than the highest number.
    pub blocks: u32,
    /// Frees of what was not allocated in the trace. They are not among the events.
    pub unknown_frees: Vec<Unmatched>,
    /// Allocations that were never freed.
    pub missing_frees: Vec<Unmatched>,
}

impl Trace {
    /// The largest allocation that is believed: 256 TiB. A larger one is a damaged or hostile file.
    pub const MAX_BLOCK_BYTES: u64 = 1 << 48;

    /// The most that was live at a time, on all devices together, by what was asked for.
    pub fn peak_live(&self) -> Bytes {
        self.summary().peak_live
    }

    /// What is in it, in numbers.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary::new(&self.name, self.format);
        summary.count(self);
        summary.complete(self);
        summary
    }

    /// An error if anything has no other half: the first free of what was not allocated, else the first block that was
    /// never freed.
    pub fn strict(&self) -> Result<(), TraceError> {
        self.summary().strict()
    }
}

const _: () = assert!(size_of::<Event>() == 24);
