//! The formats a trace can be in, and how each is told from its first bytes or its name.

use std::fmt;
use std::path::Path;

/// How a trace is written down. Any of them may be gzipped.
///
/// ```
/// use bursar_trace::Format;
/// use std::path::Path;
///
/// assert_eq!(Format::of_path(Path::new("run.csv.gz")), Some(Format::Csv));
/// assert_eq!(Format::of_path(Path::new("notes.txt")), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// RMM's log: comma-separated, a header and six columns, and more of ours behind them.
    #[default]
    Csv,
    /// Bursar's log: a JSON object a line.
    JsonLines,
    /// A PyTorch memory snapshot: a pickle.
    TorchSnapshot,
}

impl Format {
    /// The format a path is to be written in: `.csv`, `.jsonl` (`.ndjson`, `.json`) or `.pickle` (`.pkl`), each
    /// with or without `.gz` behind it.
    pub fn of_path(path: &Path) -> Option<Self> {
        let bare = if is_gzip_path(path) { path.with_extension("") } else { path.to_owned() };
        match bare.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "csv" => Some(Self::Csv),
            "jsonl" | "ndjson" | "json" => Some(Self::JsonLines),
            "pickle" | "pkl" => Some(Self::TorchSnapshot),
            _ => None,
        }
    }

    /// The format that begins with `head`. Text with a comma in its first line is taken for a CSV log, so that wrong columns
    /// are told as such.
    pub(crate) fn of_content(head: &[u8]) -> Option<Self> {
        let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
        let line = text.split(|&byte| byte == b'\n' || byte == b'\r').next().unwrap_or_default();
        match text.first()? {
            0x80 => Some(Self::TorchSnapshot),
            b'{' => Some(Self::JsonLines),
            _ if begins_like_an_old_pickle(text) => Some(Self::TorchSnapshot),
            _ if line.contains(&b',') && line.iter().all(|&byte| byte == b'\t' || byte >= b' ') => Some(Self::Csv),
            _ => None,
        }
    }

    /// What a place in such a file counts.
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::Csv | Self::JsonLines => "line",
            Self::TorchSnapshot => "record",
        }
    }
}

/// Whether a dictionary or a list begins as protocols 0 and 1 of pickles write one; later protocols say so in their first byte.
fn begins_like_an_old_pickle(text: &[u8]) -> bool {
    match text {
        [b'(', b'd' | b'l', next, ..] => b"pVSIL(.as}]".contains(next),
        [b'}' | b']', next, ..] => b"qr(X.as}]".contains(next),
        _ => false,
    }
}

/// Whether what is written to `path` is to be gzipped.
pub(crate) fn is_gzip_path(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"))
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Csv => "RMM CSV log",
            Self::JsonLines => "JSON lines",
            Self::TorchSnapshot => "PyTorch memory snapshot",
        })
    }
}
