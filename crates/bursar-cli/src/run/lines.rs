//! What a worker writes, cut into whole lines that say whose they are.

/// A line that is longer is shown in pieces: a worker that never ends one must not fill our memory.
const LINE_BYTES_MAX: usize = 1 << 20;

/// One worker's standard output or error on its way to ours.
#[derive(Debug)]
pub(crate) struct Lines {
    prefix: Vec<u8>,
    /// The line that has not ended.
    begun: Vec<u8>,
}

impl Lines {
    /// Lines that begin with `prefix`.
    pub(crate) fn new(prefix: impl Into<Vec<u8>>) -> Self {
        Self { prefix: prefix.into(), begun: Vec::new() }
    }

    /// Takes what was written and puts every line that has ended into `out`. Bytes pass as they are, text or not.
    pub(crate) fn take(&mut self, written: &[u8], out: &mut Vec<u8>) {
        for piece in written.split_inclusive(|&byte| byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.begun.len() >= LINE_BYTES_MAX {
                self.finish(out);
            }
        }
    }

    /// Nothing more will be written: a last line counts without its end.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        if self.begun.is_empty() {
            return;
        }
        out.extend_from_slice(&self.prefix);
        out.append(&mut self.begun);
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut out) = (Lines::new("> "), Vec::new());
        pieces.iter().for_each(|piece| lines.take(piece, &mut out));
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
        let (mut lines, mut out) = (Lines::new("> "), Vec::new());
        lines.take(b"one\ntw", &mut out);
        assert_eq!(out, b"> one\n");
    }

    #[test]
    fn empty_lines_and_bytes_that_are_no_text_pass() {
        assert_eq!(shown(&[b"\n\xff\0\r\n\n"]), b"> \n> \xff\0\r\n> \n");
        assert_eq!(shown(&[]), b"");
    }

    #[test]
    fn a_line_without_end_is_shown_in_pieces_and_loses_nothing() {
        let (mut lines, mut out) = (Lines::new("> "), Vec::new());
        let written = vec![b'x'; 64 << 10];
        (0..40).for_each(|_| lines.take(&written, &mut out));
        assert!(lines.begun.len() < LINE_BYTES_MAX);
        lines.finish(&mut out);
        assert_eq!(out.iter().filter(|&&byte| byte == b'x').count(), 40 << 16);
        assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 3);
    }
}
