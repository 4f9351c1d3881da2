//! Parses numbers, addresses and streams as logs write them.

use crate::Reason;

/// Returns the first bytes of a text, for an error to show.
pub(crate) fn excerpt(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(80)]);
    text.trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned()
}

fn field_error(field: &'static str, text: &[u8], expected: &'static str) -> Reason {
    Reason::Field { field, found: excerpt(text), expected }
}

/// Parses a decimal number without a sign.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    let digit = |byte: u8| Some(u64::from(byte.wrapping_sub(b'0'))).filter(|&digit| digit <= 9);
    match text.len() {
        0 => None,
        // Nineteen digits cannot overflow.
        1..20 => text.iter().try_fold(0, |value, &byte| Some(value * 10 + digit(byte)?)),
        _ => text.iter().try_fold(0u64, |value, &byte| value.checked_mul(10)?.checked_add(digit(byte)?)),
    }
}

/// The value of each hexadecimal digit, and 16 for every other byte.
const DIGITS: [u8; 256] = {
    let mut digits = [16; 256];
    let mut value = 0;
    while value < 16 {
        digits[b"0123456789abcdef"[value] as usize] = value as u8;
        digits[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    digits
};

/// Parses a hexadecimal number without a prefix.
pub(crate) fn hexadecimal(text: &[u8]) -> Option<u64> {
    let digits = &text[text.iter().take_while(|&&byte| byte == b'0').count()..];
    if text.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0, |value, &byte| match DIGITS[byte as usize] {
        16 => None,
        digit => Some(value << 4 | u64::from(digit)),
    })
}

fn prefixed(text: &[u8]) -> Option<&[u8]> {
    text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X"))
}

/// Parses a size in bytes.
pub(crate) fn size(field: &'static str, text: &[u8]) -> Result<u64, Reason> {
    let text = text.trim_ascii();
    decimal(text).ok_or_else(|| field_error(field, text, "a size in bytes, from 0 to 18446744073709551615"))
}

/// Parses the identifier of a thread or a device.
pub(crate) fn identifier(field: &'static str, text: &[u8]) -> Result<u64, Reason> {
    let text = text.trim_ascii();
    let value = match prefixed(text) {
        Some(digits) => hexadecimal(digits),
        None => decimal(text),
    };
    value.ok_or_else(|| field_error(field, text, "a number of at most 64 bits"))
}

/// Parses an address: hexadecimal, with or without a prefix. C prints null as `(nil)`.
pub(crate) fn address(field: &'static str, text: &[u8]) -> Result<u64, Reason> {
    let text = text.trim_ascii();
    let value = match prefixed(text) {
        Some(digits) => hexadecimal(digits),
        None if text == b"(nil)" || text == b"nullptr" => Some(0),
        None => hexadecimal(text),
    };
    value.ok_or_else(|| field_error(field, text, "a hexadecimal address of at most 64 bits"))
}

/// Parses a stream: a number in decimal or, with a prefix, in hexadecimal; or one of CUDA's names, which stands for the
/// handle that CUDA itself gives that stream.
pub(crate) fn stream(field: &'static str, text: &[u8]) -> Result<u64, Reason> {
    let text = text.trim_ascii();
    let value = match prefixed(text) {
        Some(digits) => hexadecimal(digits),
        None => decimal(text).or_else(|| named_stream(text)).or_else(|| hexadecimal(text)),
    };
    value.ok_or_else(|| field_error(field, text, "a stream: a number, or 0x and hexadecimal digits"))
}

fn named_stream(text: &[u8]) -> Option<u64> {
    const NAMES: [(&[u8], u64); 8] = [
        (b"default", 0),
        (b"(nil)", 0),
        (b"nullptr", 0),
        (b"legacy", 1),
        (b"cudaStreamLegacy", 1),
        (b"ptds", 2),
        (b"per_thread", 2),
        (b"cudaStreamPerThread", 2),
    ];
    NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|&(_, handle)| handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_every_writer_prints_them() {
        assert_eq!(size("Size", b" 512 ").ok(), Some(512));
        assert_eq!(size("Size", b"18446744073709551615").ok(), Some(u64::MAX));
        assert_eq!(address("Pointer", b"0x7f00").ok(), Some(0x7f00));
        assert_eq!(address("Pointer", b"7F00").ok(), Some(0x7f00));
        assert_eq!(address("Pointer", b"(nil)").ok(), Some(0));
        assert_eq!(address("Pointer", b"0xffffffffffffffff").ok(), Some(u64::MAX));
        for (text, handle) in
            [("0", 0), ("0x0", 0), ("10", 10), ("0x10", 16), ("ptds", 2), ("default", 0), ("5e8f", 0x5e8f)]
        {
            assert_eq!(stream("Stream", text.as_bytes()).ok(), Some(handle), "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_or_is_no_number_is_refused() {
        for text in ["", "-1", "+1", "1.5", "1e9", "18446744073709551616", "0x10", "٣"] {
            assert!(size("Size", text.as_bytes()).is_err(), "{text}");
        }
        for text in ["", "0x", "0x10000000000000000", "-0x1", "pointer"] {
            assert!(address("Pointer", text.as_bytes()).is_err(), "{text}");
        }
        for text in ["", "0x", "stream 1", "-1", "99999999999999999999"] {
            assert!(stream("Stream", text.as_bytes()).is_err(), "{text}");
        }
    }
}
