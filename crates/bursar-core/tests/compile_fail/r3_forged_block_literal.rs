//! The fields of a block are private: none can be written down, and one cannot be made of another.

use bursar_core::{DeviceBlock, DevicePtr};

fn forge(block: DeviceBlock) -> DeviceBlock {
    DeviceBlock { ptr: DevicePtr(0x1000), ..block }
}

fn main() {}
