//! Reads traces. The format is recognised by the content, never by the name.
//!
//! `log.rs` opens a file and recognises its format. The two log formats, `csv.rs` and `jsonl.rs`, are read line by line
//! ([`Rows`](log::Rows)), so that [`TraceFile`] can read a long one in windows. A PyTorch snapshot, `torch.rs`, is a pickle
//! and has to be read to its end before anything is known. `lines.rs`, `numbers.rs`, `tags.rs` and `gzip.rs` are what the
//! formats share.

mod csv;
mod gzip;
mod jsonl;
mod lines;
mod log;
mod numbers;
mod pickle;
mod records;
mod tags;
mod torch;
mod trace_file;

pub use trace_file::{TraceFile, open};

use crate::{Reason, Trace, TraceError};
use log::TraceReader;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads a whole trace: an RMM CSV log, Bursar's JSON lines, records of 16 bytes or a PyTorch memory snapshot, gzipped or not.
/// The format is recognised by the content. [`open`] needs less memory for a long trace.
///
/// Frees without their allocation, and allocations without their free, are kept in the trace; [`Trace::strict`] makes them
/// an error.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("bursar-trace-read-{}.csv", std::process::id()));
/// # std::fs::write(&path, "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.0,allocate,0x1000,512,0\n")?;
/// let trace = bursar::trace::read(&path)?;
/// assert_eq!(trace.missing_frees.len(), 1);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read(path: impl AsRef<Path>) -> Result<Trace, TraceError> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| TraceError::new(&name, error))?;
    read_from(file, &name)
}

/// Reads a trace from `reader`; errors call it `name`. See [`read`].
///
/// ```
/// let log = br#"{"action":"allocate","pointer":"0x1000","bytes":512}"#;
/// assert_eq!(bursar::trace::read_from(&log[..], "pipe")?.blocks, 1);
/// # Ok::<(), bursar::trace::TraceError>(())
/// ```
pub fn read_from(reader: impl Read, name: &str) -> Result<Trace, TraceError> {
    let trace = match TraceReader::open(reader, name)? {
        TraceReader::Snapshot(trace) => trace,
        TraceReader::Log(mut log) => {
            log.fill(usize::MAX)?;
            log.builder.finish()
        }
    };
    match trace.events.is_empty() && trace.unknown_frees.is_empty() {
        true => Err(TraceError::new(name, Reason::Empty)),
        false => Ok(trace),
    }
}

/// Returns the trace that comes with the crate, the start of a real run: ResNet-50 training at mixed image sizes under
/// PyTorch 2.11 on an H200, its first few thousand events. Blocks that were live at the cut are never freed.
///
/// ```
/// let trace = bursar::trace::bundled();
/// assert!(trace.events.len() > 5_000 && trace.unknown_frees.is_empty());
/// ```
pub fn bundled() -> Trace {
    let log = include_bytes!("../traces/small-resnet.csv.gz");
    read_from(&log[..], "small-resnet.csv.gz").expect("it is read by a test")
}
