//! The fields of a stream are private: none can be written down, and one cannot be made of another.

use bursar_core::Stream;

fn invented() -> Stream {
    Stream { name: 1, life: 1 }
}

fn moved(stream: Stream) -> Stream {
    Stream { life: 2, ..stream }
}

fn main() {}
