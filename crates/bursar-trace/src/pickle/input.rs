//! The bytes of a pickle. No length that it names is ever allocated.

use crate::Reason;
use std::io::{self, BufRead, Read};

/// The bytes of the pickle, counted.
pub(super) struct Input<R> {
    reader: R,
    offset: u64,
}

impl<R: BufRead> Input<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, offset: 0 }
    }

    /// How much has been read.
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

    /// A length in as many bytes as the instruction says.
    pub(super) fn length(&mut self, width: usize) -> Result<u64, Reason> {
        Ok(match width {
            1 => self.byte()?.into(),
            4 => self.u32()?.into(),
            _ => u64::from_le_bytes(self.array()?),
        })
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
        _ => Reason::of_read(error),
    }
}
