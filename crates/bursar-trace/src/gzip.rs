//! Gzipped files: members one after another, with zeros behind any of them, as tapes and block devices leave them.

use crate::Reason;
use flate2::bufread::GzDecoder;
use std::fmt;
use std::io::{self, BufRead, ErrorKind, Read};

/// What every member begins with.
pub(crate) const MAGIC: [u8; 2] = [0x1f, 0x8b];

const BUFFER: usize = 1 << 16;

/// The contents of a gzipped file. What is behind it and no member is an error, since it is no part of what was written.
pub(crate) struct Gunzip<R>(Option<GzDecoder<Input<R>>>);

impl<R: Read> Gunzip<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self(Some(GzDecoder::new(Input::new(reader))))
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

/// Bytes behind the last member.
#[derive(Debug)]
struct Trailing {
    offset: u64,
}

impl fmt::Display for Trailing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Reason::TrailingBytes { offset: self.offset }, f)
    }
}

impl std::error::Error for Trailing {}

/// Where the bytes begin that belong to no member, if that is what `error` says.
pub(crate) fn trailing(error: &io::Error) -> Option<u64> {
    error.get_ref()?.downcast_ref::<Trailing>().map(|trailing| trailing.offset)
}

/// The compressed bytes, counted.
struct Input<R> {
    reader: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Where in the file the buffer begins.
    offset: u64,
}

impl<R: Read> Input<R> {
    fn new(reader: R) -> Self {
        Self { reader, buffer: vec![0; BUFFER].into_boxed_slice(), start: 0, end: 0, offset: 0 }
    }

    /// As many of the next bytes as there are, at least `count` unless the file ends.
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

    /// Whether another member follows; zeros before it are skipped.
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
                    return Err(io::Error::new(ErrorKind::InvalidData, Trailing { offset }));
                }
            }
        }
    }
}

impl<R: Read> Read for Input<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(into)?;
        self.consume(count);
        Ok(count)
    }
}

impl<R: Read> BufRead for Input<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.at_least(1)
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
    }
}
