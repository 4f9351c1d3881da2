//! The stack machine that runs a pickle, without the instructions that would import, call or construct anything.

use super::input::PickleInput;
use super::{MAX_TEXT, PickleData, Value, malformed, text_arguments};
use crate::Reason;
use crate::trace::AddressState;
use std::collections::HashMap;
use std::io::BufRead;

/// The most values on the stack; Python's own pickles stay below a few thousand.
const MAX_STACK: usize = 1 << 20;

/// The stack machine that runs a pickle.
pub(super) struct Unpickler<'k, R> {
    input: PickleInput<R>,
    keys: &'k [&'k str],
    data: PickleData,
    /// The bytes that may still be kept.
    room: u64,
    text_ids: HashMap<Box<str>, u32>,
    /// The index of the key that each text is, if it is one.
    text_keys: Vec<Option<u8>>,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: Vec<Value>,
    /// Memo entries stored under an index that is not the next one, which Python's own pickles never do.
    sparse_memo: HashMap<u32, Value, AddressState>,
}

impl<'k, R: BufRead> Unpickler<'k, R> {
    /// Creates a machine that keeps at most `room` bytes, and only `keys` of dictionaries.
    pub(super) fn new(reader: R, keys: &'k [&'k str], room: u64) -> Self {
        Self {
            input: PickleInput::new(reader),
            keys,
            data: PickleData::default(),
            room,
            text_ids: HashMap::new(),
            text_keys: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            sparse_memo: HashMap::default(),
        }
    }

    /// Runs the pickle to its end. Returns its root and the data that was kept.
    pub(super) fn run(mut self) -> Result<(Value, PickleData), Reason> {
        loop {
            let at = self.input.offset();
            let opcode = self.input.byte()?;
            if opcode == b'.' {
                let root = self.pop(at)?;
                return Ok((root, self.data));
            }
            self.step(opcode, at)?;
        }
    }

    /// Runs the instruction `opcode`, which is at offset `at`.
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
            b'V' => self.text_line(|line| Some(text_arguments::unicode(line).into_bytes()), at),
            b'S' => self.text_line(text_arguments::quoted, at),
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

    /// Counts `bytes` that are about to be kept.
    fn reserve(&mut self, bytes: usize, at: u64) -> Result<(), Reason> {
        let rest = self.room.checked_sub(bytes as u64);
        self.room =
            rest.ok_or_else(|| malformed("it is too large: snapshots of a few million entries can be read", at))?;
        Ok(())
    }

    fn push(&mut self, value: Value, at: u64) -> Result<(), Reason> {
        if self.stack.len() >= MAX_STACK {
            return Err(malformed("the stack is too deep", at));
        }
        self.stack.push(value);
        Ok(())
    }

    /// Returns the index of the first value above the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self, at: u64) -> Result<Value, Reason> {
        if self.stack.len() <= self.floor() {
            return Err(malformed("the stack has too few values", at));
        }
        self.stack.pop().ok_or_else(|| malformed("the stack has too few values", at))
    }

    fn top(&self, at: u64) -> Result<Value, Reason> {
        let top = self.stack[self.floor()..].last().copied();
        top.ok_or_else(|| malformed("the stack has too few values", at))
    }

    fn mark(&mut self, at: u64) -> Result<(), Reason> {
        if self.marks.len() >= MAX_STACK {
            return Err(malformed("the stack is too deep", at));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Removes the last mark, and returns the index of the first value above it.
    fn take_mark(&mut self, at: u64) -> Result<usize, Reason> {
        self.marks.pop().ok_or_else(|| malformed("the stack has no mark", at))
    }

    /// Returns the index of the first of the last `count` values.
    fn last(&self, count: usize, at: u64) -> Result<usize, Reason> {
        let from = self.stack.len().checked_sub(count).filter(|&from| from >= self.floor());
        from.ok_or_else(|| malformed("the stack has too few values", at))
    }

    /// Removes the last mark and puts a new container below the values above it. Returns the index of the first of those.
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

    /// Skips `length` bytes of a value that is not kept.
    fn opaque(&mut self, length: u64, at: u64) -> Result<(), Reason> {
        self.input.skip(length)?;
        self.push(Value::Other, at)
    }

    /// Reads a little-endian integer in two's complement; one of more than 64 bits is not kept.
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
        self.reserve(128 + 2 * text.len(), at)?;
        let id = self.data.texts.len() as u32;
        self.data.texts.push((*text).into());
        self.text_keys.push(self.keys.iter().position(|key| *key == text).map(|key| key as u8));
        self.text_ids.insert((*text).into(), id);
        self.push(Value::Text(id), at)
    }

    /// Reads a text on a line of its own, decoded by `decode`.
    fn text_line(&mut self, decode: impl FnOnce(&[u8]) -> Option<Vec<u8>>, at: u64) -> Result<(), Reason> {
        let mut buffer = [0; text_arguments::MAX_LINE];
        let Some(line) = self.input.line(&mut buffer)? else { return self.push(Value::Other, at) };
        let text = decode(line).ok_or_else(|| malformed("a string has no quotes", at))?;
        if text.len() as u64 > MAX_TEXT { self.push(Value::Other, at) } else { self.push_text(&text, at) }
    }

    /// Reads a number on a line of its own. `00` and `01` are the truth values.
    fn number_line(&mut self, opcode: u8, at: u64) -> Result<(), Reason> {
        let mut buffer = [0; 64];
        let value = match self.input.line(&mut buffer)? {
            Some(b"00" | b"01") if opcode == b'I' => Value::Other,
            Some(line) => text_arguments::number(line).ok_or_else(|| malformed("a number cannot be parsed", at))?,
            None => Value::Other,
        };
        self.push(value, at)
    }

    /// Reads the index of a memo entry, on a line of its own.
    fn index_line(&mut self, at: u64) -> Result<u32, Reason> {
        let mut buffer = [0; 64];
        let index = self.input.line(&mut buffer)?.and_then(text_arguments::index);
        index.ok_or_else(|| malformed("a memo index is not a number", at))
    }

    fn new_list(&mut self, at: u64) -> Result<(), Reason> {
        self.reserve(2 * size_of::<Vec<Value>>(), at)?;
        let id = self.data.lists.len() as u32;
        self.data.lists.push(Vec::new());
        self.push(Value::List(id), at)
    }

    fn new_dict(&mut self, at: u64) -> Result<(), Reason> {
        self.reserve(2 * size_of::<Vec<(u8, Value)>>(), at)?;
        let id = self.data.dicts.len() as u32;
        self.data.dicts.push(Vec::new());
        self.push(Value::Dict(id), at)
    }

    /// Moves the values from `from` on into the list below them.
    fn append(&mut self, from: usize, at: u64) -> Result<(), Reason> {
        let Some(Value::List(list)) = self.below(from) else {
            return Err(malformed("it appends to a value that is not a list", at));
        };
        for index in from..self.stack.len() {
            let useful = match self.stack[index] {
                Value::List(_) => true,
                Value::Dict(id) => !self.data.dicts[id as usize].is_empty(),
                _ => false,
            };
            if useful {
                self.reserve(2 * size_of::<Value>(), at)?;
                self.data.lists[list as usize].push(self.stack[index]);
            }
        }
        self.stack.truncate(from);
        Ok(())
    }

    /// Moves the keys and values from `from` on into the dictionary below them.
    fn set(&mut self, from: usize, at: u64) -> Result<(), Reason> {
        let Some(Value::Dict(dict)) = self.below(from) else {
            return Err(malformed("it sets keys of a value that is not a dict", at));
        };
        if !(self.stack.len() - from).is_multiple_of(2) {
            return Err(malformed("a key has no value", at));
        }
        for index in (from..self.stack.len()).step_by(2) {
            let Value::Text(text) = self.stack[index] else { continue };
            let Some(key) = self.text_keys[text as usize] else { continue };
            let (value, pairs) = (self.stack[index + 1], &mut self.data.dicts[dict as usize]);
            match pairs.iter_mut().find(|(other, _)| *other == key) {
                Some(pair) => pair.1 = value,
                None => {
                    pairs.reserve_exact(self.keys.len() - pairs.len());
                    pairs.push((key, value));
                    self.reserve(size_of::<(u8, Value)>(), at)?;
                }
            }
        }
        self.stack.truncate(from);
        Ok(())
    }

    /// Returns the value below `from`, unless a mark is between.
    fn below(&self, from: usize) -> Option<Value> {
        let index = from.checked_sub(1).filter(|&index| index >= self.floor())?;
        self.stack.get(index).copied()
    }

    fn memoize(&mut self, index: u32, at: u64) -> Result<(), Reason> {
        let value = self.top(at)?;
        match self.memo.get_mut(index as usize) {
            Some(entry) => *entry = value,
            None => {
                self.reserve(2 * size_of::<Value>(), at)?;
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
        let value = *value.ok_or_else(|| malformed("it recalls a memo entry that was never stored", at))?;
        self.push(value, at)
    }
}

/// Returns the reason why an instruction is not run: it would import, call or construct something, or it does not exist.
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
        _ => return malformed("an unknown instruction", offset),
    };
    Reason::Code { opcode, offset }
}
