//! Nothing public makes a stream but a context: not a default, not a handle.

use bursar_core::{RawStream, Stream};

fn by_default() -> Stream {
    Default::default()
}

fn from_a_handle(raw: RawStream) -> Stream {
    raw.into()
}

fn main() {}
