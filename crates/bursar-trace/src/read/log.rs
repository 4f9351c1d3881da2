//! Opens a trace file: unpacks it, recognises its format and reads logs row by row.

use super::csv::CsvRows;
use super::gzip::{self, Gunzip};
use super::jsonl::JsonRows;
use super::records::Records;
use super::torch;
use crate::{FilePosition, Format, Reason, Trace, TraceBuilder, TraceError};
use std::io::{self, BufReader, Cursor, Read};

/// The number of bytes that the format is recognised by.
const HEAD: usize = 128;

/// A file whose format is known.
pub(super) enum TraceReader<'a> {
    /// A log, which is read row by row.
    Log(Box<Log<'a>>),
    /// A snapshot, which was read to its end: before that nothing of it is known.
    Snapshot(Trace),
}

/// The bytes that follow a snapshot, which itself marks where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trailer {
    /// Nothing that has to be read; the file may be a pipe that stays open.
    Unread,
    /// A gzip checksum, which shows whether the snapshot is what was written.
    Checksum,
}

/// A log and the part of it that has been read.
pub(super) struct Log<'a> {
    pub(super) builder: TraceBuilder,
    rows: Box<dyn Rows + 'a>,
    name: String,
    format: Format,
}

/// The rows of a log.
pub(super) trait Rows {
    /// Reads until `builder` holds `events` events, and returns whether there may be more rows.
    fn fill(&mut self, builder: &mut TraceBuilder, events: usize) -> Result<bool, Reason>;

    /// Returns the position of the row that was read last.
    fn position(&self) -> FilePosition;
}

impl<'a> TraceReader<'a> {
    pub(super) fn open(reader: impl Read + 'a, name: &str) -> Result<Self, TraceError> {
        let failed = |error| TraceError::new(name, gzip::read_error(error));
        let (head, reader) = look_ahead(reader).map_err(failed)?;
        if head.starts_with(&gzip::MAGIC) {
            let (head, unpacked) = look_ahead(Gunzip::new(reader)).map_err(failed)?;
            Self::open_as(Format::of_content(&head), unpacked, name, Trailer::Checksum)
        } else if head.is_empty() {
            Err(TraceError::new(name, Reason::Empty))
        } else {
            Self::open_as(Format::of_content(&head), reader, name, Trailer::Unread)
        }
    }

    fn open_as(
        format: Option<Format>,
        reader: impl Read + 'a,
        name: &str,
        trailer: Trailer,
    ) -> Result<Self, TraceError> {
        let format = format.ok_or_else(|| TraceError::new(name, Reason::UnknownFormat))?;
        let rows: Box<dyn Rows + 'a> = match format {
            Format::Csv => Box::new(CsvRows::new(reader)),
            Format::JsonLines => Box::new(JsonRows::new(reader)),
            Format::Records => Box::new(Records::new(reader)),
            Format::TorchSnapshot => {
                let mut reader = BufReader::with_capacity(1 << 18, reader);
                let trace = torch::read(&mut reader, name)?;
                if trailer == Trailer::Checksum {
                    let rest = io::copy(&mut reader, &mut io::sink());
                    rest.map_err(|error| TraceError::new(name, gzip::read_error(error)))?;
                }
                return Ok(Self::Snapshot(trace));
            }
        };
        let log = Log { builder: TraceBuilder::new(name, format), rows, name: name.to_owned(), format };
        Ok(Self::Log(Box::new(log)))
    }
}

impl Log<'_> {
    /// Reads until the builder holds `events` events, and returns whether there may be more rows.
    pub(super) fn fill(&mut self, events: usize) -> Result<bool, TraceError> {
        let filled = self.rows.fill(&mut self.builder, events);
        filled.map_err(|reason| TraceError::at(&self.name, self.format, self.rows.position(), reason))
    }
}

/// Returns the first bytes of a reader, and a reader that still has them.
fn look_ahead<R: Read>(mut reader: R) -> io::Result<(Vec<u8>, impl Read)> {
    let mut head = Vec::with_capacity(HEAD);
    reader.by_ref().take(HEAD as u64).read_to_end(&mut head)?;
    Ok((head.clone(), Cursor::new(head).chain(reader)))
}
