//! The blocks that are live while a trace is built: a hash map from address to block.

use super::{AddressState, FilePosition};
use bursar_core::AllocTag;
use std::collections::{HashMap, hash_map};

/// A block that was allocated and not freed yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveBlock {
    pub(crate) bytes: u64,
    pub(crate) position: FilePosition,
    pub(crate) block: u32,
    pub(crate) tag: AllocTag,
}

/// LiveBlock blocks by device and address.
#[derive(Debug, Default)]
pub(crate) struct LiveBlocks(HashMap<(u64, u8), LiveBlock, AddressState>);

impl LiveBlocks {
    pub(crate) fn insert(&mut self, device: u8, pointer: u64, live: LiveBlock) -> Option<LiveBlock> {
        self.0.insert((pointer, device), live)
    }

    pub(crate) fn remove(&mut self, device: u8, pointer: u64) -> Option<LiveBlock> {
        self.0.remove(&(pointer, device))
    }
}

impl IntoIterator for LiveBlocks {
    type Item = (u64, LiveBlock);
    type IntoIter =
        std::iter::Map<hash_map::IntoIter<(u64, u8), LiveBlock>, fn(((u64, u8), LiveBlock)) -> (u64, LiveBlock)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().map(|((pointer, _), live)| (pointer, live))
    }
}
