//! The memory that a stream is expected to need.

use bursar_core::Bytes;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const VARIABLE: &str = "BURSAR_POOL_MB_PER_STREAM";
const DEFAULT: Bytes = Bytes::mib(256);

/// Returns the size that the environment gives, or the default.
pub(super) fn per_stream() -> Bytes {
    match std::env::var_os(VARIABLE) {
        Some(text) => parse(&text).unwrap_or_else(|| {
            warn_once(&text);
            DEFAULT
        }),
        None => DEFAULT,
    }
}

fn parse(text: &OsStr) -> Option<Bytes> {
    let mib: u64 = text.to_str()?.trim().parse().ok()?;
    let bytes = mib.checked_mul(Bytes::mib(1).get())?;
    (bytes > 0).then_some(Bytes(bytes))
}

#[cold]
fn warn_once(text: &OsStr) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Relaxed) {
        tracing::warn!("{VARIABLE}={text:?} is not a number of MiB above zero; {DEFAULT} a stream it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s6_the_size_is_a_trimmed_number_of_mebibytes() {
        for (text, expected) in [
            ("1", Some(Bytes::mib(1))),
            (" 64\t\n", Some(Bytes::mib(64))),
            ("17592186044415", Some(Bytes::mib((1 << 44) - 1))),
            ("17592186044416", None),
            ("17592186044417", None),
            ("0", None),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("64MiB", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(parse(OsStr::new(text)), expected, "{text:?}");
        }
    }
}
