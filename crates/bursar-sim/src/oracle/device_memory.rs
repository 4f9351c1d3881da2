//! The allocations, mapped pages and blocks of one device, and the accesses to them.

use super::accesses::Accesses;
use super::lifetimes::{Lifetime, Lifetimes};
use bursar_core::AllocTag;
use std::collections::BTreeMap;
use std::ops::Range;

/// The names of the calls that make pages usable and take them away.
const MAPPED: &str = "pages_allow";
pub(super) const UNMAPPED: &str = "pages_unmap";

/// A range in which blocks may be noted: an allocation, or reserved addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub(super) end: u64,
    /// True once a block was noted in it. Accesses must then lie in blocks.
    pub(super) has_blocks: bool,
}

/// The oracle's knowledge of the memory of one device.
#[derive(Debug, Default)]
pub(crate) struct DeviceMemory {
    pub(super) accesses: Accesses,
    /// The memory that the driver itself provides: allocations and mapped pages.
    pub(crate) memory: Lifetimes,
    /// The blocks that the layers above have noted.
    pub(crate) blocks: Lifetimes,
    pub(super) spaces: BTreeMap<u64, Space>,
    /// The ranges at which pages are mapped that are mapped elsewhere too, and where that is.
    aliases: Vec<(Range<u64>, u64)>,
    /// Parts of blocks that are divided into others, by their starts: their ends, and the blocks with their starts.
    pub(super) divided: BTreeMap<u64, (u64, Option<(u64, Lifetime)>)>,
    /// The ranges that sleep: first address to the one after the last.
    pub(super) asleep: BTreeMap<u64, u64>,
    /// The contents that are to be there again when they wake: first address to length and checksum.
    pub(crate) saved: BTreeMap<u64, (u64, u64)>,
}

impl DeviceMemory {
    pub(super) fn space_of(&self, at: u64) -> Option<(u64, Space)> {
        let (start, space) = self.spaces.range(..=at).next_back()?;
        (at < space.end).then_some((*start, *space))
    }

    pub(super) fn has_blocks(&self, at: u64) -> bool {
        self.space_of(at).is_some_and(|(_, space)| space.has_blocks)
    }

    /// Records that pages which are mapped in `range` are mapped from `other` on too.
    pub(super) fn add_alias(&mut self, range: Range<u64>, other: u64) {
        let back = other..other + (range.end - range.start);
        self.aliases.push((back, range.start));
        self.aliases.push((range, other));
    }

    /// Forgets where else the pages are mapped that were in `range`.
    pub(super) fn remove_aliases(&mut self, range: &Range<u64>) {
        self.aliases.retain(|(at, other)| !range.contains(&at.start) && !range.contains(other));
    }

    /// Returns where else the memory of a range is mapped.
    pub(super) fn aliases(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let elsewhere = |(at, other): &(Range<u64>, u64)| {
            let (start, end) = (range.start.max(at.start), range.end.min(at.end));
            (start < end).then(|| other + (start - at.start)..other + (end - at.start))
        };
        self.aliases.iter().filter_map(elsewhere).collect()
    }

    pub(super) fn is_asleep(&self, at: u64) -> bool {
        self.asleep.range(..=at).next_back().is_some_and(|(_, &end)| at < end)
    }

    /// Ends the sleep of the ranges that begin in `range`; returns what is to be there, with its checksums.
    pub(super) fn end_sleep(&mut self, range: &Range<u64>) -> Vec<(Range<u64>, u64)> {
        self.asleep.retain(|start, _| !range.contains(start));
        let mut rest = self.saved.split_off(&range.start);
        let mut after = rest.split_off(&range.end);
        self.saved.append(&mut after);
        rest.into_iter().map(|(start, (len, sum))| (start..start + len, sum)).collect()
    }

    pub(super) fn tag_at(&self, at: u64) -> AllocTag {
        // There is no memory at the last of all addresses, so the range may be empty there.
        let byte = at..at.saturating_add(1);
        let tag_in =
            |lifetimes: &Lifetimes| lifetimes.parts(byte.clone()).pop().and_then(|(_, lifetime)| Some(lifetime?.tag));
        tag_in(&self.blocks).or_else(|| tag_in(&self.memory)).unwrap_or(AllocTag::UNTAGGED)
    }

    /// Returns whether a live block begins at an address.
    pub(crate) fn is_block(&self, at: u64) -> bool {
        self.blocks.live_at(at).is_some()
    }

    /// Returns the live allocations of the driver's allocators.
    pub(crate) fn allocations(&self) -> impl Iterator<Item = (u64, &Lifetime)> {
        self.memory.live().filter(|(_, lifetime)| lifetime.began.op.what != MAPPED)
    }

    /// Returns the live blocks that lie in mapped pages rather than in allocations.
    pub(crate) fn blocks_in_pages(&self) -> impl Iterator<Item = (u64, &Lifetime)> {
        self.blocks.live().filter(|(start, _)| {
            let part = self.memory.parts(*start..*start + 1).pop();
            part.and_then(|(_, lifetime)| lifetime).is_none_or(|lifetime| lifetime.began.op.what == MAPPED)
        })
    }
}
