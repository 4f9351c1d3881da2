//! The formats of trace files, and how each is recognised by its first bytes or its file name.

use super::Trace;
use std::fmt;
use std::path::Path;

/// The format of a trace file. Any of them may be gzipped.
///
/// ```
/// use bursar::trace::Format;
/// use std::path::Path;
///
/// assert_eq!(Format::of_path(Path::new("run.csv.gz")), Some(Format::Csv));
/// assert_eq!(Format::of_path(Path::new("notes.txt")), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// RMM's log: comma-separated, with a header and six columns, followed by columns of Bursar's own.
    #[default]
    Csv,
    /// Bursar's log: one JSON object per line.
    JsonLines,
    /// Records of 16 bytes, for programs without a parser; see [`write_records`](crate::write_records).
    Records,
    /// A PyTorch memory snapshot: a pickle.
    TorchSnapshot,
}

impl Format {
    /// Returns the format that the extension of a path names: `.csv`, `.jsonl` (`.ndjson`, `.json`), `.bin` or
    /// `.pickle` (`.pkl`), each with or without `.gz` after it.
    pub fn of_path(path: &Path) -> Option<Self> {
        let bare = if is_gzip_path(path) { path.with_extension("") } else { path.to_owned() };
        match bare.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "csv" => Some(Self::Csv),
            "jsonl" | "ndjson" | "json" => Some(Self::JsonLines),
            "bin" => Some(Self::Records),
            "pickle" | "pkl" => Some(Self::TorchSnapshot),
            _ => None,
        }
    }

    /// Returns the format of a file that begins with `head`. Text with a comma in its first line is taken for a CSV log, so
    /// that wrong columns are reported as such.
    pub(crate) fn of_content(head: &[u8]) -> Option<Self> {
        let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
        let line = text.split(|&byte| byte == b'\n' || byte == b'\r').next().unwrap_or_default();
        if begins_like_records(head) {
            return Some(Self::Records);
        }
        match text.first()? {
            0x80 => Some(Self::TorchSnapshot),
            b'{' => Some(Self::JsonLines),
            _ if begins_like_an_old_pickle(text) => Some(Self::TorchSnapshot),
            _ if line.contains(&b',') && line.iter().all(|&byte| byte == b'\t' || byte >= b' ') => Some(Self::Csv),
            _ => None,
        }
    }

    /// Returns the unit that positions in such a file count.
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::Csv | Self::JsonLines => "line",
            Self::Records | Self::TorchSnapshot => "record",
        }
    }
}

/// Returns whether a file begins with the allocation of block 0 of a size that blocks have. The other formats are text there,
/// or a pickle without four zeros.
fn begins_like_records(head: &[u8]) -> bool {
    let Some([stream @ .., a, b, c, d, e, f, g, h]) = head.first_chunk::<16>() else { return false };
    let bytes = u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
    stream[3] < 0x80 && stream[4..] == [0; 4] && (1..=Trace::MAX_BLOCK_BYTES).contains(&bytes)
}

/// Returns whether `text` begins with a dictionary or a list as pickle protocols 0 and 1 write it. Later protocols have a
/// first byte of their own.
fn begins_like_an_old_pickle(text: &[u8]) -> bool {
    match text {
        [b'(', b'd' | b'l', next, ..] => b"pVSIL(.as}]".contains(next),
        [b'}' | b']', next, ..] => b"qr(X.as}]".contains(next),
        _ => false,
    }
}

/// Returns whether a file at `path` is written gzipped.
pub(crate) fn is_gzip_path(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"))
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Csv => "RMM CSV log",
            Self::JsonLines => "JSON lines",
            Self::Records => "records of 16 bytes",
            Self::TorchSnapshot => "PyTorch memory snapshot",
        })
    }
}
