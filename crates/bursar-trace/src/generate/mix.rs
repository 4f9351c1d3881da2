//! Blocks of mixed sizes with random lives.

use super::writer::Writer;
use bursar_core::tag;

/// The bytes that are live at a time.
const LIVE: u64 = 2 << 30;

pub(super) fn write(writer: &mut Writer, streams: u16, rounds: u32) {
    let (mut live, mut live_bytes) = (Vec::new(), 0);
    for _ in 0..rounds {
        let stream = writer.random.below(streams.into()) as u16;
        let block = if writer.random.chance(2) {
            let bytes = writer.between(64 << 10, 4 << 20);
            writer.allocate(stream, bytes, tag!("uniform"))
        } else {
            let bytes = writer.lognormal(96 << 10, 2.0, 512, 256 << 20);
            writer.allocate(stream, bytes, tag!("log-normal"))
        };
        live_bytes += block.bytes();
        live.push(block);
        let mut is_due = writer.random.chance(3);
        while !live.is_empty() && (is_due || live_bytes > LIVE) {
            let block = live.swap_remove(writer.random.index(live.len()));
            live_bytes -= block.bytes();
            let is_foreign = writer.random.chance(8);
            let stream = if is_foreign { (block.stream() + 1) % streams } else { block.stream() };
            writer.free(stream, block);
            is_due = false;
        }
    }
    live.into_iter().for_each(|block| writer.free_own(block));
}
