//! The fields of a stream are private: none can be written down, and one cannot be made of another.

use bursar_core::{DeviceId, Stream};

fn invented() -> Stream {
    Stream { context: 1, slot: 1, epoch: 1, device: DeviceId(0) }
}

fn moved(stream: Stream) -> Stream {
    Stream { device: DeviceId(1), ..stream }
}

fn main() {}
