//! Python pickles, read as data: nothing in them is ever run, imported or constructed.
//!
//! A pickle is a program for a small stack machine. This is that machine without the instructions that call anything,
//! and without most of the memory: a dictionary keeps only the keys it was told to, a list only the lists and the
//! dictionaries that kept something, and text that is long is forgotten. There is no recursion, every instruction
//! costs at least a byte of the file, and what is kept is counted against [`MAX_KEPT_BYTES`].

mod input;
mod lines;

use crate::Reason;
use crate::live::AddressState;
use input::Input;
use std::collections::HashMap;
use std::io::BufRead;

/// What a pickle may make us keep. A snapshot keeps about 350 bytes an entry, so that of six million is still read.
const MAX_KEPT_BYTES: u64 = 2 << 30;

/// The machine's stack; Python's own pickles stay below a few thousand.
const MAX_STACK: usize = 1 << 20;

/// Text longer than this is skipped: names of keys and kinds are short.
const MAX_TEXT: u64 = 256;

/// A value on the stack. Lists, dictionaries and texts are numbers of things kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Int(i64),
    /// 2⁶³ and above.
    Large(u64),
    Text(u32),
    List(u32),
    Dict(u32),
    /// Anything there is no use for.
    Other,
}

/// What was kept of a pickle.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    texts: Vec<Box<str>>,
    /// The lists and dictionaries in each list.
    lists: Vec<Vec<Value>>,
    /// By the index of the key among those asked for.
    dicts: Vec<Vec<(u8, Value)>>,
}

impl Kept {
    pub(crate) fn text(&self, value: Value) -> Option<&str> {
        let Value::Text(id) = value else { return None };
        self.texts.get(id as usize).map(|text| &**text)
    }

    pub(crate) fn list(&self, value: Value) -> Option<&[Value]> {
        let Value::List(id) = value else { return None };
        self.lists.get(id as usize).map(Vec::as_slice)
    }

    /// What the dictionary has under the key with that index.
    pub(crate) fn get(&self, dict: Value, key: u8) -> Option<Value> {
        let Value::Dict(id) = dict else { return None };
        self.dicts.get(id as usize)?.iter().find(|(other, _)| *other == key).map(|&(_, value)| value)
    }
}

/// Reads a pickle, keeping only `keys` of its dictionaries; its root and what was kept.
pub(crate) fn read(reader: impl BufRead, keys: &[&str]) -> Result<(Value, Kept), Reason> {
    read_within(MAX_KEPT_BYTES, reader, keys)
}

fn read_within(limit: u64, reader: impl BufRead, keys: &[&str]) -> Result<(Value, Kept), Reason> {
    let mut machine = Machine::new(Input::new(reader), keys, limit);
    loop {
        let at = machine.input.offset();
        let opcode = machine.input.byte()?;
        if opcode == b'.' {
            let root = machine.pop(at)?;
            return Ok((root, machine.kept));
        }
        machine.step(opcode, at)?;
    }
}

struct Machine<'k, R> {
    input: Input<R>,
    keys: &'k [&'k str],
    kept: Kept,
    /// How much more may be kept.
    room: u64,
    text_ids: HashMap<Box<str>, u32>,
    /// Which of the keys each text is.
    text_keys: Vec<Option<u8>>,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: Vec<Value>,
    /// What was put ahead of its turn, which Python's own pickles never do.
    sparse_memo: HashMap<u32, Value, AddressState>,
}

impl<'k, R: BufRead> Machine<'k, R> {
    fn new(input: Input<R>, keys: &'k [&'k str], room: u64) -> Self {
        Self {
            input,
            keys,
            kept: Kept::default(),
            room,
            text_ids: HashMap::new(),
            text_keys: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            sparse_memo: HashMap::default(),
        }
    }

    fn step(&mut self, opcode: u8, at: u64) -> Result<(), Reason> {
        match opcode {
            0x80 => self.input.byte().map(drop),
            0x95 => self.input.skip(8),
            b'N' | 0x88 | 0x89 => self.push(Value::Other, at),
            b'G' => self.opaque(8, at),
            b'J' => self.input.array().and_then(|bytes| self.push(Value::Int(i32::from_le_bytes(bytes).into()), at)),
            b'K' => self.input.byte().and_then(|byte| self.push(Value::Int(byte.into()), at)),
            b'M' => self.input.array().and_then(|bytes| self.push(Value::Int(u16::from_le_bytes(bytes).into()), at)),
            0x8a => self.long(1, at),
            0x8b => self.long(4, at),
            b'U' | 0x8c => self.text(1, at),
            b'T' | b'X' => self.text(4, at),
            0x8d => self.text(8, at),
            b'C' => self.input.length(1).and_then(|length| self.opaque(length, at)),
            b'B' => self.input.length(4).and_then(|length| self.opaque(length, at)),
            0x8e | 0x96 => self.input.length(8).and_then(|length| self.opaque(length, at)),
            b'I' | b'L' => self.number_line(opcode, at),
            b'F' => self.input.line(&mut []).and_then(|_| self.push(Value::Other, at)),
            b'V' => self.text_line(|line| Some(lines::unicode(line).into_bytes()), at),
            b'S' => self.text_line(lines::quoted, at),
            b']' => self.new_list(at),
            b'}' => self.new_dict(at),
            b')' | 0x8f => self.push(Value::Other, at),
            b'(' => self.mark(at),
            b'0' => self.pop(at).map(drop),
            b'1' | 0x90 => self.take_mark(at).map(|mark| self.stack.truncate(mark)),
            b'2' => self.top(at).and_then(|value| self.push(value, at)),
            b'a' => self.last(1, at).and_then(|from| self.append(from, at)),
            b'e' => self.take_mark(at).and_then(|from| self.append(from, at)),
            b's' => self.last(2, at).and_then(|from| self.set(from, at)),
            b'u' => self.take_mark(at).and_then(|from| self.set(from, at)),
            b'l' => self.below_mark(Self::new_list, at).and_then(|from| self.append(from, at)),
            b'd' => self.below_mark(Self::new_dict, at).and_then(|from| self.set(from, at)),
            b't' | 0x91 => {
                let mark = self.take_mark(at)?;
                self.stack.truncate(mark);
                self.push(Value::Other, at)
            }
            0x85..=0x87 => {
                for _ in 0x84..opcode {
                    self.pop(at)?;
                }
                self.push(Value::Other, at)
            }
            0x94 => self.memoize(self.memo.len() as u32, at),
            b'q' => self.input.byte().and_then(|index| self.memoize(index.into(), at)),
            b'r' => self.input.u32().and_then(|index| self.memoize(index, at)),
            b'p' => self.index_line(at).and_then(|index| self.memoize(index, at)),
            b'g' => self.index_line(at).and_then(|index| self.recall(index, at)),
            b'h' => self.input.byte().and_then(|index| self.recall(index.into(), at)),
            b'j' => self.input.u32().and_then(|index| self.recall(index, at)),
            _ => Err(refuse(opcode, at)),
        }
    }

    fn keep(&mut self, bytes: usize, at: u64) -> Result<(), Reason> {
        let rest = self.room.checked_sub(bytes as u64);
        self.room = rest.ok_or_else(|| {
            malformed("there is more in it than is read: a snapshot of a few million entries at most", at)
        })?;
        Ok(())
    }

    fn push(&mut self, value: Value, at: u64) -> Result<(), Reason> {
        if self.stack.len() >= MAX_STACK {
            return Err(malformed("its stack is too deep", at));
        }
        self.stack.push(value);
        Ok(())
    }

    /// Where the values since the last mark begin.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self, at: u64) -> Result<Value, Reason> {
        if self.stack.len() <= self.floor() {
            return Err(malformed("it takes a value that is not there", at));
        }
        self.stack.pop().ok_or_else(|| malformed("it takes a value that is not there", at))
    }

    fn top(&self, at: u64) -> Result<Value, Reason> {
        let top = self.stack[self.floor()..].last().copied();
        top.ok_or_else(|| malformed("it takes a value that is not there", at))
    }

    fn mark(&mut self, at: u64) -> Result<(), Reason> {
        if self.marks.len() >= MAX_STACK {
            return Err(malformed("its stack is too deep", at));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Takes the last mark away; where the values above it begin.
    fn take_mark(&mut self, at: u64) -> Result<usize, Reason> {
        self.marks.pop().ok_or_else(|| malformed("it takes a mark that is not there", at))
    }

    /// Where the last `count` values begin.
    fn last(&self, count: usize, at: u64) -> Result<usize, Reason> {
        let from = self.stack.len().checked_sub(count).filter(|&from| from >= self.floor());
        from.ok_or_else(|| malformed("it takes a value that is not there", at))
    }

    /// Takes the last mark away and puts a new container below the values above it; where those begin.
    fn below_mark(
        &mut self,
        container: impl FnOnce(&mut Self, u64) -> Result<(), Reason>,
        at: u64,
    ) -> Result<usize, Reason> {
        let mark = self.take_mark(at)?;
        container(self, at)?;
        self.stack[mark..].rotate_right(1);
        Ok(mark + 1)
    }

    fn opaque(&mut self, length: u64, at: u64) -> Result<(), Reason> {
        self.input.skip(length)?;
        self.push(Value::Other, at)
    }

    /// A little-endian integer in two's complement; one that needs more than 64 bits is no use to anybody.
    fn long(&mut self, width: usize, at: u64) -> Result<(), Reason> {
        let length = self.input.length(width)?;
        if length > 9 {
            return self.opaque(length, at);
        }
        let mut bytes = [0; 16];
        let digits = &mut bytes[..length as usize];
        self.input.fill(digits)?;
        let negative = digits.last().is_some_and(|byte| byte & 0x80 != 0);
        bytes[length as usize..].fill(if negative { 0xff } else { 0 });
        let value = i128::from_le_bytes(bytes);
        let value = i64::try_from(value).map(Value::Int).or_else(|_| u64::try_from(value).map(Value::Large));
        self.push(value.unwrap_or(Value::Other), at)
    }

    fn text(&mut self, width: usize, at: u64) -> Result<(), Reason> {
        let length = self.input.length(width)?;
        if length > MAX_TEXT {
            return self.opaque(length, at);
        }
        let mut buffer = [0; MAX_TEXT as usize];
        let bytes = &mut buffer[..length as usize];
        self.input.fill(bytes)?;
        self.push_text(bytes, at)
    }

    fn push_text(&mut self, bytes: &[u8], at: u64) -> Result<(), Reason> {
        let text = String::from_utf8_lossy(bytes);
        if let Some(&id) = self.text_ids.get(&*text) {
            return self.push(Value::Text(id), at);
        }
        self.keep(128 + 2 * text.len(), at)?;
        let id = self.kept.texts.len() as u32;
        self.kept.texts.push((*text).into());
        self.text_keys.push(self.keys.iter().position(|key| *key == text).map(|key| key as u8));
        self.text_ids.insert((*text).into(), id);
        self.push(Value::Text(id), at)
    }

    /// A text on a line of its own, which `decode` reads.
    fn text_line(&mut self, decode: impl FnOnce(&[u8]) -> Option<Vec<u8>>, at: u64) -> Result<(), Reason> {
        let mut buffer = [0; lines::MAX_LINE];
        let Some(line) = self.input.line(&mut buffer)? else { return self.push(Value::Other, at) };
        let text = decode(line).ok_or_else(|| malformed("a text is in no quotes", at))?;
        if text.len() as u64 > MAX_TEXT { self.push(Value::Other, at) } else { self.push_text(&text, at) }
    }

    /// A number on a line of its own. `00` and `01` are the truth values.
    fn number_line(&mut self, opcode: u8, at: u64) -> Result<(), Reason> {
        let mut buffer = [0; 64];
        let value = match self.input.line(&mut buffer)? {
            Some(b"00" | b"01") if opcode == b'I' => Value::Other,
            Some(line) => lines::number(line).ok_or_else(|| malformed("a number is none", at))?,
            None => Value::Other,
        };
        self.push(value, at)
    }

    /// The place of something that is remembered, on a line of its own.
    fn index_line(&mut self, at: u64) -> Result<u32, Reason> {
        let mut buffer = [0; 64];
        let index = self.input.line(&mut buffer)?.and_then(lines::index);
        index.ok_or_else(|| malformed("it remembers or recalls under what is no number", at))
    }

    fn new_list(&mut self, at: u64) -> Result<(), Reason> {
        self.keep(2 * size_of::<Vec<Value>>(), at)?;
        let id = self.kept.lists.len() as u32;
        self.kept.lists.push(Vec::new());
        self.push(Value::List(id), at)
    }

    fn new_dict(&mut self, at: u64) -> Result<(), Reason> {
        self.keep(2 * size_of::<Vec<(u8, Value)>>(), at)?;
        let id = self.kept.dicts.len() as u32;
        self.kept.dicts.push(Vec::new());
        self.push(Value::Dict(id), at)
    }

    /// Moves the values from `from` on into the list below them.
    fn append(&mut self, from: usize, at: u64) -> Result<(), Reason> {
        let Some(Value::List(list)) = self.below(from) else {
            return Err(malformed("it appends to what is no list", at));
        };
        for index in from..self.stack.len() {
            let useful = match self.stack[index] {
                Value::List(_) => true,
                Value::Dict(id) => !self.kept.dicts[id as usize].is_empty(),
                _ => false,
            };
            if useful {
                self.keep(2 * size_of::<Value>(), at)?;
                self.kept.lists[list as usize].push(self.stack[index]);
            }
        }
        self.stack.truncate(from);
        Ok(())
    }

    /// Moves the keys and values from `from` on into the dictionary below them.
    fn set(&mut self, from: usize, at: u64) -> Result<(), Reason> {
        let Some(Value::Dict(dict)) = self.below(from) else {
            return Err(malformed("it sets keys of what is no dict", at));
        };
        if !(self.stack.len() - from).is_multiple_of(2) {
            return Err(malformed("it sets a key to nothing", at));
        }
        for index in (from..self.stack.len()).step_by(2) {
            let Value::Text(text) = self.stack[index] else { continue };
            let Some(key) = self.text_keys[text as usize] else { continue };
            let (value, pairs) = (self.stack[index + 1], &mut self.kept.dicts[dict as usize]);
            match pairs.iter_mut().find(|(other, _)| *other == key) {
                Some(pair) => pair.1 = value,
                None => {
                    pairs.reserve_exact(self.keys.len() - pairs.len());
                    pairs.push((key, value));
                    self.keep(size_of::<(u8, Value)>(), at)?;
                }
            }
        }
        self.stack.truncate(from);
        Ok(())
    }

    /// The value below `from`, unless a mark is between.
    fn below(&self, from: usize) -> Option<Value> {
        let index = from.checked_sub(1).filter(|&index| index >= self.floor())?;
        self.stack.get(index).copied()
    }

    fn memoize(&mut self, index: u32, at: u64) -> Result<(), Reason> {
        let value = self.top(at)?;
        match self.memo.get_mut(index as usize) {
            Some(place) => *place = value,
            None => {
                self.keep(2 * size_of::<Value>(), at)?;
                if index as usize == self.memo.len() {
                    self.memo.push(value);
                } else {
                    self.sparse_memo.insert(index, value);
                }
            }
        }
        Ok(())
    }

    fn recall(&mut self, index: u32, at: u64) -> Result<(), Reason> {
        let value = self.memo.get(index as usize).or_else(|| self.sparse_memo.get(&index));
        let value = *value.ok_or_else(|| malformed("it recalls what was never remembered", at))?;
        self.push(value, at)
    }
}

fn malformed(what: &'static str, offset: u64) -> Reason {
    Reason::Pickle { offset, what }
}

/// Why an instruction is not followed: it would import, call or construct something, or there is no such.
fn refuse(opcode: u8, offset: u64) -> Reason {
    let opcode = match opcode {
        b'c' => "GLOBAL",
        b'R' => "REDUCE",
        b'b' => "BUILD",
        b'i' => "INST",
        b'o' => "OBJ",
        b'P' => "PERSID",
        b'Q' => "BINPERSID",
        0x81 => "NEWOBJ",
        0x82..=0x84 => "EXT",
        0x92 => "NEWOBJ_EX",
        0x93 => "STACK_GLOBAL",
        0x97 => "NEXT_BUFFER",
        0x98 => "READONLY_BUFFER",
        _ => return malformed("an instruction that no data needs", offset),
    };
    Reason::Code { opcode, offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept is counted, whatever it is: lists, dictionaries, what is in them, texts, and what is remembered.
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
            let full = "there is more in it than is read: a snapshot of a few million entries at most";
            assert!(matches!(error, Reason::Pickle { what, .. } if what == full), "{error} in {:?}", &body[..8]);
        }
    }

    #[test]
    fn only_the_keys_asked_for_are_kept() {
        let pickle = b"\x80\x02}q\x00(X\x01\x00\x00\x00aK\x05X\x01\x00\x00\x00bK\x06X\x01\x00\x00\x00aK\x07u.";
        let (root, kept) = read(&pickle[..], &["a"]).expect("a pickle");
        assert_eq!(kept.get(root, 0), Some(Value::Int(7)), "the later value of a key counts");
        assert_eq!(kept.dicts, [vec![(0, Value::Int(7))]]);
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
