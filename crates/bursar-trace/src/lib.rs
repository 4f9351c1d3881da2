//! Allocation traces: read, written, replayed and shown.
//!
//! A [`Trace`] is what was allocated and freed, by which thread and on which stream. [`read`] takes RMM's CSV logs,
//! Bursar's JSON lines and PyTorch's memory snapshots, gzipped or not; [`write()`] and [`convert`] give them back. [`open`]
//! leaves a long one in its file, and [`Replay`] runs either through a stack.
//!
//! ```
//! let trace = bursar_trace::bundled();
//! assert_eq!(trace.streams, [0]);
//! println!("{} events, {} live at the peak", trace.events.len(), trace.peak_live());
//! ```
#![forbid(unsafe_code)]

mod builder;
mod bundled;
mod csv;
mod error;
mod file;
mod format;
mod gzip;
mod jsonl;
mod layout;
mod lines;
mod live;
mod number;
mod numbering;
mod pickle;
mod read;
mod replay;
mod report;
mod summary;
mod tags;
mod torch;
mod trace;
mod write;

pub use builder::{Site, TraceBuilder};
pub use bundled::bundled;
pub use error::{Limit, Reason, ReplayError, TraceError};
pub use file::{TraceFile, open};
pub use format::Format;
pub use layout::{Layout, Segment};
pub use read::{read, read_from};
pub use replay::{Cost, Moment, Observe, Replay};
pub use report::{Ground, Placed, Recording, Report, Run};
pub use summary::Summary;
pub use trace::{Event, EventKind, Place, Trace, Unmatched};
pub use write::{convert, write, write_csv, write_jsonl, write_torch_snapshot, write_torch_snapshot_at};
