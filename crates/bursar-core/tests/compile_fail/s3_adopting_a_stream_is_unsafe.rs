//! A raw handle becomes a stream only by a promise that it is one.

use bursar_core::{AdoptedStream, DeviceContext, RawStream, Result};
use std::sync::Arc;

fn adopt(context: &Arc<DeviceContext>) -> Result<AdoptedStream> {
    context.adopt_stream(RawStream(0x1234))
}

fn main() {}
