//! Freeing takes the block by value: a second free has nothing to free.

use bursar_core::{DeviceBlock, DeviceMemoryResource, Refused, Stream};

fn free_twice(memory: &dyn DeviceMemoryResource, block: DeviceBlock, stream: Stream) -> Result<(), Refused> {
    memory.deallocate(block, stream)?;
    memory.deallocate(block, stream)
}

fn main() {}
