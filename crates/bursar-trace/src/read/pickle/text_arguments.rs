//! The arguments of the oldest instructions: text up to the end of the line.

use super::{MAX_TEXT, Value};

/// The length of the longest line that is parsed: every byte of a text may be written as `\U` and eight digits.
pub(super) const MAX_LINE: usize = 10 * MAX_TEXT as usize;

/// Parses an integer, with the `L` that Python puts after long ones; `None` if it is none. One of more than 64 bits is not
/// kept.
pub(super) fn number(line: &[u8]) -> Option<Value> {
    let text = line.trim_ascii();
    let text = text.strip_suffix(b"L").unwrap_or(text);
    let digits = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let value = text.parse().map(Value::Int).or_else(|_| text.parse().map(Value::Large));
    Some(value.unwrap_or(Value::Other))
}

/// Parses the index of a memo entry.
pub(super) fn index(line: &[u8]) -> Option<u32> {
    match number(line)? {
        Value::Int(index) => u32::try_from(index).ok(),
        _ => None,
    }
}

/// Decodes a text as Python 3 writes it: one byte per character, and those beyond 255 as `\u` and four digits or `\U` and
/// eight. A backslash before anything else stands for itself, and so does the character after it.
pub(super) fn unicode(line: &[u8]) -> String {
    let (mut text, mut rest) = (String::new(), line);
    while let [byte, tail @ ..] = rest {
        rest = tail;
        let digits = match (byte, tail.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            (b'\\', Some(&next)) => {
                text.extend(['\\', char::from(next)]);
                rest = &tail[1..];
                continue;
            }
            _ => {
                text.push(char::from(*byte));
                continue;
            }
        };
        match hexadecimal(&tail[1..], digits) {
            Some(code) => {
                text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                rest = &tail[1 + digits..];
            }
            None => text.push('\\'),
        }
    }
    text
}

/// Decodes a text as Python 2 writes it: in quotes, with the escapes of its source code. `None` without quotes.
pub(super) fn quoted(line: &[u8]) -> Option<Vec<u8>> {
    let line = line.trim_ascii();
    let inner = match line {
        [first @ (b'\'' | b'"'), inner @ .., last] if first == last => inner,
        _ => return None,
    };
    let (mut text, mut rest) = (Vec::new(), inner);
    while let [byte, tail @ ..] = rest {
        rest = tail;
        let (plain, used) = match (byte, tail) {
            (b'\\', [b'n', ..]) => (b'\n', 1),
            (b'\\', [b'r', ..]) => (b'\r', 1),
            (b'\\', [b't', ..]) => (b'\t', 1),
            (b'\\', [b'x', digits @ ..]) => match hexadecimal(digits, 2) {
                Some(code) => (code as u8, 3),
                None => (b'\\', 0),
            },
            (b'\\', [escaped @ (b'\\' | b'\'' | b'"'), ..]) => (*escaped, 1),
            _ => (*byte, 0),
        };
        text.push(plain);
        rest = &rest[used..];
    }
    Some(text)
}

fn hexadecimal(text: &[u8], digits: usize) -> Option<u32> {
    let digits = text.get(..digits).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Encodes a text as Python's `raw-unicode-escape` does, after the pickler has escaped what would end the line.
    fn as_python_3(text: &str) -> Vec<u8> {
        let mut line = Vec::new();
        for c in text.chars() {
            match u32::from(c) {
                code @ (0x5c | 0 | 0xa | 0xd | 0x1a | 0x100..0x1_0000) => line.extend(format!("\\u{code:04x}").bytes()),
                code @ 0x1_0000.. => line.extend(format!("\\U{code:08x}").bytes()),
                code => line.push(code as u8),
            }
        }
        line
    }

    fn as_python_2(text: &[u8]) -> Vec<u8> {
        let escaped = text.iter().flat_map(|byte| std::ascii::escape_default(*byte));
        b"'".iter().copied().chain(escaped).chain(*b"'").collect()
    }

    proptest! {
        #[test]
        fn texts_are_what_python_wrote(text: String) {
            prop_assert_eq!(unicode(&as_python_3(&text)), text.clone());
            prop_assert_eq!(quoted(&as_python_2(text.as_bytes())), Some(text.into_bytes()));
        }

        #[test]
        fn numbers_are_what_python_wrote(int: i64, large: u64) {
            prop_assert_eq!(number(int.to_string().as_bytes()), Some(Value::Int(int)));
            let value = i64::try_from(large).map_or(Value::Large(large), Value::Int);
            prop_assert_eq!(number(format!("{large}L").as_bytes()), Some(value));
        }

        #[test]
        fn no_line_is_too_strange(line in prop::collection::vec(prop_oneof![Just(b'\\'), Just(b'u'), any::<u8>()], 0..40)) {
            prop_assert!(unicode(&line).chars().count() <= line.len());
            prop_assert!(quoted(&line).is_none_or(|text| text.len() <= line.len()));
            number(&line);
        }
    }

    #[test]
    fn what_is_no_number_is_none() {
        for text in ["", "L", "-", "--1", "1.5", "0x10", "1_000", "٣", "1 2", "LL"] {
            assert_eq!(number(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(number(b"18446744073709551616L"), Some(Value::Other));
        assert_eq!((index(b"7"), index(b"-1"), index(b"4294967296")), (Some(7), None, None));
    }
}
