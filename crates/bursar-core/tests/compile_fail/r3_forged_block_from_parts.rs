//! Making a block of its parts is unsafe.

use bursar_core::{BlockParts, DeviceBlock, Stream};

fn forge(parts: BlockParts, stream: Stream) -> DeviceBlock {
    DeviceBlock::from_parts(parts, stream)
}

fn main() {}
