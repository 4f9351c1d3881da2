//! Lines out of a large buffer, with no allocation a line.

use crate::{Place, Reason};
use std::io::{ErrorKind, Read};

/// The longest line that is read; a record is a few hundred bytes.
pub(crate) const MAX_LINE: usize = 1 << 20;

/// The lines of a reader, without their ends, counted from 1.
pub(crate) struct Lines<R> {
    reader: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    place: Place,
    exhausted: bool,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(reader: R) -> Self {
        let buffer = vec![0; MAX_LINE].into_boxed_slice();
        Self { reader, buffer, start: 0, end: 0, place: Place(0), exhausted: false }
    }

    /// The line last asked for, whether it could be read or not.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// The next line that is not blank, and which it is.
    pub(crate) fn next(&mut self) -> Result<Option<(Place, &[u8])>, Reason> {
        loop {
            let Some((from, to)) = self.advance()? else { return Ok(None) };
            if !self.buffer[from..to].trim_ascii().is_empty() {
                let line = &self.buffer[from..to];
                return Ok(Some((self.place, line.strip_suffix(b"\r").unwrap_or(line))));
            }
        }
    }

    /// Where the next line is in the buffer.
    fn advance(&mut self) -> Result<Option<(usize, usize)>, Reason> {
        self.place.0 += 1;
        let mut searched = self.start;
        loop {
            if let Some(length) = memchr::memchr(b'\n', &self.buffer[searched..self.end]) {
                let (from, to) = (self.start, searched + length);
                self.start = to + 1;
                return Ok(Some((from, to)));
            }
            if self.exhausted {
                let (from, to) = (self.start, self.end);
                self.start = self.end;
                return Ok((from < to).then_some((from, to)));
            }
            searched = self.end - self.start;
            self.refill()?;
        }
    }

    /// Moves what is left to the front of the buffer and reads more behind it.
    fn refill(&mut self) -> Result<(), Reason> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.end == self.buffer.len() {
            return Err(Reason::LongLine { limit: MAX_LINE });
        }
        loop {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(count) => {
                    self.end += count;
                    self.exhausted = count == 0;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Reason::of_read(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives its bytes a few at a time, as a pipe may.
    struct Drip<'a>(&'a [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let count = self.1.min(self.0.len()).min(buffer.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn lines(text: &[u8], step: usize) -> Vec<(u64, Vec<u8>)> {
        let mut lines = Lines::new(Drip(text, step));
        let mut found = Vec::new();
        while let Some((place, line)) = lines.next().expect("no error") {
            found.push((place.0, line.to_vec()));
        }
        found
    }

    #[test]
    fn lines_are_the_same_however_they_arrive() {
        let text = b"one\r\n\n  \ntwo\nthree";
        let expected = [(1, b"one".to_vec()), (4, b"two".to_vec()), (5, b"three".to_vec())];
        for step in 1..text.len() {
            assert_eq!(lines(text, step), expected, "{step} bytes at a time");
        }
    }

    #[test]
    fn a_line_without_end_is_an_error_and_not_memory() {
        let mut lines = Lines::new(std::io::repeat(b'x'));
        assert!(matches!(lines.next(), Err(Reason::LongLine { limit: MAX_LINE })));
    }
}
