//! Allocation traces: read, written, replayed and shown.
//!
//! A [`Trace`] lists the allocations and frees of a recorded run, each with its thread and its stream. [`read`] parses RMM's
//! CSV logs, Bursar's JSON lines, records of 16 bytes and PyTorch's memory snapshots, gzipped or not; [`write()`] and
//! [`convert`] write the same formats. A [`TraceGenerator`] makes a trace from a seed, and [`Trace::dealt`] and
//! [`Trace::jittered`] vary one. [`open`] leaves a long trace in its file, [`Replay`] runs a trace through a stack and measures
//! what the stack cost, and [`ReplayPage`] shows replays as one HTML page.
//!
//! ```
//! let trace = bursar::trace::bundled();
//! assert_eq!(trace.streams, [0]);
//! println!("{} events, {} live at the peak", trace.events.len(), trace.peak_live());
//! ```
//!
//! # Modules
//!
//! Each module imports only those before it:
//!
//! - `trace`: the data: events, limits, errors, the builder that matches frees to allocations, summaries, layouts.
//! - `generate`: traces that are made: variations of a given one, and families.
//! - `read`: one file for each format; `read/log.rs` detects the format, `read/trace_file.rs` reads long traces in windows.
//! - `write`: one file for each format.
//! - `replay`: plans the operations of a window, runs passes over them and measures.
//! - `report`: profiles a pass and writes the page.
//!
//! # Guarantees for readers
//!
//! Files are not trusted. No reader panics, runs anything that a file contains, recurses with the depth of its contents or
//! allocates a length that it names; each bounds the memory it keeps. An error names the file, the position in it and the
//! reason ([`TraceError`]).
#![forbid(unsafe_code)]

mod generate;
mod read;
mod replay;
mod report;
mod trace;
mod write;

pub use generate::{FreeStream, ParseGeneratorError, TraceFamily, TraceGenerator};
pub use read::{TraceFile, bundled, open, read, read_from};
pub use replay::{Cost, Replay, ReplayError, ReplayObserver, ReplayStep};
pub use report::{BackedAddresses, MemoryProfile, ReplayPage, StackRun, TraceRecorder};
pub use trace::{
    Event, EventKind, EventOrigin, FilePosition, Format, Reason, Segment, Summary, Trace, TraceBuilder, TraceError,
    TraceLayout, TraceLimit, UnmatchedEvent,
};
pub use write::{
    AtomicFile, convert, write, write_csv, write_jsonl, write_records, write_torch_snapshot, write_torch_snapshot_at,
};
