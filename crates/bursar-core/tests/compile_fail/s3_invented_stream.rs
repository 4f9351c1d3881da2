//! The fields of a stream are private: none can be written down, and one cannot be made of another.

use bursar_core::Stream;

fn invented() -> Stream {
    Stream { key: 1, epoch_device_and_number: 1 }
}

fn moved(stream: Stream) -> Stream {
    Stream { epoch_device_and_number: 2, ..stream }
}

fn main() {}
