//! The address space at the peak, as the page draws it.

use super::pack::Packer;
use super::peak::Held;
use super::recording::AtPeak;
use bursar_core::AllocTag;
use serde::Serialize;
use std::collections::HashMap;
use std::hash::Hash;
use std::io;

/// The most blocks that are drawn; where there are more, the largest are.
const MAX_BLOCKS: usize = 1 << 16;

#[derive(Debug, Serialize)]
pub(super) struct Map {
    operation: u64,
    live: u64,
    reserved: u64,
    /// How many blocks there are in `packed`.
    blocks: usize,
    /// How many there are besides, and their bytes.
    left_out: (usize, u64),
    /// How many ranges with memory behind them there are in `packed`.
    ranges: usize,
    /// Whether those ranges are all the memory that the stack held.
    is_known: bool,
    tags: Vec<&'static str>,
    streams: Vec<String>,
    packed: String,
}

impl Map {
    pub(super) fn new(peak: &AtPeak, streams: &[u64]) -> io::Result<Self> {
        let mut blocks = peak.blocks.clone();
        let left_out = leave_out(&mut blocks);
        let tags = by_bytes(&blocks, |held| held.tag, AllocTag::name);
        let used_streams = by_bytes(&blocks, |held| held.stream, |stream| stream);
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

/// The recording's own name of a stream.
pub(super) fn stream_name(streams: &[u64], stream: u16) -> String {
    streams.get(usize::from(stream)).map_or_else(|| format!("#{stream}"), u64::to_string)
}

/// Column by column, as the page's `decode.js` reads them.
fn pack_blocks(packer: &mut Packer, blocks: &[Held], tags: &[AllocTag], streams: &[u16]) {
    let tag_places = places(tags);
    let stream_places = places(streams);
    packer.differences(blocks.iter().map(|held| held.address));
    packer.column(blocks.iter().map(|held| held.granted));
    packer.column(blocks.iter().map(|held| held.asked));
    packer.column(blocks.iter().map(|held| tag_places[&held.tag]));
    packer.column(blocks.iter().map(|held| stream_places[&held.stream]));
    packer.column(blocks.iter().map(|held| held.born));
}

fn places<K: Copy + Eq + Hash>(keys: &[K]) -> HashMap<K, u64> {
    keys.iter().zip(0..).map(|(&key, place)| (key, place)).collect()
}

/// Takes the smallest blocks away where there are too many, and answers how many they were and their bytes.
fn leave_out(blocks: &mut Vec<Held>) -> (usize, u64) {
    if blocks.len() <= MAX_BLOCKS {
        return (0, 0);
    }
    blocks.sort_unstable_by_key(|held| (std::cmp::Reverse(held.granted), held.address));
    let small = blocks.split_off(MAX_BLOCKS);
    blocks.sort_unstable_by_key(|held| held.address);
    (small.len(), small.iter().map(|held| held.asked).sum())
}

/// The keys of the blocks, the one with most bytes first; of equals, the one that comes first by `name`.
fn by_bytes<K: Copy + Eq + Hash, N: Ord>(blocks: &[Held], key: fn(&Held) -> K, name: fn(K) -> N) -> Vec<K> {
    let mut sums: HashMap<K, u64> = HashMap::new();
    for held in blocks {
        *sums.entry(key(held)).or_default() += held.asked;
    }
    let mut keys: Vec<(K, u64)> = sums.into_iter().collect();
    keys.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| name(one.0).cmp(&name(other.0))));
    keys.into_iter().map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn held(address: u64, asked: u64, tag: &str) -> Held {
        Held { address, granted: asked, asked, tag: AllocTag::intern(tag), stream: 0, born: 0 }
    }

    #[test]
    fn the_largest_blocks_are_kept_in_the_order_of_their_addresses() {
        let blocks = (0..MAX_BLOCKS as u64 + 3).map(|at| held(at * 512, if at < 3 { 1 } else { 256 }, "x")).collect();
        let map = Map::new(&AtPeak { blocks, ..AtPeak::default() }, &[0]).expect("memory");
        assert_eq!((map.blocks, map.left_out), (MAX_BLOCKS, (3, 3)));
    }

    #[test]
    fn what_is_behind_addresses_is_known_only_if_it_adds_up() {
        for (reserved, is_known) in [(4096, true), (8192, false)] {
            let peak = AtPeak { reserved, backed: Arc::new([(4096, 8192)].into()), ..AtPeak::default() };
            assert_eq!(Map::new(&peak, &[]).expect("memory").is_known, is_known);
        }
        assert!(!Map::new(&AtPeak::default(), &[]).expect("memory").is_known, "nothing was told");
    }

    #[test]
    fn names_come_in_the_order_of_their_bytes() {
        let blocks = vec![held(0, 10, "b"), held(512, 30, "c"), held(1024, 10, "a")];
        let map = Map::new(&AtPeak { blocks, ..AtPeak::default() }, &[7]).expect("memory");
        assert_eq!((map.tags, map.streams), (vec!["c", "a", "b"], vec!["7".to_owned()]));
    }
}
