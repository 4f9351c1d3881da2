//! Cuts what a worker writes into whole lines, each with the worker's prefix.

/// The longest line that is kept in one piece, so that a worker that never ends a line does not fill our memory.
const LINE_BYTES_MAX: usize = 1 << 20;

/// A buffer between a worker's standard output or error and ours.
#[derive(Debug)]
pub(super) struct LineBuffer {
    prefix: Vec<u8>,
    /// The line that has not ended yet.
    partial: Vec<u8>,
}

impl LineBuffer {
    /// Creates a buffer whose lines begin with `prefix`.
    pub(super) fn new(prefix: impl Into<Vec<u8>>) -> Self {
        Self { prefix: prefix.into(), partial: Vec::new() }
    }

    /// Adds what was written and moves every line that has ended to `out`. Bytes are not changed, text or not.
    pub(super) fn push(&mut self, written: &[u8], out: &mut Vec<u8>) {
        for piece in written.split_inclusive(|&byte| byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() >= LINE_BYTES_MAX {
                self.finish(out);
            }
        }
    }

    /// Moves the last line to `out` if it has no end, and ends it there.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if self.partial.is_empty() {
            return;
        }
        out.extend_from_slice(&self.prefix);
        out.append(&mut self.partial);
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut out) = (LineBuffer::new("> "), Vec::new());
        pieces.iter().for_each(|piece| lines.push(piece, &mut out));
        lines.finish(&mut out);
        out
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        for pieces in [&[&b"one\ntwo\n"[..]][..], &[b"o", b"ne", b"\ntw", b"o", b"\n"], &[b"one\n", b"", b"two"]] {
            assert_eq!(shown(pieces), b"> one\n> two\n", "{pieces:?}");
        }
    }

    #[test]
    fn a_line_shows_only_when_it_has_ended() {
        let (mut lines, mut out) = (LineBuffer::new("> "), Vec::new());
        lines.push(b"one\ntw", &mut out);
        assert_eq!(out, b"> one\n");
    }

    #[test]
    fn empty_lines_and_bytes_that_are_no_text_pass() {
        assert_eq!(shown(&[b"\n\xff\0\r\n\n"]), b"> \n> \xff\0\r\n> \n");
        assert_eq!(shown(&[]), b"");
    }

    #[test]
    fn a_line_without_end_is_shown_in_pieces_and_loses_nothing() {
        let (mut lines, mut out) = (LineBuffer::new("> "), Vec::new());
        let written = vec![b'x'; 64 << 10];
        (0..40).for_each(|_| lines.push(&written, &mut out));
        assert!(lines.partial.len() < LINE_BYTES_MAX);
        lines.finish(&mut out);
        assert_eq!(out.iter().filter(|&&byte| byte == b'x').count(), 40 << 16);
        assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 3);
    }
}
