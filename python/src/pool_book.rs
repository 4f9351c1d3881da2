//! The blocks of one device that are outside, found by their addresses, and the counts that PyTorch keeps of them.
//!
//! Libraries give back an address, so blocks wait here for it. One short lock guards the blocks and the counts together:
//! the counts are then plain numbers, exact in every moment, peaks included.

use bursar::Stream;
use bursar::memory::{AllocTag, DeviceBlock, DevicePtr};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// The longest request that PyTorch counts as small.
const SMALL_BYTES: u64 = 1 << 20;

/// A block that is outside.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) block: DeviceBlock,
    /// The bytes that were asked for, which a block that is used again has otherwise.
    pub(crate) requested: u64,
    /// The raw handle of the stream that it was asked for on.
    pub(crate) raw: u64,
    /// The number of the arena that it goes back to; zero where it goes back to the pool.
    pub(crate) arena: u32,
    /// True if it was used on other streams, which are in the book.
    pub(crate) is_shared: bool,
}

/// A number that rises and falls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) current: u64,
    pub(crate) peak: u64,
    /// All that was added since the sums began.
    pub(crate) added: u64,
    /// All that was taken away since then.
    pub(crate) removed: u64,
}

impl Count {
    #[inline]
    fn add(&mut self, amount: u64) {
        self.current += amount;
        self.added += amount;
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    fn subtract(&mut self, amount: u64) {
        self.current -= amount;
        self.removed += amount;
    }
}

/// The counts of one class of blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) blocks: Count,
    pub(crate) granted: Count,
    pub(crate) requested: Count,
}

impl Counts {
    #[inline]
    fn add(&mut self, granted: u64, requested: u64) {
        self.blocks.add(1);
        self.granted.add(granted);
        self.requested.add(requested);
    }

    #[inline]
    fn subtract(&mut self, granted: u64, requested: u64) {
        self.blocks.subtract(1);
        self.granted.subtract(granted);
        self.requested.subtract(requested);
    }

    fn counts(&mut self) -> [&mut Count; 3] {
        [&mut self.blocks, &mut self.granted, &mut self.requested]
    }
}

/// The blocks that are outside, and their counts.
#[derive(Debug, Default)]
pub(crate) struct Book {
    held: HashMap<u64, Held, BuildHasherDefault<AddressHasher>>,
    /// The streams beside its own that a block was used on.
    uses: HashMap<u64, Vec<Stream>, BuildHasherDefault<AddressHasher>>,
    /// The counts of all blocks, of small ones and of large ones.
    pub(crate) counts: [Counts; 3],
    pub(crate) refusals: u64,
}

impl Book {
    /// Enters a block that is handed out.
    #[inline]
    pub(crate) fn enter(&mut self, held: Held) {
        let (granted, requested) = (held.block.granted().get(), held.requested);
        for counts in self.counts_of(requested) {
            counts.add(granted, requested);
        }
        self.held.insert(held.block.ptr().0, held);
    }

    /// Takes out the block at an address, if there is one.
    #[inline]
    pub(crate) fn take(&mut self, ptr: u64) -> Option<Held> {
        let held = self.held.remove(&ptr)?;
        for counts in self.counts_of(held.requested) {
            counts.subtract(held.block.granted().get(), held.requested);
        }
        Some(held)
    }

    #[inline]
    fn counts_of(&mut self, requested: u64) -> [&mut Counts; 2] {
        let [all, small, large] = &mut self.counts;
        [all, if requested <= SMALL_BYTES { small } else { large }]
    }

    /// Returns whether a block begins at an address.
    pub(crate) fn has(&self, ptr: u64) -> bool {
        self.held.contains_key(&ptr)
    }

    /// Remembers that the block at an address is used on a stream; returns whether that was new.
    pub(crate) fn share(&mut self, ptr: u64, stream: Stream) -> bool {
        let Some(held) = self.held.get_mut(&ptr) else { return false };
        if held.block.stream() == stream && held.arena == 0 {
            return false;
        }
        held.is_shared = true;
        let uses = self.uses.entry(ptr).or_default();
        let is_new = !uses.contains(&stream);
        if is_new {
            uses.push(stream);
        }
        is_new
    }

    /// Returns the streams beside its own that a block, which was taken out, was used on.
    pub(crate) fn take_uses(&mut self, ptr: u64) -> Vec<Stream> {
        self.uses.remove(&ptr).unwrap_or_default()
    }

    /// Returns the block that an address lies in, for those who know only a part of it: where it begins and its bytes.
    pub(crate) fn around(&self, ptr: u64) -> Option<(u64, u64)> {
        let held = self.held.values().find(|held| {
            let begin = held.block.ptr().0;
            (begin..begin + held.block.granted().get()).contains(&ptr)
        })?;
        Some((held.block.ptr().0, held.block.granted().get()))
    }

    /// Returns the blocks, by their addresses.
    pub(crate) fn sorted(&self) -> Vec<&Held> {
        let mut held: Vec<_> = self.held.values().collect();
        held.sort_by_key(|held| held.block.ptr());
        held
    }

    /// Returns the ranges of the blocks of a tag.
    pub(crate) fn ranges_of(&self, tag: AllocTag) -> Vec<Range<DevicePtr>> {
        let own = self.held.values().map(|held| &held.block).filter(|block| block.tag() == tag);
        own.map(|block| block.ptr()..block.ptr().offset(block.granted().get())).collect()
    }

    /// Has every peak begin again at what is there now.
    pub(crate) fn reset_peaks(&mut self) {
        self.counts.iter_mut().flat_map(Counts::counts).for_each(|count| count.peak = count.current);
    }

    /// Has every sum begin again at zero.
    pub(crate) fn reset_totals(&mut self) {
        for count in self.counts.iter_mut().flat_map(Counts::counts) {
            (count.added, count.removed) = (0, 0);
        }
        self.refusals = 0;
    }
}

/// A hash of addresses, which are multiples of 256 and differ in few bits.
#[derive(Debug, Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    #[inline]
    fn write_u64(&mut self, address: u64) {
        // A golden multiplication spreads upwards, and the table looks at both ends.
        let product = (address >> 8).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ (product >> 32);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64((self.0 ^ u64::from(byte)) << 8));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
