//! A block has no `Copy`: it cannot be had out of a reference.

use bursar_core::DeviceBlock;

fn twin(block: &DeviceBlock) -> DeviceBlock {
    *block
}

fn main() {}
