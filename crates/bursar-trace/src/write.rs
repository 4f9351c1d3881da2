//! Writes traces. The format follows from the extension of the path.

mod atomic_file;
mod csv;
mod jsonl;
mod pickler;
mod records;
mod torch;

pub use atomic_file::AtomicFile;
pub use csv::write_csv;
pub use jsonl::write_jsonl;
pub use records::write_records;
pub use torch::{write_torch_snapshot, write_torch_snapshot_at};

use crate::trace::is_gzip_path;
use crate::{Event, Format, Reason, Trace, TraceError, TraceLayout, TraceLimit};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// The time between two events as written: a trace keeps the order of its events and not their times.
const STEP_US: u64 = 10;

/// Writes `trace` to `path` in the format of its extension ([`Format::of_path`]), gzipped if it ends in `.gz`. Times and
/// addresses are made up, with ten microseconds between events. An existing file stays as it is if this fails.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("bursar-trace-write-{}.jsonl.gz", std::process::id()));
/// let trace = bursar::trace::bundled();
/// bursar::trace::write(&trace, &path)?;
/// assert_eq!(bursar::trace::read(&path)?.events, trace.events);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write(trace: &Trace, path: impl AsRef<Path>) -> Result<(), TraceError> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let format = Format::of_output(path)?;
    let write = |file: &mut BufWriter<File>| {
        if !is_gzip_path(path) {
            return write_as(trace, format, file);
        }
        let mut packed = BufWriter::with_capacity(1 << 16, GzEncoder::new(file, Compression::default()));
        write_as(trace, format, &mut packed)?;
        packed.into_inner().map_err(io::IntoInnerError::into_error)?.finish().map(drop)
    };
    AtomicFile::create(path).and_then(|file| file.finish(write)).map_err(|error| TraceError::new(&name, error))
}

impl Format {
    /// Returns the format that a trace at `path` is written in, by its extension ([`of_path`](Self::of_path)); an error if it
    /// has none of those.
    ///
    /// ```
    /// use bursar::trace::Format;
    ///
    /// let error = Format::of_output("run.txt".as_ref()).unwrap_err();
    /// assert!(error.to_string().starts_with("run.txt: cannot tell the format"));
    /// ```
    pub fn of_output(path: &Path) -> Result<Self, TraceError> {
        let unknown = || TraceError::new(&path.display().to_string(), Reason::UnknownExtension);
        Self::of_path(path).ok_or_else(unknown)
    }
}

fn write_as(trace: &Trace, format: Format, to: &mut impl Write) -> io::Result<()> {
    match format {
        Format::Csv => write_csv(trace, to),
        Format::JsonLines => write_jsonl(trace, to),
        Format::Records => write_records(trace, to),
        Format::TorchSnapshot => write_torch_snapshot(trace, to),
    }
}

/// Reads the trace in `from`, writes it to `to` in the format of its extension and returns it. Frees of addresses that were
/// not allocated in the trace are not written.
///
/// ```
/// # let folder = std::env::temp_dir();
/// # let (log, snapshot) = (folder.join("bursar-convert.csv"), folder.join("bursar-convert.pickle"));
/// # bursar::trace::write(&bursar::trace::bundled(), &log)?;
/// let trace = bursar::trace::convert(&log, &snapshot)?;
/// assert_eq!(bursar::trace::read(&snapshot)?.peak_live(), trace.peak_live());
/// # std::fs::remove_file(&log)?;
/// # std::fs::remove_file(&snapshot)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn convert(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Trace, TraceError> {
    let to = to.as_ref();
    Format::of_output(to)?;
    let trace = crate::read(from)?;
    write(&trace, to)?;
    Ok(trace)
}

/// An event with its identifiers and its address, ready to be written.
#[derive(Clone, Copy, Debug)]
struct Row {
    event: Event,
    thread: u64,
    stream: u64,
    address: u64,
    time_us: u64,
}

/// Returns the rows of a trace. A trace built by hand may have events of threads, streams or blocks that do not exist; those
/// are errors.
fn rows<'a>(trace: &'a Trace, layout: &'a TraceLayout) -> impl Iterator<Item = io::Result<Row>> + 'a {
    trace.events.iter().enumerate().map(|(index, &event)| {
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidInput, format!("event {index} names {what}"));
        let address = match event.block {
            Event::NO_BLOCK => 0,
            block => *layout.addresses.get(block as usize).ok_or_else(|| wrong("a block that is not there"))?,
        };
        Ok(Row {
            event,
            thread: *trace.threads.get(event.thread as usize).ok_or_else(|| wrong("a thread that is not there"))?,
            stream: *trace.streams.get(event.stream as usize).ok_or_else(|| wrong("a stream that is not there"))?,
            address,
            time_us: index as u64 * STEP_US,
        })
    })
}

/// Makes up addresses for a trace.
fn synthetic_layout(trace: &Trace) -> io::Result<TraceLayout> {
    TraceLayout::best_fit(trace).map_err(|limit: TraceLimit| io::Error::new(io::ErrorKind::InvalidInput, limit))
}
