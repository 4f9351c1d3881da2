//! Python pickles, read as data: nothing in them is ever run, imported or constructed.
//!
//! A pickle is a program for a small stack machine. `unpickler.rs` is that machine without the instructions that call
//! anything, and without most of the memory: a dictionary keeps only the keys that the caller wants, a list only lists and
//! the dictionaries that keep something, and long text is dropped. There is no recursion, every instruction costs at least
//! a byte of the file, and the bytes that are kept are counted against [`MAX_DATA_BYTES`].

mod input;
mod text_arguments;
mod unpickler;

use crate::Reason;
use std::io::BufRead;
use unpickler::Unpickler;

/// The most bytes that are kept of a pickle. A snapshot keeps about 350 bytes per entry, so one of six million entries is
/// still read.
const MAX_DATA_BYTES: u64 = 2 << 30;

/// The length of the longest text that is kept: names of keys and kinds are short.
const MAX_TEXT: u64 = 256;

/// A value on the stack. Lists, dictionaries and texts are indices into [`PickleData`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Int(i64),
    /// 2⁶³ and above.
    Large(u64),
    Text(u32),
    List(u32),
    Dict(u32),
    /// A value of any other type, which is not kept.
    Other,
}

/// The part of a pickle that is kept.
#[derive(Debug, Default)]
pub(crate) struct PickleData {
    texts: Vec<Box<str>>,
    /// The lists and dictionaries in each list.
    lists: Vec<Vec<Value>>,
    /// The pairs of each dictionary, by the index of the key among those that the caller wants.
    dicts: Vec<Vec<(u8, Value)>>,
}

impl PickleData {
    pub(crate) fn text(&self, value: Value) -> Option<&str> {
        let Value::Text(id) = value else { return None };
        self.texts.get(id as usize).map(|text| &**text)
    }

    pub(crate) fn list(&self, value: Value) -> Option<&[Value]> {
        let Value::List(id) = value else { return None };
        self.lists.get(id as usize).map(Vec::as_slice)
    }

    /// Returns the value that a dictionary has for the key with that index.
    pub(crate) fn get(&self, dict: Value, key: u8) -> Option<Value> {
        let Value::Dict(id) = dict else { return None };
        self.dicts.get(id as usize)?.iter().find(|(other, _)| *other == key).map(|&(_, value)| value)
    }
}

/// Reads a pickle, keeping only `keys` of its dictionaries. Returns its root and the data that was kept.
pub(crate) fn read(reader: impl BufRead, keys: &[&str]) -> Result<(Value, PickleData), Reason> {
    read_within(MAX_DATA_BYTES, reader, keys)
}

fn read_within(limit: u64, reader: impl BufRead, keys: &[&str]) -> Result<(Value, PickleData), Reason> {
    Unpickler::new(reader, keys, limit).run()
}

fn malformed(what: &'static str, offset: u64) -> Reason {
    Reason::Pickle { offset, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that is kept is counted: lists, dictionaries, their contents, texts and memo entries.
    #[test]
    fn what_is_kept_is_bounded_though_the_stack_stays_small() {
        let texts = |i: u32| [b"\x8c\x04".as_slice(), &i.to_le_bytes().map(|byte| byte % 64), b"0"].concat();
        let pieces: [&dyn Fn(u32) -> Vec<u8>; 9] = [
            &|_| b"]0".to_vec(),
            &|_| b"}0".to_vec(),
            &|_| b"]\x940".to_vec(),
            &|i| [b"Nr".as_slice(), &(i + 7).to_le_bytes(), b"0"].concat(),
            &|_| b"h\x00]a0".to_vec(),
            &texts,
            &|i| format!("V{i}\n0").into_bytes(),
            &|i| format!("S'{i}'\n0").into_bytes(),
            &|i| format!("Np{}\n0", 2 * i + 7).into_bytes(),
        ];
        for piece in pieces {
            let body: Vec<u8> = (0..100_000).flat_map(piece).collect();
            let pickle = [b"\x80\x04]\x940".as_slice(), &body].concat();
            let error = read_within(1 << 16, &pickle[..], &["key"]).expect_err("too much");
            let full = "it is too large: snapshots of a few million entries can be read";
            assert!(matches!(error, Reason::Pickle { what, .. } if what == full), "{error} in {:?}", &body[..8]);
        }
    }

    #[test]
    fn only_the_keys_asked_for_are_kept() {
        let pickle = b"\x80\x02}q\x00(X\x01\x00\x00\x00aK\x05X\x01\x00\x00\x00bK\x06X\x01\x00\x00\x00aK\x07u.";
        let (root, data) = read(&pickle[..], &["a"]).expect("a pickle");
        assert_eq!(data.get(root, 0), Some(Value::Int(7)), "the later value of a key counts");
        assert_eq!(data.dicts, [vec![(0, Value::Int(7))]]);
    }

    #[test]
    fn whole_numbers_of_every_width() {
        for (body, value) in [
            (b"K\xff".as_slice(), Value::Int(255)),
            (b"M\xff\xff", Value::Int(65_535)),
            (b"J\xff\xff\xff\xff", Value::Int(-1)),
            (b"\x8a\x00", Value::Int(0)),
            (b"\x8a\x01\x80", Value::Int(-128)),
            (b"\x8a\x06\x00\x00\x00\x00\x5a\x7f", Value::Int(0x7f5a_0000_0000)),
            (b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00", Value::Large(u64::MAX)),
            (b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x01", Value::Other),
            (b"\x8b\x02\x00\x00\x00\x00\x01", Value::Int(256)),
            (b"I-7\n", Value::Int(-7)),
            (b"I01\n", Value::Other),
            (b"L18446744073709551615L\n", Value::Large(u64::MAX)),
            (b"F1.5\n", Value::Other),
        ] {
            let pickle = [b"\x80\x04", body, b"."].concat();
            assert_eq!(read(&pickle[..], &[]).expect("a pickle").0, value, "{body:?}");
        }
    }
}
