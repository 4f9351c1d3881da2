//! The address space at the peak, in the form that the page draws.

use super::memory_profile::PeakSnapshot;
use super::pack::Packer;
use super::peak::PlacedBlock;
use bursar_core::AllocTag;
use serde::Serialize;
use std::collections::HashMap;
use std::hash::Hash;
use std::io;

/// The most blocks that are drawn; of more, the largest are.
const MAX_BLOCKS: usize = 1 << 16;

/// The blocks and the mapped ranges at the peak.
#[derive(Debug, Serialize)]
pub(super) struct AddressMap {
    operation: u64,
    live: u64,
    reserved: u64,
    /// The number of blocks in `packed`.
    blocks: usize,
    /// The number of further blocks, and their bytes.
    left_out: (usize, u64),
    /// The number of ranges with memory behind them in `packed`.
    ranges: usize,
    /// True if those ranges are all the memory that the stack held.
    is_known: bool,
    tags: Vec<&'static str>,
    streams: Vec<String>,
    packed: String,
}

impl AddressMap {
    pub(super) fn new(peak: &PeakSnapshot, streams: &[u64]) -> io::Result<Self> {
        let mut blocks = peak.blocks.clone();
        let left_out = leave_out(&mut blocks);
        let tags = by_bytes(&blocks, |block| block.tag, AllocTag::name);
        let used_streams = by_bytes(&blocks, |block| block.stream, |stream| stream);
        let backed: u64 = peak.backed.iter().map(|(from, to)| to - from).sum();
        let mut packer = Packer::default();
        pack_blocks(&mut packer, &blocks, &tags, &used_streams);
        packer.differences(peak.backed.keys().copied());
        packer.column(peak.backed.iter().map(|(from, to)| to - from));
        Ok(Self {
            operation: peak.operation,
            live: peak.live,
            reserved: peak.reserved,
            blocks: blocks.len(),
            left_out,
            ranges: peak.backed.len(),
            is_known: backed > 0 && backed == peak.reserved,
            tags: tags.iter().map(|tag| tag.name()).collect(),
            streams: used_streams.iter().map(|&stream| stream_name(streams, stream)).collect(),
            packed: packer.finish()?,
        })
    }
}

/// Returns the recording's identifier of a stream.
pub(super) fn stream_name(streams: &[u64], stream: u16) -> String {
    streams.get(usize::from(stream)).map_or_else(|| format!("#{stream}"), u64::to_string)
}

/// Packs the blocks column by column, as the page's `decode.js` reads them.
fn pack_blocks(packer: &mut Packer, blocks: &[PlacedBlock], tags: &[AllocTag], streams: &[u16]) {
    let tag_indices = indices(tags);
    let stream_indices = indices(streams);
    packer.differences(blocks.iter().map(|block| block.address));
    packer.column(blocks.iter().map(|block| block.granted));
    packer.column(blocks.iter().map(|block| block.requested));
    packer.column(blocks.iter().map(|block| tag_indices[&block.tag]));
    packer.column(blocks.iter().map(|block| stream_indices[&block.stream]));
    packer.column(blocks.iter().map(|block| block.allocated_at));
}

fn indices<K: Copy + Eq + Hash>(keys: &[K]) -> HashMap<K, u64> {
    keys.iter().zip(0..).map(|(&key, index)| (key, index)).collect()
}

/// Removes the smallest blocks if there are too many, and returns their number and their bytes.
fn leave_out(blocks: &mut Vec<PlacedBlock>) -> (usize, u64) {
    if blocks.len() <= MAX_BLOCKS {
        return (0, 0);
    }
    blocks.sort_unstable_by_key(|block| (std::cmp::Reverse(block.granted), block.address));
    let small = blocks.split_off(MAX_BLOCKS);
    blocks.sort_unstable_by_key(|block| block.address);
    (small.len(), small.iter().map(|block| block.requested).sum())
}

/// Returns the keys of the blocks, the one with most bytes first; of equals, the one that comes first by `name`.
fn by_bytes<K: Copy + Eq + Hash, N: Ord>(
    blocks: &[PlacedBlock],
    key: fn(&PlacedBlock) -> K,
    name: fn(K) -> N,
) -> Vec<K> {
    let mut sums: HashMap<K, u64> = HashMap::new();
    for block in blocks {
        *sums.entry(key(block)).or_default() += block.requested;
    }
    let mut keys: Vec<(K, u64)> = sums.into_iter().collect();
    keys.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| name(one.0).cmp(&name(other.0))));
    keys.into_iter().map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn block(address: u64, requested: u64, tag: &str) -> PlacedBlock {
        PlacedBlock { address, granted: requested, requested, tag: AllocTag::intern(tag), stream: 0, allocated_at: 0 }
    }

    #[test]
    fn the_largest_blocks_are_kept_in_the_order_of_their_addresses() {
        let blocks = (0..MAX_BLOCKS as u64 + 3).map(|at| block(at * 512, if at < 3 { 1 } else { 256 }, "x")).collect();
        let map = AddressMap::new(&PeakSnapshot { blocks, ..PeakSnapshot::default() }, &[0]).expect("memory");
        assert_eq!((map.blocks, map.left_out), (MAX_BLOCKS, (3, 3)));
    }

    #[test]
    fn what_is_behind_addresses_is_known_only_if_it_adds_up() {
        for (reserved, is_known) in [(4096, true), (8192, false)] {
            let peak = PeakSnapshot { reserved, backed: Arc::new([(4096, 8192)].into()), ..PeakSnapshot::default() };
            assert_eq!(AddressMap::new(&peak, &[]).expect("memory").is_known, is_known);
        }
        assert!(!AddressMap::new(&PeakSnapshot::default(), &[]).expect("memory").is_known, "nothing was told");
    }

    #[test]
    fn names_come_in_the_order_of_their_bytes() {
        let blocks = vec![block(0, 10, "b"), block(512, 30, "c"), block(1024, 10, "a")];
        let map = AddressMap::new(&PeakSnapshot { blocks, ..PeakSnapshot::default() }, &[7]).expect("memory");
        assert_eq!((map.tags, map.streams), (vec!["c", "a", "b"], vec!["7".to_owned()]));
    }
}
