//! Packs numbers into a page: varints, deflated, as base64.

use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::io::{self, Write};

/// Columns of numbers, packed.
#[derive(Debug, Default)]
pub(super) struct Packer(Vec<u8>);

impl Packer {
    /// Adds a number as a varint: seven bits per byte, the lowest first; the highest bit means that more follow.
    pub(super) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Adds a column of numbers.
    pub(super) fn column(&mut self, numbers: impl Iterator<Item = u64>) {
        numbers.for_each(|number| self.number(number));
    }

    /// Adds a column as the differences of neighbours, for numbers that change little from one to the next.
    pub(super) fn differences(&mut self, numbers: impl Iterator<Item = u64>) {
        let mut last = 0u64;
        for number in numbers {
            let difference = number.wrapping_sub(last) as i64;
            self.number((difference << 1 ^ difference >> 63) as u64);
            last = number;
        }
    }

    /// Returns the packed columns as text.
    pub(super) fn finish(self) -> io::Result<String> {
        let mut deflated = DeflateEncoder::new(Vec::new(), Compression::best());
        deflated.write_all(&self.0)?;
        Ok(base64(&deflated.finish()?))
    }
}

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * place) & 0x3f) as usize];
            text.push(if place <= three.len() { letter.into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_the_letters_and_the_padding_that_others_expect() {
        let cases =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("~~~\u{7f}", "fn5+fw==")];
        for (plain, coded) in cases {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(base64(&[0xff, 0xef, 0xbf]), "/++/");
    }

    #[test]
    fn numbers_take_as_many_bytes_as_they_need() {
        let mut packer = Packer::default();
        packer.column([0, 127, 128, u64::MAX].into_iter());
        assert_eq!(packer.0, [&[0, 127, 128, 1][..], &[255; 9], &[1]].concat());
        let mut packer = Packer::default();
        packer.differences([5, 4, 4, 6].into_iter());
        assert_eq!(packer.0, [10, 1, 0, 4]);
    }
}
