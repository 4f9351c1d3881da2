//! Gzipped files: members one after another, with zeros after any of them, as tapes and block devices leave them.

use crate::Reason;
use flate2::bufread::GzDecoder;
use std::fmt;
use std::io::{self, BufRead, ErrorKind, Read};

/// The bytes that every member begins with.
pub(crate) const MAGIC: [u8; 2] = [0x1f, 0x8b];

const BUFFER: usize = 1 << 16;

/// A reader of the contents of a gzipped file. Trailing bytes that are no member are an error: they are not part of what
/// was written.
pub(crate) struct Gunzip<R>(Option<GzDecoder<CompressedInput<R>>>);

impl<R: Read> Gunzip<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self(Some(GzDecoder::new(CompressedInput::new(reader))))
    }
}

impl<R: Read> Read for Gunzip<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while let Some(member) = &mut self.0 {
            let count = member.read(into)?;
            if count > 0 {
                return Ok(count);
            }
            let has_next = member.get_mut().is_at_member()?;
            self.0 = self.0.take().filter(|_| has_next).map(|member| GzDecoder::new(member.into_inner()));
        }
        Ok(0)
    }
}

/// The error of bytes after the last member.
#[derive(Debug)]
struct TrailingBytes {
    offset: u64,
}

impl fmt::Display for TrailingBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Reason::TrailingBytes { offset: self.offset }, f)
    }
}

impl std::error::Error for TrailingBytes {}

/// Returns the reason that a read error of a file, packed or not, stands for: a compressed stream that stops early is a
/// file that was cut.
pub(super) fn read_error(error: io::Error) -> Reason {
    let trailing = error.get_ref().and_then(|inner| inner.downcast_ref::<TrailingBytes>());
    if let Some(TrailingBytes { offset }) = trailing {
        return Reason::TrailingBytes { offset: *offset };
    }
    match error.kind() {
        ErrorKind::UnexpectedEof => Reason::Truncated { within: "its gzip stream" },
        _ => Reason::Io(error),
    }
}

/// The compressed bytes, counted.
struct CompressedInput<R> {
    reader: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The offset of the buffer in the file.
    offset: u64,
}

impl<R: Read> CompressedInput<R> {
    fn new(reader: R) -> Self {
        Self { reader, buffer: vec![0; BUFFER].into_boxed_slice(), start: 0, end: 0, offset: 0 }
    }

    /// Returns the next bytes that are buffered, at least `count` unless the file ends.
    fn at_least(&mut self, count: usize) -> io::Result<&[u8]> {
        while self.end - self.start < count {
            self.buffer.copy_within(self.start..self.end, 0);
            self.offset += self.start as u64;
            (self.start, self.end) = (0, self.end - self.start);
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(more) => self.end += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Skips zeros and returns whether another member follows.
    fn is_at_member(&mut self) -> io::Result<bool> {
        loop {
            let next = self.at_least(MAGIC.len())?;
            let zeros = next.iter().take_while(|&&byte| byte == 0).count();
            match &next[zeros..] {
                [] if next.is_empty() => return Ok(false),
                [only] if *only == MAGIC[0] && zeros == 0 => return Err(ErrorKind::UnexpectedEof.into()),
                bytes if zeros == 0 && bytes.starts_with(&MAGIC) => return Ok(true),
                _ if zeros > 0 => self.consume(zeros),
                _ => {
                    let offset = self.offset + self.start as u64;
                    return Err(io::Error::new(ErrorKind::InvalidData, TrailingBytes { offset }));
                }
            }
        }
    }
}

impl<R: Read> Read for CompressedInput<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(into)?;
        self.consume(count);
        Ok(count)
    }
}

impl<R: Read> BufRead for CompressedInput<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.at_least(1)
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
    }
}
