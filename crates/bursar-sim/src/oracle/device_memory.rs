//! The allocations, mapped pages and blocks of one device, and the accesses to them.

use super::accesses::Accesses;
use super::lifetimes::{Lifetime, Lifetimes};
use bursar_core::AllocTag;
use std::collections::BTreeMap;

/// The call that makes pages usable, and the one that takes them away.
const MAPPED: &str = "pages_allow";
pub(super) const UNMAPPED: &str = "pages_unmap";

/// A range in which blocks may be noted: an allocation, or a reservation of addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub(super) end: u64,
    /// Whether a block was ever noted in it: then accesses must lie in blocks.
    pub(super) has_blocks: bool,
}

/// What is known of the memory of one device.
#[derive(Debug, Default)]
pub(crate) struct DeviceMemory {
    pub(super) accesses: Accesses,
    /// What the driver itself gave out: allocations and mapped pages.
    pub(crate) memory: Lifetimes,
    /// What the layers above said are blocks.
    pub(crate) blocks: Lifetimes,
    pub(super) spaces: BTreeMap<u64, Space>,
}

impl DeviceMemory {
    pub(super) fn space_of(&self, at: u64) -> Option<(u64, Space)> {
        let (start, space) = self.spaces.range(..=at).next_back()?;
        (at < space.end).then_some((*start, *space))
    }

    pub(super) fn has_blocks(&self, at: u64) -> bool {
        self.space_of(at).is_some_and(|(_, space)| space.has_blocks)
    }

    pub(super) fn tag_at(&self, at: u64) -> AllocTag {
        // Nothing lies at the last of all addresses, whose end cannot be named.
        let byte = at..at.saturating_add(1);
        let tag_in =
            |lifetimes: &Lifetimes| lifetimes.parts(byte.clone()).pop().and_then(|(_, lifetime)| Some(lifetime?.tag));
        tag_in(&self.blocks).or_else(|| tag_in(&self.memory)).unwrap_or(AllocTag::UNTAGGED)
    }

    /// What the driver's allocators gave out and have not got back.
    pub(crate) fn allocations(&self) -> impl Iterator<Item = (u64, &Lifetime)> {
        self.memory.live().filter(|(_, lifetime)| lifetime.began.op.what != MAPPED)
    }

    /// The live blocks that lie in mapped pages rather than in allocations.
    pub(crate) fn blocks_in_pages(&self) -> impl Iterator<Item = (u64, &Lifetime)> {
        self.blocks.live().filter(|(start, _)| {
            let part = self.memory.parts(*start..*start + 1).pop();
            part.and_then(|(_, lifetime)| lifetime).is_none_or(|lifetime| lifetime.began.op.what == MAPPED)
        })
    }
}
