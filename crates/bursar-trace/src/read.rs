//! Reading: the format is told from the content.

use crate::csv::CsvRows;
use crate::gzip::{self, Gunzip};
use crate::jsonl::JsonRows;
use crate::{Format, Place, Reason, Trace, TraceBuilder, TraceError, torch};
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;

/// Enough of a file to tell its format by.
const HEAD: usize = 128;

/// Reads a whole trace: an RMM CSV log, Bursar's JSON lines or a PyTorch memory snapshot, any of them gzipped or not. Which it is
/// is told from the content. [`open`](crate::open) needs less memory for a long one. Frees and allocations without their other half are kept in the trace;
/// [`Trace::strict`] makes them an error.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("bursar-trace-read-{}.csv", std::process::id()));
/// # std::fs::write(&path, "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.0,allocate,0x1000,512,0\n")?;
/// let trace = bursar_trace::read(&path)?;
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

/// Reads a trace that is called `name` in errors; see [`read`].
///
/// ```
/// let log = br#"{"action":"allocate","pointer":"0x1000","bytes":512}"#;
/// assert_eq!(bursar_trace::read_from(&log[..], "pipe")?.blocks, 1);
/// # Ok::<(), bursar_trace::TraceError>(())
/// ```
pub fn read_from(reader: impl Read, name: &str) -> Result<Trace, TraceError> {
    let trace = match Reading::start(reader, name)? {
        Reading::Whole(trace) => trace,
        Reading::Log(mut log) => {
            log.fill(usize::MAX)?;
            log.builder.finish()
        }
    };
    match trace.events.is_empty() && trace.unknown_frees.is_empty() {
        true => Err(TraceError::new(name, Reason::Empty)),
        false => Ok(trace),
    }
}

/// A file whose format is known.
pub(crate) enum Reading<'a> {
    /// A log, which is read row by row.
    Log(Box<Log<'a>>),
    /// A snapshot, which has to be read to its end before anything is known.
    Whole(Trace),
}

/// What lies behind a snapshot, which says itself where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Nothing that concerns it; it may even be a pipe that stays open.
    IsOpen,
    /// A checksum, which tells whether it is what was written.
    IsChecked,
}

/// A log and what has been read of it.
pub(crate) struct Log<'a> {
    pub(crate) builder: TraceBuilder,
    rows: Box<dyn Rows + 'a>,
    name: String,
    format: Format,
}

/// The rows of a log.
pub(crate) trait Rows {
    /// Reads on until so many events wait in the builder, and answers whether there may be more.
    fn fill(&mut self, builder: &mut TraceBuilder, events: usize) -> Result<bool, Reason>;

    /// The line last asked for.
    fn place(&self) -> Place;
}

impl<'a> Reading<'a> {
    pub(crate) fn start(reader: impl Read + 'a, name: &str) -> Result<Self, TraceError> {
        let failed = |error| TraceError::new(name, Reason::of_read(error));
        let (head, reader) = look_ahead(reader).map_err(failed)?;
        if head.starts_with(&gzip::MAGIC) {
            let (head, unpacked) = look_ahead(Gunzip::new(reader)).map_err(failed)?;
            Self::start_as(Format::of_content(&head), unpacked, name, End::IsChecked)
        } else if head.is_empty() {
            Err(TraceError::new(name, Reason::Empty))
        } else {
            Self::start_as(Format::of_content(&head), reader, name, End::IsOpen)
        }
    }

    fn start_as(format: Option<Format>, reader: impl Read + 'a, name: &str, end: End) -> Result<Self, TraceError> {
        let format = format.ok_or_else(|| TraceError::new(name, Reason::UnknownFormat))?;
        let rows: Box<dyn Rows + 'a> = match format {
            Format::Csv => Box::new(CsvRows::new(reader)),
            Format::JsonLines => Box::new(JsonRows::new(reader)),
            Format::TorchSnapshot => {
                let mut reader = BufReader::with_capacity(1 << 18, reader);
                let trace = torch::read(&mut reader, name)?;
                if end == End::IsChecked {
                    let rest = io::copy(&mut reader, &mut io::sink());
                    rest.map_err(|error| TraceError::new(name, Reason::of_read(error)))?;
                }
                return Ok(Self::Whole(trace));
            }
        };
        let log = Log { builder: TraceBuilder::new(name, format), rows, name: name.to_owned(), format };
        Ok(Self::Log(Box::new(log)))
    }
}

impl Log<'_> {
    /// Reads on until so many events wait in the builder, and answers whether there may be more.
    pub(crate) fn fill(&mut self, events: usize) -> Result<bool, TraceError> {
        let filled = self.rows.fill(&mut self.builder, events);
        filled.map_err(|reason| TraceError::at(&self.name, self.format, self.rows.place(), reason))
    }
}

/// The first bytes of a reader, and a reader that has them still.
fn look_ahead<R: Read>(mut reader: R) -> io::Result<(Vec<u8>, impl Read)> {
    let mut head = Vec::with_capacity(HEAD);
    reader.by_ref().take(HEAD as u64).read_to_end(&mut head)?;
    Ok((head.clone(), Cursor::new(head).chain(reader)))
}
