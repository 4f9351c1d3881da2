//! Sparse memory: chunks in a table, allocated when they are first written; or a file, where processes share the bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The number of bytes of a chunk.
pub(crate) const CHUNK: u64 = 64 << 10;

/// Four bytes that repeat; the byte at address `a` is the one at `a % 4`.
pub(crate) type Word = [u8; 4];

#[derive(Debug)]
enum Chunk {
    /// One word throughout, so that a large fill takes hardly any memory.
    Uniform(Word),
    Bytes(Box<[u8]>),
}

/// A run of bytes inside one chunk.
#[derive(Clone, Copy)]
struct ChunkRange {
    chunk: u64,
    start: usize,
    end: usize,
}

fn chunk_ranges(at: u64, len: u64) -> impl Iterator<Item = ChunkRange> {
    let end = at + len;
    let mut next = at;
    std::iter::from_fn(move || {
        (next < end).then(|| {
            let chunk = next / CHUNK;
            let stop = end.min((chunk + 1) * CHUNK);
            let range = ChunkRange { chunk, start: (next % CHUNK) as usize, end: (stop - chunk * CHUNK) as usize };
            next = stop;
            range
        })
    })
}

/// Writes `word` over `bytes`, the first of which is at an address that is `phase` modulo 4.
fn repeat(bytes: &mut [u8], phase: usize, word: Word) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = word[(phase + at) % 4];
    }
}

/// Memory that reads as `fresh` wherever nothing was written.
#[derive(Debug)]
pub(crate) struct SparseBytes {
    chunks: BTreeMap<u64, Chunk>,
    fresh: Word,
    /// The file that has all the bytes instead. One that cannot be read or written loses them, as memory that is gone.
    file: Option<File>,
}

impl SparseBytes {
    pub(crate) fn new(fresh: u8) -> Self {
        Self { chunks: BTreeMap::new(), fresh: [fresh; 4], file: None }
    }

    /// Returns the memory that a file has.
    pub(crate) fn in_file(file: File) -> Self {
        Self { file: Some(file), ..Self::new(0) }
    }

    /// Returns the bytes of host memory that its contents take.
    pub(crate) fn resident(&self) -> u64 {
        let bytes = self.chunks.values().filter(|chunk| matches!(chunk, Chunk::Bytes(_)));
        bytes.count() as u64 * CHUNK
    }

    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        if let Some(file) = &self.file {
            let _ = file.read_exact_at(into, at);
            return;
        }
        let mut rest = into;
        for range in chunk_ranges(at, rest.len() as u64) {
            let (part, tail) = rest.split_at_mut(range.end - range.start);
            rest = tail;
            match self.chunks.get(&range.chunk) {
                Some(Chunk::Bytes(bytes)) => part.copy_from_slice(&bytes[range.start..range.end]),
                Some(Chunk::Uniform(word)) => repeat(part, range.start % 4, *word),
                None => repeat(part, range.start % 4, self.fresh),
            }
        }
    }

    pub(crate) fn write(&mut self, at: u64, from: &[u8]) {
        if let Some(file) = &self.file {
            let _ = file.write_all_at(from, at);
            return;
        }
        let mut rest = from;
        for range in chunk_ranges(at, from.len() as u64) {
            let (part, tail) = rest.split_at(range.end - range.start);
            rest = tail;
            self.bytes(range.chunk)[range.start..range.end].copy_from_slice(part);
        }
    }

    pub(crate) fn fill(&mut self, at: u64, len: u64, word: Word) {
        if let Some(file) = &self.file {
            for range in chunk_ranges(at, len) {
                let mut bytes = vec![0; range.end - range.start];
                repeat(&mut bytes, range.start % 4, word);
                let _ = file.write_all_at(&bytes, range.chunk * CHUNK + range.start as u64);
            }
            return;
        }
        for range in chunk_ranges(at, len) {
            if range.end - range.start == CHUNK as usize {
                self.chunks.insert(range.chunk, Chunk::Uniform(word));
            } else if !matches!(self.chunks.get(&range.chunk), Some(Chunk::Uniform(same)) if *same == word) {
                repeat(&mut self.bytes(range.chunk)[range.start..range.end], range.start % 4, word);
            }
        }
    }

    /// Returns the word that all of a range repeats, where that is known without reading bytes.
    pub(crate) fn uniform(&self, at: u64, len: u64) -> Option<Word> {
        if self.file.is_some() {
            return None;
        }
        let mut words = chunk_ranges(at, len).map(|range| match self.chunks.get(&range.chunk) {
            Some(Chunk::Bytes(_)) => None,
            Some(Chunk::Uniform(word)) => Some(*word),
            None => Some(self.fresh),
        });
        let first = words.next()??;
        words.all(|word| word == Some(first)).then_some(first)
    }

    /// Discards the contents of a range, which then reads as fresh memory.
    pub(crate) fn discard(&mut self, at: u64, len: u64) {
        if self.chunks.is_empty() || len == 0 {
            return;
        }
        let (first, last) = (at / CHUNK, (at + len - 1) / CHUNK);
        let touched: Vec<u64> = self.chunks.range(first..=last).map(|(chunk, _)| *chunk).collect();
        for chunk in touched {
            let (start, end) = (at.max(chunk * CHUNK), (at + len).min((chunk + 1) * CHUNK));
            if end - start == CHUNK {
                self.chunks.remove(&chunk);
            } else {
                self.fill(start, end - start, self.fresh);
            }
        }
    }

    fn bytes(&mut self, chunk: u64) -> &mut [u8] {
        let slot = self.chunks.entry(chunk).or_insert(Chunk::Uniform(self.fresh));
        if let Chunk::Uniform(word) = *slot {
            let mut bytes = vec![0; CHUNK as usize].into_boxed_slice();
            repeat(&mut bytes, 0, word);
            *slot = Chunk::Bytes(bytes);
        }
        match slot {
            Chunk::Bytes(bytes) => bytes,
            Chunk::Uniform(_) => unreachable!("made into bytes above"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Edit {
        Write(u64, Vec<u8>),
        Fill(u64, u64, Word),
        Discard(u64, u64),
    }

    const SPACE: u64 = 4 * CHUNK;

    fn edits() -> impl Strategy<Value = Edit> {
        let executor = (0..SPACE, 0..2 * CHUNK).prop_map(|(at, len)| (at, len.min(SPACE - at)));
        prop_oneof![
            (0..SPACE - 300, prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(at, bytes)| Edit::Write(at, bytes)),
            (executor.clone(), any::<Word>()).prop_map(|((at, len), word)| Edit::Fill(at, len, word)),
            executor.prop_map(|(at, len)| Edit::Discard(at, len)),
            Just(Edit::Fill(CHUNK, CHUNK, [1, 2, 3, 4])),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
        #[test]
        fn it_holds_what_a_plain_array_would(edits in prop::collection::vec(edits(), 1..12)) {
            let mut sparse = SparseBytes::new(0xa5);
            let mut plain = vec![0xa5u8; SPACE as usize];
            for edit in edits {
                match edit {
                    Edit::Write(at, bytes) => {
                        sparse.write(at, &bytes);
                        plain[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                    }
                    Edit::Fill(at, len, word) => {
                        sparse.fill(at, len, word);
                        repeat(&mut plain[at as usize..][..len as usize], (at % 4) as usize, word);
                    }
                    Edit::Discard(at, len) => {
                        sparse.discard(at, len);
                        plain[at as usize..][..len as usize].fill(0xa5);
                    }
                }
                let mut seen = vec![0; SPACE as usize];
                sparse.read(0, &mut seen);
                prop_assert!(seen == plain);
            }
        }
    }

    #[test]
    fn a_large_fill_costs_next_to_nothing() {
        let mut sparse = SparseBytes::new(0);
        sparse.fill(CHUNK, 1 << 30, [1, 0, 0, 0]);
        assert_eq!(sparse.resident(), 0);
        assert_eq!(sparse.uniform(CHUNK, 1 << 30), Some([1, 0, 0, 0]));
        sparse.write(3 * CHUNK + 5, &[9]);
        assert_eq!(sparse.resident(), CHUNK);
        sparse.discard(0, 2 << 30);
        assert_eq!(sparse.resident(), 0);
    }
}
