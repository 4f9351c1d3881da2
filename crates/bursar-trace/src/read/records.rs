//! Reads records of 16 bytes: the stream's number, with the top bit set for a free, the block's number, the size.

use super::gzip;
use super::log::Rows;
use crate::{EventOrigin, FilePosition, Reason, TraceBuilder};
use bursar_core::AllocTag;
use std::io::{BufReader, ErrorKind, Read};

/// The bit that marks the stream of a free.
const FREE: u32 = 1 << 31;

/// The records of a file.
pub(crate) struct Records<R> {
    reader: BufReader<R>,
    /// The number of the record read last.
    number: u64,
}

impl<R: Read> Records<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader: BufReader::with_capacity(1 << 16, reader), number: 0 }
    }

    /// Returns the next record; `None` at the end of the file.
    fn next(&mut self) -> Result<Option<[u8; 16]>, Reason> {
        self.number += 1;
        let (mut record, mut length) = ([0; 16], 0);
        while length < record.len() {
            match self.reader.read(&mut record[length..]) {
                Ok(0) if length == 0 => return Ok(None),
                Ok(0) => return Err(Reason::Truncated { within: "a record of 16 bytes" }),
                Ok(count) => length += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(gzip::read_error(error)),
            }
        }
        Ok(Some(record))
    }
}

impl<R: Read> Rows for Records<R> {
    fn position(&self) -> FilePosition {
        FilePosition(self.number)
    }

    fn fill(&mut self, builder: &mut TraceBuilder, events: usize) -> Result<bool, Reason> {
        while builder.pending_events() < events {
            let Some(record) = self.next()? else { return Ok(false) };
            let [a, b, c, d, e, f, g, h, bytes @ ..] = record;
            let (word, block) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
            let (stream, position) = (u64::from(word & !FREE), self.position());
            let origin = EventOrigin { position, thread: 1, stream, device: 0 };
            // Blocks have numbers and no addresses; an address of zero is none.
            let pointer = u64::from(block) + 1;
            let bytes = u64::from_le_bytes(bytes);
            match word & FREE {
                0 => builder.allocate(origin, pointer, bytes, AllocTag::UNTAGGED)?,
                _ => builder.free(origin, pointer, bytes)?,
            }
        }
        Ok(true)
    }
}
