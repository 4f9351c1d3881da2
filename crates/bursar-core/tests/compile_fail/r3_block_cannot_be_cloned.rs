//! A block has no `Clone`.

use bursar_core::DeviceBlock;

fn twin(block: &DeviceBlock) -> DeviceBlock {
    block.clone()
}

fn main() {}
