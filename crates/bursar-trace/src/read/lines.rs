//! Lines out of a large buffer, without an allocation per line.

use super::gzip;
use crate::{FilePosition, Reason};
use std::io::{ErrorKind, Read};

/// The length of the longest line that is read, in bytes; a record has a few hundred.
pub(crate) const MAX_LINE: usize = 1 << 20;

/// The lines of a reader, without their ends, counted from 1.
pub(crate) struct Lines<R> {
    reader: R,
    buffer: Box<[u8]>,
    /// The start of the record returned last; bytes before it are not needed any more.
    record: usize,
    /// The start of the next line.
    start: usize,
    end: usize,
    /// The number of lines read so far.
    count: u64,
    position: FilePosition,
    exhausted: bool,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(reader: R) -> Self {
        let buffer = vec![0; MAX_LINE].into_boxed_slice();
        Self { reader, buffer, record: 0, start: 0, end: 0, count: 0, position: FilePosition(0), exhausted: false }
    }

    /// Returns the position of the line read last, even if reading it failed; of several lines that make one record, the
    /// first.
    pub(crate) fn position(&self) -> FilePosition {
        self.position
    }

    /// Returns the next line that is not blank, with its position.
    pub(crate) fn next(&mut self) -> Result<Option<(FilePosition, &[u8])>, Reason> {
        loop {
            self.record = self.start;
            self.position = FilePosition(self.count + 1);
            let Some(to) = self.advance()? else { return Ok(None) };
            if !self.buffer[self.record..to].trim_ascii().is_empty() {
                return Ok(Some((self.position, without_return(&self.buffer[self.record..to]))));
            }
        }
    }

    /// Returns the line read last together with the lines after it, for as long as `goes_on` returns true, as one record that
    /// includes the line ends between them. `goes_on` is called with each line in turn, its end included. Returns `None` if
    /// the file ends first, or if the record is longer than [`MAX_LINE`].
    pub(crate) fn join(&mut self, mut goes_on: impl FnMut(&[u8]) -> bool) -> Result<Option<&[u8]>, Reason> {
        let mut from = 0;
        loop {
            let to = self.start - self.record;
            if !goes_on(&self.buffer[self.record + from..self.start]) {
                let record = &self.buffer[self.record..self.start];
                return Ok(Some(without_return(record.strip_suffix(b"\n").unwrap_or(record))));
            }
            from = to;
            match self.advance() {
                Ok(Some(_)) => {}
                Ok(None) | Err(Reason::LongLine { .. }) => return Ok(None),
                Err(reason) => return Err(reason),
            }
        }
    }

    /// Returns the buffered bytes of the record read last, for an error to show.
    pub(crate) fn record(&self) -> &[u8] {
        &self.buffer[self.record..self.end]
    }

    /// Advances by a line, and returns its end in the buffer; `None` at the end of the file.
    fn advance(&mut self) -> Result<Option<usize>, Reason> {
        self.count += 1;
        let mut searched = self.start;
        loop {
            if let Some(length) = memchr::memchr(b'\n', &self.buffer[searched..self.end]) {
                self.start = searched + length + 1;
                return Ok(Some(searched + length));
            }
            if self.exhausted {
                let is_line = self.start < self.end;
                self.start = self.end;
                return Ok(is_line.then_some(self.end));
            }
            let unsearched = self.end - self.record;
            self.refill()?;
            searched = unsearched;
        }
    }

    /// Moves the record to the front of the buffer and reads more after it.
    fn refill(&mut self) -> Result<(), Reason> {
        self.buffer.copy_within(self.record..self.end, 0);
        (self.start, self.end) = (self.start - self.record, self.end - self.record);
        self.record = 0;
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
                Err(error) => return Err(gzip::read_error(error)),
            }
        }
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns a few bytes at a time, as a pipe may.
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
        while let Some((position, line)) = lines.next().expect("no error") {
            found.push((position.0, line.to_vec()));
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
    fn joined_lines_are_the_same_however_they_arrive() {
        let text = b"one\n\"two\r\n\nthree\"\r\nfour\nfive";
        for step in 1..text.len() {
            let mut lines = Lines::new(Drip(text, step));
            lines.next().expect("no error");
            lines.next().expect("no error");
            let record = lines.join(|line| !line.contains(&b'e')).expect("no error");
            assert_eq!(record, Some(&b"\"two\r\n\nthree\""[..]), "{step} bytes at a time");
            assert_eq!(lines.position(), FilePosition(2));
            assert_eq!(
                lines.next().expect("no error"),
                Some((FilePosition(5), &b"four"[..])),
                "{step} bytes at a time"
            );
            lines.next().expect("no error");
            assert_eq!(lines.join(|_| true).expect("no error"), None, "the file ends first");
            assert_eq!(lines.position(), FilePosition(6));
        }
    }

    #[test]
    fn a_line_without_end_is_an_error_and_not_memory() {
        let mut lines = Lines::new(std::io::repeat(b'x'));
        assert!(matches!(lines.next(), Err(Reason::LongLine { limit: MAX_LINE })));
    }
}
