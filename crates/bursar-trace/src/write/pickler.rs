//! Writes pickles of protocol 4, with the instructions that every viewer of snapshots reads.

use std::collections::HashMap;
use std::io::{self, Write};

/// The number of items that Python appends with one instruction.
const BATCH: usize = 1000;

/// Writes values one after another. Repeated texts are stored in the pickle's memo and recalled from there.
#[derive(Debug)]
pub(crate) struct Pickler<W> {
    to: W,
    texts: HashMap<String, u32>,
    memo_len: u32,
}

impl<W: Write> Pickler<W> {
    pub(crate) fn begin(mut to: W) -> io::Result<Self> {
        to.write_all(&[0x80, 4])?;
        Ok(Self { to, texts: HashMap::new(), memo_len: 0 })
    }

    pub(crate) fn end(mut self) -> io::Result<()> {
        self.to.write_all(b".")
    }

    /// Stores the value written last in the memo, and returns its index there.
    pub(crate) fn memoize(&mut self) -> io::Result<u32> {
        self.to.write_all(&[0x94])?;
        self.memo_len += 1;
        Ok(self.memo_len - 1)
    }

    /// Writes the memo entry with that index.
    pub(crate) fn recall(&mut self, number: u32) -> io::Result<()> {
        match u8::try_from(number) {
            Ok(number) => self.to.write_all(&[b'h', number]),
            Err(_) => {
                self.to.write_all(b"j")?;
                self.to.write_all(&number.to_le_bytes())
            }
        }
    }

    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(&number) = self.texts.get(text) {
            return self.recall(number);
        }
        match u8::try_from(text.len()) {
            Ok(length) => self.to.write_all(&[0x8c, length])?,
            Err(_) => {
                let length = u32::try_from(text.len()).map_err(io::Error::other)?;
                self.to.write_all(b"X")?;
                self.to.write_all(&length.to_le_bytes())?;
            }
        }
        self.to.write_all(text.as_bytes())?;
        let number = self.memoize()?;
        self.texts.insert(text.to_owned(), number);
        Ok(())
    }

    pub(crate) fn int(&mut self, value: u64) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(value) {
            return self.to.write_all(&[b'K', byte]);
        }
        if let Ok(value) = i32::try_from(value) {
            self.to.write_all(b"J")?;
            return self.to.write_all(&value.to_le_bytes());
        }
        // The last byte holds the sign, so one more may be needed.
        let bytes = u128::from(value).to_le_bytes();
        let length = (value.ilog2() / 8 + 1 + u32::from(value.ilog2() % 8 == 7)) as u8;
        self.to.write_all(&[0x8a, length])?;
        self.to.write_all(&bytes[..length.into()])
    }

    /// Writes a handle, which Python has as a signed number.
    pub(crate) fn signed(&mut self, value: u64) -> io::Result<()> {
        if i64::try_from(value).is_ok() {
            return self.int(value);
        }
        self.to.write_all(&[0x8a, 8])?;
        self.to.write_all(&value.to_le_bytes())
    }

    pub(crate) fn float(&mut self, value: f64) -> io::Result<()> {
        self.to.write_all(b"G")?;
        self.to.write_all(&value.to_be_bytes())
    }

    pub(crate) fn bool(&mut self, value: bool) -> io::Result<()> {
        self.to.write_all(&[if value { 0x88 } else { 0x89 }])
    }

    /// Writes a pair of integers.
    pub(crate) fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        self.int(first)?;
        self.int(second)?;
        self.to.write_all(&[0x86])
    }

    /// Writes a list: `item` writes one value for each of `items`.
    pub(crate) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut item: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.to.write_all(b"]")?;
        let mut count = 0;
        for value in items {
            if count % BATCH == 0 {
                self.to.write_all(if count > 0 { b"e(" } else { b"(" })?;
            }
            count += 1;
            item(self, value)?;
        }
        self.to.write_all(if count > 0 { b"e" } else { b"" })
    }

    /// Writes a dictionary: `pairs` writes keys and values in turn, at least one pair.
    pub(crate) fn dict(&mut self, pairs: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.to.write_all(b"}(")?;
        pairs(self)?;
        self.to.write_all(b"u")
    }

    pub(crate) fn text_pair(&mut self, key: &str, value: &str) -> io::Result<()> {
        self.text(key)?;
        self.text(value)
    }

    pub(crate) fn int_pair(&mut self, key: &str, value: u64) -> io::Result<()> {
        self.text(key)?;
        self.int(value)
    }

    pub(crate) fn bool_pair(&mut self, key: &str, value: bool) -> io::Result<()> {
        self.text(key)?;
        self.bool(value)
    }
}
