//! What a block was granted is not for its holder to change.

use bursar_core::DeviceBlock;

fn inflate(block: &mut DeviceBlock) {
    block.granted = 1 << 30;
}

fn main() {}
