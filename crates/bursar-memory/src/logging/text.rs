//! Numbers and free text as they stand in a line. Every record passes here, so nothing goes through the formatter.

/// The bytes of a free text that are kept.
pub(super) const TEXT_BYTES_MAX: usize = 256;

/// Returns the beginning of `text` that is kept: as much as fits, and no part of a character.
pub(super) fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Appends a number.
pub(super) fn decimal(out: &mut Vec<u8>, number: u64) {
    padded(out, number, 1);
}

/// Appends a number with zeros before it, `width` digits at least.
pub(super) fn padded(out: &mut Vec<u8>, mut number: u64, width: usize) {
    const DIGITS_MAX: usize = u64::MAX.ilog10() as usize + 1;
    let mut digits = [b'0'; DIGITS_MAX];
    let mut first = DIGITS_MAX;
    while number > 0 {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&digits[first.min(DIGITS_MAX - width)..]);
}

/// Appends a number as `0x` and hexadecimal digits.
pub(super) fn hexadecimal(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(b"0x");
    let digits = number.checked_ilog2().unwrap_or(0) / 4 + 1;
    for digit in (0..digits).rev() {
        out.push(b"0123456789abcdef"[(number >> (4 * digit) & 0xf) as usize]);
    }
}

/// Appends a text as a field of a CSV line, in quotes where it would be read as something else without them, as RFC
/// 4180 has it. An empty one is in quotes too, since an empty field is that of an allocation nobody named.
pub(super) fn csv_field(out: &mut Vec<u8>, text: &str) {
    if !text.is_empty() && !text.contains([',', '"', '\n', '\r']) && text.trim() == text {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    out.push(b'"');
    for byte in text.bytes() {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
}

/// Appends a text as a JSON string.
pub(super) fn json_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..0x20 => {
                out.extend_from_slice(b"\\u00");
                out.push(b'0' + (byte >> 4));
                out.push(b"0123456789abcdef"[(byte & 0xf) as usize]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn appended(push: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        push(&mut out);
        String::from_utf8(out).expect("text")
    }

    proptest! {
        #[test]
        fn g1_numbers_are_what_the_formatter_makes_of_them(number: u64, bits in 0u32..64) {
            let number = number >> bits;
            prop_assert_eq!(appended(|out| decimal(out, number)), number.to_string());
            prop_assert_eq!(appended(|out| hexadecimal(out, number)), format!("{number:#x}"));
            prop_assert_eq!(appended(|out| padded(out, number, 6)), format!("{number:06}"));
        }

        #[test]
        fn g1_text_is_cut_at_256_bytes_between_characters(text in "[a-zé€𝄞\n\"]{0,300}") {
            let kept = cut(&text);
            prop_assert!(text.starts_with(kept) && kept.len() <= 256);
            let next = text[kept.len()..].chars().next().map_or(usize::MAX, char::len_utf8);
            prop_assert!(kept.len().saturating_add(next) > 256, "more would have fitted");
        }

        #[test]
        fn g1_a_json_string_is_read_back_as_it_was(text: String) {
            let read: String = serde_json::from_str(&appended(|out| json_string(out, &text))).expect("JSON");
            prop_assert_eq!(read, text);
        }
    }

    #[test]
    fn g1_the_extremes_of_numbers() {
        for number in [0, 9, 10, 15, 16, u64::MAX] {
            assert_eq!(appended(|out| decimal(out, number)), number.to_string());
            assert_eq!(appended(|out| hexadecimal(out, number)), format!("{number:#x}"));
        }
    }

    #[test]
    fn g1_a_csv_field_is_quoted_where_it_must_be() {
        for (text, field) in [
            ("weights", "weights"),
            ("", "\"\""),
            (" spaced", "\" spaced\""),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("two\nlines", "\"two\nlines\""),
        ] {
            assert_eq!(appended(|out| csv_field(out, text)), field);
        }
    }
}
