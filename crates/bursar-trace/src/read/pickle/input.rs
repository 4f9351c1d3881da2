//! The input of a pickle. No length that it names is ever allocated.

use crate::Reason;
use crate::read::gzip;
use std::io::{self, BufRead, Read};

/// The bytes of a pickle, counted.
pub(super) struct PickleInput<R> {
    reader: R,
    offset: u64,
}

impl<R: BufRead> PickleInput<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, offset: 0 }
    }

    /// Returns the number of bytes read so far.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Reason> {
        self.reader.read_exact(bytes).map_err(ended)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Reason> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Reason> {
        loop {
            match self.reader.fill_buf() {
                Ok([]) => return Err(Reason::Truncated { within: "the pickle" }),
                Ok(&[byte, ..]) => {
                    self.reader.consume(1);
                    self.offset += 1;
                    return Ok(byte);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ended(error)),
            }
        }
    }

    pub(super) fn u32(&mut self) -> Result<u32, Reason> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads a length of `width` bytes.
    pub(super) fn length(&mut self, width: usize) -> Result<u64, Reason> {
        Ok(match width {
            1 => self.byte()?.into(),
            4 => self.u32()?.into(),
            _ => u64::from_le_bytes(self.array()?),
        })
    }

    /// Reads a line without its end; `None` if it is longer than `into`. All of the line is consumed.
    pub(super) fn line<'b>(&mut self, into: &'b mut [u8]) -> Result<Option<&'b [u8]>, Reason> {
        let (mut length, mut fits) = (0, true);
        loop {
            let bytes = match self.reader.fill_buf() {
                Ok([]) => return Err(Reason::Truncated { within: "the pickle" }),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(ended(error)),
            };
            let end = memchr::memchr(b'\n', bytes);
            let part = &bytes[..end.unwrap_or(bytes.len())];
            match into.get_mut(length..length + part.len()) {
                Some(target) if fits => target.copy_from_slice(part),
                _ => fits = false,
            }
            length = if fits { length + part.len() } else { 0 };
            let used = part.len() + usize::from(end.is_some());
            self.reader.consume(used);
            self.offset += used as u64;
            if end.is_some() {
                return Ok(fits.then_some(&into[..length]));
            }
        }
    }

    pub(super) fn skip(&mut self, length: u64) -> Result<(), Reason> {
        let skipped = io::copy(&mut self.reader.by_ref().take(length), &mut io::sink()).map_err(ended)?;
        self.offset += skipped;
        if skipped < length { Err(Reason::Truncated { within: "the pickle" }) } else { Ok(()) }
    }
}

fn ended(error: io::Error) -> Reason {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Reason::Truncated { within: "the pickle" },
        _ => gzip::read_error(error),
    }
}
